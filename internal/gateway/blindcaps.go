package gateway

import (
	"log/slog"
	"sync"

	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
)

// blindCaps warns of admission caps on figures that an engine never reports. What is unknown is admitted, so without a word
// such a cap would look as if it were in force. Each is told once for a group, whatever the number of its engines.
type blindCaps struct {
	log *slog.Logger

	mu   sync.Mutex
	told map[blindCap]bool // guarded by mu
}

type blindCap struct {
	model, bucket string
	stage         fleet.Stage
	cap           string
}

// look finds the caps that c sets on w and that w's kind gives no figure for.
func (b *blindCaps) look(c *config.Config, w *fleet.Worker) {
	for i := range c.Models {
		m := &c.Models[i]
		for j := range m.Buckets {
			if g := m.Buckets[j].Plain; g != nil {
				b.lookAt(m.ID, m.Buckets[j].ID, fleet.Plain, g, w)
			}
			if pd := m.Buckets[j].PD; pd != nil {
				b.lookAt(m.ID, m.Buckets[j].ID, fleet.Prefill, &pd.Prefill, w)
				b.lookAt(m.ID, m.Buckets[j].ID, fleet.Decode, &pd.Decode, w)
			}
		}
	}
}

func (b *blindCaps) lookAt(model, in string, stage fleet.Stage, g *config.Group, w *fleet.Worker) {
	if g.Admission == (config.Admission{}) || !bucket.NewGroup(model, stage, g.Workers, nil).Accepts(w) {
		return
	}
	for _, name := range unreported(w.Kind, &g.Admission) {
		key := blindCap{model, in, stage, name}
		b.mu.Lock()
		told := b.told[key]
		b.told[key] = true
		b.mu.Unlock()
		if !told {
			b.log.Warn("this cap does not act on an engine that never reports its figure", "cap", name,
				"model", model, "bucket", in, "stage", stage.String(), "worker", w.ID, "kind", w.Kind.String())
		}
	}
}

// unreported lists the caps that are set and whose figures no engine of the kind reports: vLLM's /metrics counts the tokens of
// nothing that waits, and an engine of another make is not asked for its load at all.
func unreported(k fleet.Kind, a *config.Admission) (names []string) {
	add := func(limit *int, name string) {
		if limit != nil {
			names = append(names, name)
		}
	}
	switch k {
	case fleet.SGLang:
		return nil
	case fleet.VLLM:
	default:
		add(a.MaxRunningRequests, "max_running_requests")
		add(a.MaxWaitingRequests, "max_waiting_requests")
	}
	add(a.MaxKVTokens, "max_kv_tokens")
	add(a.MaxPendingPrefillTokens, "max_pending_prefill_tokens")
	return names
}
