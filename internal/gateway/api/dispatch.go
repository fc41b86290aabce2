package api

import (
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/perigee-llm/perigee/internal/gateway/api/body"
	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
)

// dispatch sends the request to the selected engines and passes the answer on. It returns nil once an answer has begun or the
// client has left.
func (c *call) dispatch(sel *bucket.Selection) *failure {
	c.engineRID = ""
	if sel.PD() {
		return c.dispatchPair(sel)
	}
	return c.dispatchPlain(&sel.Plain)
}

func (c *call) dispatchPlain(p *policy.Pick) *failure {
	l, f := c.begin(c.r.Context(), p, fleet.Plain, c.in.total)
	if f != nil {
		return f
	}
	resp, err := c.askPlain(l)
	if err != nil {
		return c.noAnswer(l, err)
	}
	return c.pass(l, resp)
}

// askPlain sends the request. It is a function of its own so that the stack of a stream that goes on for minutes need not have room for it.
func (c *call) askPlain(l *leg) (*http.Response, error) {
	c.attempt.Reset()
	c.attempt.Like(&c.patch)
	c.engineRID, l.rid = c.engineRequestID(l.worker, &c.attempt)
	c.forwardIDs(l.worker, &c.attempt)
	c.pieces = c.attempt.Pieces(c.pieces[:0])
	l.body.lent = c.lent
	if c.header == nil {
		c.header = make(http.Header, 8)
	}
	clear(c.header)
	c.fillEngineHeader(c.header, c.streamed)
	return l.send(c.path, c.header, c.pieces, c.v.Settings.RequestTimeout)
}

// shortestRID is how many characters an id that a client chose must have for the gateway to abort by it. SGLang aborts every request
// whose id begins with the one given, so that a client with the id "a" would end other clients' requests when it leaves. One of this
// length, which is that of a UUID without its dashes, is the beginning of another's only if it was copied from there.
const shortestRID = 32

// engineRequestID returns the request's id at the engine, and the same as the id to abort it by if that harms nobody else. It puts an id
// into the body where the client gave none. Only SGLang aborts by an id. It matches ids by their beginning, so one id must stand for one
// sequence.
func (c *call) engineRequestID(w *fleet.Worker, patch *body.Patch) (rid, abortBy string) {
	if w.Kind != fleet.SGLang || c.facts.FanOut || c.facts.Prompt.Count > 1 {
		return "", ""
	}
	if c.facts.Has(body.RID) && !c.v.Settings.Stripped.Has(body.RID) {
		rid = string(c.facts.RID)
		if utf8.RuneCount(c.facts.RID) < shortestRID {
			return rid, ""
		}
		return rid, rid
	}
	rid = randomHex()
	patch.Set(body.RID, body.Quote(rid))
	return rid, rid
}

// noAnswer ends a leg that got no answer's head.
func (c *call) noAnswer(l *leg, err error) *failure {
	outcome, label, f := l.blame(err)
	if outcome == fleet.Failure && l.connected {
		// An engine that took the request and gave nothing back may have died of it. The first one is struck; when the next does
		// the same, the request is the likelier cause, and a client must not take out a fleet with a handful of them.
		if c.struck {
			outcome = fleet.Cancelled
		}
		c.struck = true
	}
	l.end(outcome, label)
	if c.leftBefore(l) {
		return nil
	}
	if l.connected && (f.answer == errTimeout || f.answer == errStale) {
		c.s.aborts.send(l.worker, l.rid, c.auth) // it may be at work on it still
	}
	return f
}

// leftBefore notes that the client has left, if it has, and has the engine forget the request. One that was never sent needs no
// forgetting: who opens and resets streams by the thousand must not fill the queue with it.
func (c *call) leftBefore(l *leg) bool {
	if c.r.Context().Err() == nil {
		return false
	}
	c.clientLeft = true
	if l.connected {
		c.s.aborts.send(l.worker, l.rid, c.auth)
	}
	return true
}

// send writes a part of the answer's body to the client, which may stall only so long.
func (c *call) send(p []byte) error {
	defer c.rest()
	for len(p) > 0 {
		c.extend()
		n, err := c.w.Write(p[:min(len(p), piece)])
		c.sent += int64(n)
		if err != nil {
			c.whyFailed()
			return err
		}
		p = p[n:]
	}
	return nil
}

// piece is how much a client must read within its time-out, in bytes: a long answer is written in pieces, so that a client
// that reads slowly is not taken for one that reads nothing.
const piece = 64 << 10

// flush pushes out what was written, within the client's time.
func (c *call) flush() error {
	c.extend()
	defer c.rest()
	err := c.rc.Flush()
	if err != nil {
		c.whyFailed()
	}
	return err
}

// whyFailed takes down whether a write failed because the client's time for reading was over. The clock tells, since net/http's HTTP/2 resets the stream
// then and says nothing else of it; or its connection, which others' answers may have waited for before.
func (c *call) whyFailed() {
	c.stalled = !c.writeBy.IsZero() && !time.Now().Before(c.writeBy) || connStalled(c.r)
}

// extend gives the client its time for reading what is written next.
func (c *call) extend() {
	if time.Until(c.writeBy) < c.v.Settings.ClientStall*7/8 { // moving it for each part would cost more than the write
		c.writeBy = time.Now().Add(c.v.Settings.ClientStall)
		_ = c.rc.SetWriteDeadline(c.writeBy)
	}
}

// rest takes the client's deadline off while nothing is written. In HTTP/1 a deadline that passes unused does nothing; in
// HTTP/2 it ends the stream, and with it an answer that only takes long to come.
func (c *call) rest() {
	if c.r.ProtoMajor == 2 {
		c.writeBy = time.Time{}
		_ = c.rc.SetWriteDeadline(c.writeBy)
	}
}
