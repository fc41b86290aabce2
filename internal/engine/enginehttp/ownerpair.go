package enginehttp

import (
	"slices"

	"github.com/perigee-llm/perigee/internal/engine"
)

// These belong to the owner, as outer.go's do: what pairs of engines do with the core.

// join has a decode engine enter a room. What becomes of it goes into heard, which has room for one.
func (o *owner) join(name string, heard chan word) (err error) {
	stopped := o.do(func() {
		if err = o.core.Join(o.now(), name); err == nil {
			o.joins[name] = heard
		}
	})
	if stopped != nil {
		return stopped
	}
	return err
}

// leaveRoom has the decode engine leave a room: the one that joined with heard, or with nil whoever is there.
func (o *owner) leaveRoom(name string, heard chan word, taken bool) (ok bool) {
	_ = o.do(func() {
		if j := o.joins[name]; j != nil && (heard == nil || j == heard) {
			ok = o.core.Leave(o.now(), name, taken)
		}
	})
	return ok
}

// blocksOf returns the numbers of the blocks that a room holds.
func (o *owner) blocksOf(name string) (blocks []int32) {
	_ = o.do(func() { blocks = slices.Clone(o.core.RoomBlocks(name)) })
	return blocks
}

func (o *owner) notFetched(id engine.ID, err error) {
	if r := o.refs[id]; r != nil {
		r.why = err.Error()
	}
	o.core.NotFetched(o.now(), id)
}

// deliverPair hands on what an action of a pair says.
func (o *owner) deliverPair(a *engine.Action) {
	switch a.Kind {
	case engine.Fetch:
		if r := o.refs[a.ID]; r != nil {
			r.cancel = o.fetches.begin(a.ID, r.call.remotes[r.index], a.Missing)
		}
	case engine.Ready:
		o.tell(a.Room, word{handover: a.Handover})
	case engine.Closed:
		o.tell(a.Room, word{why: a.Reason})
		delete(o.joins, a.Room)
		if r := o.refs[a.ID]; a.HasID && r != nil { // SGLang's prefill engine answers when the room is closed
			delete(o.refs, a.ID)
			if a.Reason == engine.ReasonTaken {
				o.metrics.finished(r, a)
				r.call.put(event{index: r.index, token: r.token, hasToken: true, end: endLength})
				return
			}
			o.metrics.failed++
			o.metrics.bootstrapFailed += btoi(a.Reason == engine.ReasonUnmatched)
			o.metrics.transferFailed += btoi(a.Reason != engine.ReasonUnmatched)
			r.call.put(event{index: r.index, end: endFailed, why: pairFailure(r, a.Reason)})
		}
	}
}

// tell tells a decode engine that waits for a room. One that has heard of it already hears no more.
func (o *owner) tell(name string, w word) {
	if heard := o.joins[name]; heard != nil {
		select {
		case heard <- w:
		default:
		}
	}
}

// pairFailure is what SGLang's prefill engine answers for a room that was closed.
func pairFailure(r *ref, why engine.Reason) string {
	what := "transfer"
	if why == engine.ReasonUnmatched {
		what = "bootstrap"
	}
	return "Prefill " + what + " failed for request rank=0 req.rid='" + r.rid + "' with exception KVTransferError: " + reasonOf(why)
}

// unfetched is what a decode engine answers for KV that did not come.
func (o *owner) unfetched(r *ref) string {
	if r.why == "" {
		r.why = "timed out in KVPoll.WaitingForInput"
	}
	if o.cfg.Pairing == engine.Pull {
		return "Internal server error"
	}
	return "Decode transfer failed for request rank=0 req.rid='" + r.rid + "' with exception KVTransferError: " + r.why
}

func btoi(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
