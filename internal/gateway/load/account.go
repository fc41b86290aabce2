package load

import (
	"sync"
	"time"
)

// Account is what one other gateway told of its prompts in prefill. They count in [Engine.Prefill] as this gateway's own do, and
// nowhere else: what is in flight is the business of the gateway that sent it. NewAccount makes one; its methods may be called at once.
//
// What is told may come late, twice or never. Telling twice changes nothing, a full list puts right what was lost, and the account of a gateway
// that has fallen silent is emptied: then reports alone speak of its prompts, as if it had never told.
type Account struct {
	mu struct {
		sync.Mutex // order: Account.mu, then Engine.mu
		prompts    map[uint64]told
		round      uint64 // of full lists
		heard      time.Time
	}
	most int
}

// told is a prompt, as a guard that is on no list but its engine's prefill queue, and the round in which it was last told of.
type told struct {
	*Guard
	round uint64
}

// Told is a prompt and where it went.
type Told struct {
	Engine *Engine
	Prompt
}

// DefaultMostTold bounds the prompts of one other gateway: those of 64 engines with a thousand waiting each, in some 15 MB.
const DefaultMostTold = 1 << 16

// DefaultSilence is for how long a gateway may be silent before what it told is dropped. It tells everything once a second, so this is two
// of those lost in a row; longer, and the prompts of a gateway that died keep others from engines that are long idle.
const DefaultSilence = 2 * time.Second

// NewAccount returns an empty account of at most so many prompts; 0 means [DefaultMostTold].
func NewAccount(most int) *Account {
	if most <= 0 {
		most = DefaultMostTold
	}
	a := &Account{most: most}
	a.mu.prompts = map[uint64]told{}
	return a
}

// Sent takes in that the prompt was sent, or what more is known of it. It tells whether there was room.
func (a *Account) Sent(t Told) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sentLocked(t)
}

func (a *Account) sentLocked(t Told) bool {
	old, known := a.mu.prompts[t.ID]
	switch {
	case known && old.engine == t.Engine:
		old.Computes(t.Uncached, t.Unseen)
		a.mu.prompts[t.ID] = told{old.Guard, a.mu.round}
		return true
	case known:
		a.goneLocked(old.Guard, time.Time{})
	case len(a.mu.prompts) >= a.most:
		return false
	}
	g := &Guard{engine: t.Engine, id: t.ID, at: t.At, uncached: max(t.Uncached, 0), unseen: t.Unseen}
	a.mu.prompts[t.ID] = told{g, a.mu.round}
	g.engine.mu.Lock()
	g.enterPrefillLocked()
	g.engine.mu.Unlock()
	return true
}

// Gone takes in that the prompt has left prefill: with its first token at the given time, or given up where that is zero. One that is
// not known is none.
func (a *Account) Gone(id uint64, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if g, known := a.mu.prompts[id]; known {
		a.goneLocked(g.Guard, at)
	}
}

func (a *Account) goneLocked(g *Guard, at time.Time) {
	delete(a.mu.prompts, g.id)
	g.engine.mu.Lock()
	defer g.engine.mu.Unlock()
	switch {
	case !g.queued:
	case at.IsZero():
		g.leavePrefillLocked(at)
	default:
		g.prefilledLocked(at)
	}
}

// All takes in the full list of the gateway's prompts in prefill: those that are not in it are gone. It tells whether there was room for all.
func (a *Account) All(list []Told) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.round++
	for _, t := range list {
		if old, known := a.mu.prompts[t.ID]; known {
			a.mu.prompts[t.ID] = told{old.Guard, a.mu.round}
		}
	}
	for _, g := range a.mu.prompts { // before any comes in: these leave room
		if g.round != a.mu.round {
			a.goneLocked(g.Guard, time.Time{})
		}
	}
	room := true
	for _, t := range list {
		room = a.sentLocked(t) && room
	}
	return room
}

// Heard notes that the gateway was heard of at now.
func (a *Account) Heard(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.heard = now
}

// Expire empties the account if the gateway was not heard of for longer than silence, and tells whether it did. The caller decides how often
// it looks.
func (a *Account) Expire(now time.Time, silence time.Duration) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.mu.prompts) == 0 || now.Sub(a.mu.heard) <= silence {
		return false
	}
	a.clearLocked()
	return true
}

// Clear empties the account, as when the gateway was restarted.
func (a *Account) Clear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clearLocked()
}

func (a *Account) clearLocked() {
	for _, g := range a.mu.prompts {
		a.goneLocked(g.Guard, time.Time{})
	}
}

// Len returns how many prompts the account has.
func (a *Account) Len() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.mu.prompts)
}
