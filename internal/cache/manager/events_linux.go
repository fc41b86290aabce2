package manager

import (
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/cache/events"
	"github.com/perigee-llm/perigee/internal/cache/events/book"
	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/managerwire"
)

// teller tells gateways, if there is anybody to tell. Its methods are called with mu held, and wait for nothing.
type teller struct{ pub *events.Publisher }

func (m *Manager) startEvents() (err error) {
	if m.opt.Events == (Endpoints{}) {
		return nil
	}
	e := m.opt.Events
	m.tells.pub, err = events.Start(events.Options{Listen: e.Listen, Replay: e.Replay, Snapshot: e.Snapshot, Epoch: m.epoch, Manager: m.opt.Name})
	return err
}

func (t teller) close() {
	if t.pub != nil {
		t.pub.Close()
	}
}

// EventsAt is where gateways dial; empty without.
func (m *Manager) EventsAt() Endpoints {
	if m.tells.pub == nil {
		return Endpoints{}
	}
	at := m.tells.pub.Endpoints()
	return Endpoints{Listen: at.Events, Replay: at.Replay, Snapshot: at.Snapshot}
}

// hold has what comes and goes told together when it is released.
func (t teller) hold() (release func()) {
	if t.pub == nil {
		return func() {}
	}
	return t.pub.Hold()
}

// block tells that one came or went. One that comes was sealed for its publisher.
func (t teller) block(a core.Action, publisher *session) {
	if t.pub == nil {
		return
	}
	switch a := a.(type) {
	case *core.Visible:
		var parent chain.Key // of a first block: none
		if a.Parent != (core.Hash{}) {
			parent = recordParent(a.Identity)
		}
		t.pub.Visible(publisher.space, a.Group, parent, a.Chain)
	case *core.Named:
		t.pub.Visible(publisher.space, a.Group, a.Parent, a.Chain)
	case *core.Removed:
		t.pub.Removed(managerwire.Namespace(a.Namespace), a.Group, a.Chain)
	}
}

// spaceOf is what a session's blocks are told under. A block that its publisher names under another model's id (wire.Root) is told under the
// session's: no gateway will find it, and none will take it for something else.
func spaceOf(s *session) *book.Space {
	return &book.Space{Namespace: managerwire.Namespace(s.namespace), Model: s.model, BlockSize: int(s.tokens), Groups: len(s.parts)}
}

// attach tells of a session that has registered.
func (t teller) attach(s *session, dataRank uint32) {
	if t.pub == nil {
		return
	}
	rank := int32(managerwire.AllRanks)
	if dataRank > 0 {
		rank = int32(min(dataRank-1, managerwire.MaxRank+1)) // one more than there may be is refused
	}
	t.pub.Attach(uint64(s.id.Number), book.Engine{URL: s.url, Rank: rank, Space: s.space})
}

func (t teller) detach(s *session) {
	if t.pub != nil {
		t.pub.Detach(uint64(s.id.Number))
	}
}

// begun notes when a lease was first started on, and how many tokens it restores. Of an instance with several groups that cannot be said from
// the plan: pages of a window do not count once more.
func (r *restoring) begun(now core.Time, s *session, p *core.Plan) {
	r.began = now
	if len(s.parts) == 1 {
		r.tokens = len(p.Slots) * int(s.tokens)
	}
}

// restored tells how long a restore took; one that failed says nothing of the next.
func (t teller) restored(now core.Time, s *session, r *restoring, ok bool) {
	if t.pub != nil && ok && r.tokens > 0 {
		t.pub.Restored(uint64(s.id.Number), r.tokens, now-r.began)
	}
}
