package offload

import (
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/cache/state"
	"github.com/perigee-llm/perigee/internal/engine"
)

// NamespaceForTest is the identity that an adapter registers with.
func NamespaceForTest(o Options) state.Namespace { return namespace(&o) }

// NameForTest is what the Manager knows a block of p by.
func NameForTest(p *Prompt, h engine.BlockHash) core.Hash { return p.name(h) }

// QueueForTest is how many batches may wait.
const QueueForTest = publishQueue
