package load

import "time"

// Prompt is one prompt that has no first token yet, as a gateway tells others of it.
type Prompt struct {
	// ID is the telling gateway's number for it; it gives none twice.
	ID uint64
	// Uncached is what the engine has to compute of it, in tokens.
	Uncached int64
	// At is when it was sent.
	At time.Time
	// Unseen says that nobody will see its first token.
	Unseen bool
}

// Observer is told of each prompt that enters the accounts of prefill, of what becomes known of it, and of its end: what
// other gateways need to know. Its methods are called under the engine's lock, so that they come in the order in which the accounts
// changed. They must neither block nor call back into this package.
type Observer interface {
	// Sent: the prompt is on its way to the engine; again for the same ID when more is known of it.
	Sent(e *Engine, p Prompt)
	// Gone: the prompt has left prefill, with its first token at the given time, or given up where that is zero.
	Gone(e *Engine, id uint64, at time.Time)
}

// Prompts appends what this gateway itself has in prefill on the engine, oldest first.
func (e *Engine) Prompts(to []Prompt) []Prompt {
	e.mu.Lock()
	defer e.mu.Unlock()
	for g := e.mu.inPrefill.list.first; g != nil; g = g.inPrefill.next {
		if g.tracker != nil {
			to = append(to, g.prompt())
		}
	}
	return to
}

func (g *Guard) prompt() Prompt {
	return Prompt{ID: g.id, Uncached: g.uncached, At: g.at, Unseen: g.unseen}
}

func (g *Guard) tellSentLocked() {
	if g.tracker != nil && g.tracker.Observer != nil {
		g.tracker.Observer.Sent(g.engine, g.prompt())
	}
}

func (g *Guard) tellGoneLocked(at time.Time) {
	if g.tracker != nil && g.tracker.Observer != nil {
		g.tracker.Observer.Gone(g.engine, g.id, at)
	}
}
