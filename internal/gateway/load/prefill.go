package load

import (
	"math"
	"time"
)

// Prefill is the prompts that have been sent to an engine and have no first token yet, in uncached tokens: those that the engine has to
// compute. They are those of this gateway, which it knows by itself, and those that other gateways told of (see [Account]).
type Prefill struct {
	// Tokens are those of all of them, Since of those that were sent at the time that was asked for or later.
	Tokens, Since int64
	// OthersSince is how many prompts of Since other gateways sent.
	OthersSince int64
	// Head are those of the oldest, which the engine computes first, and HeadAt is when it can have begun: when the one before had
	// its first token, or when it was sent.
	Head   int64
	HeadAt time.Time
	// HeadUnseen tells that nobody will see the oldest one's first token: its answer comes as a whole. It may have had it.
	HeadUnseen bool
}

// Left estimates how much of it is still to be computed at now by an engine that computes perSecond tokens: the oldest prompt
// proceeds, and the others wait for it until its first token was seen, or for as long as it should take where none is to be seen.
func (p Prefill) Left(now time.Time, perSecond float64) int64 {
	if p.Tokens == 0 {
		return 0
	}
	done := max(int64(perSecond*now.Sub(p.HeadAt).Seconds()), 0)
	if !p.HeadUnseen {
		done = min(done, p.Head)
	}
	return max(p.Tokens-done, 0)
}

// Prefill returns what is in prefill on the engine; since is for [Prefill.Since].
func (e *Engine) Prefill(since time.Time) Prefill {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.prefillLocked(since)
}

func (e *Engine) prefillLocked(since time.Time) Prefill {
	p := Prefill{Tokens: e.mu.inPrefill.tokens}
	for g := e.mu.inPrefill.list.last; g != nil && !g.at.Before(since); g = g.inPrefill.prev {
		p.Since += g.uncached
		if g.tracker == nil {
			p.OthersSince++
		}
	}
	if head := e.mu.inPrefill.list.first; head != nil {
		p.Head, p.HeadAt, p.HeadUnseen = head.uncached, head.at, head.unseen
		if e.mu.inPrefill.freed.After(head.at) {
			p.HeadAt = e.mu.inPrefill.freed
		}
	}
	return p
}

// Look is all that a record says at one moment, read at once.
type Look struct {
	// Report is the engine's report if it is fresh and complete, otherwise nil; see [Engine.Report]. It lapses at Lapses, on the fleet's clock: the end of all
	// times where there is none.
	Report *Report
	Lapses int64
	// Active is how many guards are held, Dispatched how many of them were acquired since the report; 0 without one.
	Active, Dispatched int64
	// Prefill is what is in prefill, its Since being since the report, or since the look where there is none.
	Prefill Prefill
}

// Look reads the record at now.
func (e *Engine) Look(now time.Time) (l Look) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l.Report, l.Active, l.Lapses = e.Report(now), e.Active(), math.MaxInt64
	since := now
	if l.Report != nil {
		since = l.Report.At
		l.Lapses, l.Dispatched = Add(e.clockOf().Nanos(since), int64(e.fresh())), e.dispatchedLocked(since)
	}
	l.Prefill = e.prefillLocked(since)
	return l
}

// prefillQueue is an engine's guards without a first token, oldest first.
type prefillQueue struct {
	list   guardList
	tokens int64
	freed  time.Time // when the oldest one last left
}

func prefillLinks(g *Guard) *guardLinks { return &g.inPrefill }

// Computes says how much of the prompt the engine will have to compute, in tokens; until then it is taken to be all of it. unseen says
// that the first token will not be seen, so that Prefilled cannot be called in time. It means nothing for the decode stage.
func (g *Guard) Computes(uncached int64, unseen bool) {
	g.engine.mu.Lock()
	defer g.engine.mu.Unlock()
	if g.queued {
		g.engine.mu.inPrefill.tokens += max(uncached, 0) - g.uncached
		g.uncached, g.unseen = max(uncached, 0), unseen
		g.engine.changed()
		g.tellSentLocked()
	}
}

// Prefilled says that the first token was seen at now. Engines compute prompts in the order in which they come, so older ones whose
// first token cannot be seen have had it too. Only the first call does something.
func (g *Guard) Prefilled(now time.Time) {
	g.engine.mu.Lock()
	defer g.engine.mu.Unlock()
	g.prefilledLocked(now)
}

func (g *Guard) prefilledLocked(now time.Time) {
	if !g.queued {
		return
	}
	for o := g.inPrefill.prev; o != nil; {
		before := o.inPrefill.prev
		if o.unseen {
			o.leavePrefillLocked(now)
			o.tellGoneLocked(now)
		}
		o = before
	}
	g.leavePrefillLocked(now)
	g.tellGoneLocked(now)
}

func (g *Guard) enterPrefillLocked() {
	q := &g.engine.mu.inPrefill
	g.queued = true
	q.list.insert(g, prefillLinks)
	q.tokens += g.uncached
	g.engine.changed()
}

// leavePrefillLocked takes g out. A zero time means that nobody knows when it got its token: it was given up.
func (g *Guard) leavePrefillLocked(now time.Time) {
	q := &g.engine.mu.inPrefill
	if q.list.first == g && now.After(q.freed) {
		q.freed = now
	}
	q.list.remove(g, prefillLinks)
	q.tokens -= g.uncached
	g.queued = false
	g.engine.changed()
}
