package enginehttp

import (
	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/engine/offload"
)

// These run in the owner's goroutine. What the Manager answers comes back through the owner's ops, or never, once it has stopped.

// changed passes a change of the cache on to those that are told.
func (o *owner) changed(a *engine.Action) {
	if o.kv != nil {
		o.changes = append(o.changes, a.Event)
	}
	if r := o.refs[a.ID]; o.outer != nil && r != nil && a.Event.Kind == engine.BlockStored && !a.Event.Restored {
		o.outer.Stored(r.names, a.Event)
	}
}

func (o *owner) lookUp(a *engine.Action) {
	id, r := a.ID, o.refs[a.ID]
	if r == nil {
		return // aborted; nobody waits for the answer
	}
	found := func(blocks int) {
		_ = o.do(func() {
			if !o.core.Found(o.now(), id, blocks) {
				o.outer.Drop(id)
			}
		})
	}
	if !o.outer.Lookup(id, a.Wanted, r.names, found) {
		o.core.Found(o.now(), id, 0)
	}
}

// restore has an answer in any case: the core keeps the blocks until it comes.
func (o *owner) restore(a *engine.Action) {
	id := a.ID
	restored := func(blocks int) { _ = o.do(func() { o.core.Restored(o.now(), id, blocks) }) }
	if !o.outer.Restore(id, a.Wanted, restored) {
		o.core.Restored(o.now(), id, 0)
	}
}

func (o *owner) dropOuter(id engine.ID) {
	if o.outer != nil {
		o.outer.Drop(id)
	}
}

// startOuter begins to register with the Cache Manager, when the server knows its address.
func (s *Server) startOuter() {
	m := s.opt.CacheManager
	if m == nil {
		return
	}
	cfg := s.owner.cfg
	s.owner.outer = offload.Start(offload.Options{
		Socket: m.Socket, Instance: "simulated engine " + s.addr, URL: s.URL(), Model: s.opt.Models[0],
		BlockTokens: cfg.BlockSize, PageBytes: cfg.PageBytes, Timing: cfg.Timing, LookupWait: m.LookupWait, RestoreWait: m.RestoreWait, HangAfter: m.HangAfter,
	})
}

func (s *Server) closeOuter() {
	if s.owner.outer != nil {
		s.owner.outer.Close()
	}
}

// names names the prompts' blocks for the Cache Manager: nil without one.
func (s *Server) names(reqs []engine.Request) (out []*offload.Prompt) {
	if s.owner.outer == nil {
		return nil
	}
	for i := range reqs {
		out = append(out, s.owner.outer.NewPrompt(reqs[i].Prompt, reqs[i].LoRA, reqs[i].Salt))
	}
	return out
}
