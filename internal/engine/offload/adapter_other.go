//go:build !unix

package offload

import "github.com/perigee-llm/perigee/internal/engine"

// Adapter finds no Manager here: there is none for this system.
type Adapter struct{ opt Options }

// Start starts nothing.
func Start(o Options) *Adapter { return &Adapter{opt: o} }

// Close does nothing.
func (a *Adapter) Close() {}

// Restart does nothing.
func (a *Adapter) Restart() {}

// Lookup has nobody to ask.
func (a *Adapter) Lookup(engine.ID, *engine.Wanted, *Prompt, func(int)) bool { return false }

// Drop does nothing.
func (a *Adapter) Drop(engine.ID) {}

// Restore has nothing to restore from.
func (a *Adapter) Restore(engine.ID, *engine.Wanted, func(int)) bool { return false }

// Stored drops everything.
func (a *Adapter) Stored(*Prompt, *engine.KVEvent) {}

// Stats returns zeros.
func (a *Adapter) Stats() Stats { return Stats{} }
