package api

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/api/body"
	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/lifetime"
)

// prefillAnswer bounds what is read of a prefill engine's answer, in bytes: it is one token and, with vLLM, the place of the KV blocks.
const prefillAnswer = 1 << 20

var errPrefillFailed = &Error{Status: http.StatusBadGateway, Code: "prefill_failed", Message: "the prefill engine did not do its part"}

// errBatchInTurn: vLLM's answer to several prompts says of the first alone where its KV is, and the decode engine would read that for each of them.
var errBatchInTurn = badRequest("several prompts in one request: the engines of this model take one at a time")

// prefillResult is how a prefill leg went.
type prefillResult struct {
	failed *failure // nil: the engine answered, with status
	status int
	header http.Header
	body   []byte
}

func (p *prefillResult) ok() bool { return p.failed == nil && p.status < 300 }

// dispatchPair sends the request to a prefill and a decode engine. Both accounts are taken before anything is sent.
func (c *call) dispatchPair(sel *bucket.Selection) *failure {
	p, d := sel.Prefill.Engine, sel.Decode.Engine
	c.lent = nil // its halves read the body on goroutines of their own, and one may be left behind
	concurrent := p.Kind == fleet.SGLang && d.Kind == fleet.SGLang
	if !concurrent && (p.Kind != fleet.VLLM || d.Kind != fleet.VLLM) {
		c.s.Log.Error("the engines of a pair must be of one family", "prefill", p.ID, "prefill_kind", p.Kind.String(), "decode", d.ID, "decode_kind", d.Kind.String())
		c.notDispatched(p, fleet.Prefill)
		c.notDispatched(d, fleet.Decode)
		return &failure{answer: errMisconfigured, what: "the engines of the pair are not of one family"}
	}
	if !concurrent && c.facts.Prompt.Count > 1 {
		c.notDispatched(p, fleet.Prefill)
		c.notDispatched(d, fleet.Decode)
		return &failure{answer: errBatchInTurn, what: "several prompts for a vLLM pair"}
	}
	parent := c.r.Context()
	if concurrent {
		// The decode engine may be reading the KV already when the client leaves, and the prefill engine must then finish
		// its side; the request time-out bounds it, and so does the server's end.
		parent = c.s.life
	}
	pl, f := c.begin(parent, &sel.Prefill, fleet.Prefill, c.in.total)
	if f != nil {
		c.s.Metrics.WorkerRequests.WithLabelValues(d.ID, c.model.ID, fleet.Decode.String(), "cancelled").Inc() // it was picked too
		return f
	}
	dl, f := c.begin(c.r.Context(), &sel.Decode, fleet.Decode, 1)
	if f != nil {
		pl.end(fleet.Cancelled, "cancelled")
		return f
	}
	if concurrent {
		return c.pairAtOnce(pl, dl)
	}
	return c.pairInTurn(pl, dl)
}

// pairAtOnce is SGLang's way: both engines get the same body at the same time and meet at the prefill engine's bootstrap port,
// in a room of their own. The client gets the decode engine's answer, once the prefill engine has done its part.
func (c *call) pairAtOnce(pl, dl *leg) *failure {
	patch := c.patch
	patch.Set(body.BootstrapHost, body.Quote(hostOf(pl.worker.URL)))
	port := "null" // an engine that did not say its port may still have it from its own configuration
	if n, ok := pl.worker.BootstrapPort.Get(); ok {
		port = strconv.FormatInt(n, 10)
	}
	patch.Set(body.BootstrapPort, []byte(port))
	patch.Set(body.BootstrapRoom, strconv.AppendUint(nil, newRoom(), 10))
	c.forwardIDs(pl.worker, &patch)
	pieces := patch.Pieces(nil)
	header := c.engineHeader(c.facts.Stream)

	done := make(chan prefillResult, 1) // the prefill may outlive this request
	var word verdict
	half := &leftover{s: c.s}
	path, limit := c.path, c.v.Settings.RequestTimeout
	c.handOver(pl)
	c.v.active.Add(1) // also for what is left of the request when its client is gone
	c.s.wg.Go(func() {
		defer c.v.active.Add(-1)
		defer half.end()
		r := pl.prefill(path, header, pieces, limit, func() bool { return dl.life.Err() != nil })
		if !r.ok() {
			word.prefillFailed(dl)
		}
		done <- r
	})
	resp, err := dl.send(c.path, header, pieces, limit)
	if err != nil {
		return c.pairBroke(pl, dl, half, err, done)
	}
	if resp.StatusCode >= 300 && word.decodeRefused(dl) {
		pl.life.End(causeOther) // nobody will fetch what it computes
		return c.pass(dl, resp)
	}
	select {
	case r := <-done:
		if !r.ok() {
			_ = resp.Body.Close()
			dl.end(fleet.Cancelled, "cancelled")
			return c.prefillFailed(r)
		}
		return c.pass(dl, resp)
	case <-dl.life.Done():
		_ = resp.Body.Close()
		if lifetime.Cause(&dl.life) == causeTimeout { // the decode engine has answered: it is the prefill engine that is late
			pl.life.End(causeTimeout)
			dl.end(fleet.Cancelled, "cancelled")
			return c.prefillFailed(<-done)
		}
		return c.pairBroke(pl, dl, half, dl.life.Err(), done)
	}
}

// pairBroke ends a pair whose decode engine gave no answer: by its own fault, by the prefill engine's, or because nobody waits.
func (c *call) pairBroke(pl, dl *leg, half *leftover, err error, done <-chan prefillResult) *failure {
	dl.life.End(nil) // why it ended stands now: a prefill engine that fails, too, or that is told off below, is not the reason
	if lifetime.Cause(&dl.life) == causeOther {
		dl.end(fleet.Cancelled, "cancelled")
		return c.prefillFailed(<-done)
	}
	if c.r.Context().Err() == nil || !half.leave(c) {
		pl.life.End(causeOther) // a prefill that waits for a decode engine that is gone would wait for minutes
	}
	return c.noAnswer(dl, err)
}

// verdict says which half of a pair decides how it ends, where both may at once: the first to speak.
type verdict struct {
	mu      sync.Mutex
	refused bool // the decode engine has, and what it says is passed on
}

// prefillFailed ends the decode half, unless its engine has refused.
func (v *verdict) prefillFailed(dl *leg) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.refused {
		dl.life.End(causeOther)
	}
}

// decodeRefused tells whether the decode engine's refusal comes before the prefill engine's failure. Then that does not end it any more.
func (v *verdict) decodeRefused(dl *leg) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.refused = lifetime.Cause(&dl.life) != causeOther
	return v.refused
}

// pairInTurn is vLLM's way (NIXL, pull): the prefill engine computes the prompt and says where its KV blocks are; the decode
// engine gets that, as it stands, and fetches them.
func (c *call) pairInTurn(pl, dl *leg) *failure {
	patch := c.patch
	patch.Set(body.Stream, []byte("false"))
	patch.Remove(body.StreamOptions)
	patch.Set(body.MaxTokens, []byte("1"))
	patch.Remove(body.MinTokens) // more than one would contradict it
	if c.facts.Has(body.MaxCompletionTokens) {
		patch.Set(body.MaxCompletionTokens, []byte("1"))
	}
	patch.Set(body.KVTransferParams, []byte(`{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`))
	header := c.engineHeader(false)
	r := pl.prefill(c.path, header, patch.Pieces(nil), c.v.Settings.RequestTimeout, func() bool { return false })
	var where struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	if r.ok() && (json.Unmarshal(r.body, &where) != nil || len(where.Params) == 0 || string(where.Params) == "null") {
		c.s.Log.Error("the prefill engine gave no kv_transfer_params: is it started with a KV connector?", "worker", pl.worker.ID)
		r.failed = &failure{answer: errPrefillFailed, what: "the prefill engine gave no kv_transfer_params"}
	}
	if !r.ok() {
		dl.end(fleet.Cancelled, "cancelled")
		if c.leftBefore(dl) {
			return nil
		}
		return c.prefillFailed(r)
	}
	patch = c.patch
	patch.Set(body.KVTransferParams, where.Params)
	resp, err := dl.send(c.path, c.engineHeader(c.facts.Stream), patch.Pieces(nil), c.v.Settings.RequestTimeout)
	if err != nil {
		return c.noAnswer(dl, err)
	}
	return c.pass(dl, resp)
}

// prefill sends the prefill half, reads its whole answer and ends the leg. It touches nothing of the request. alone tells whether the decode half has
// been given up: an SGLang prefill engine answers 500 then, for which it is not to blame.
func (l *leg) prefill(path string, header http.Header, pieces [][]byte, limit time.Duration, alone func() bool) prefillResult {
	resp, err := l.send(path, header, pieces, limit)
	if err != nil {
		return l.prefillBroke(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, prefillAnswer+1))
	if err == nil && len(text) > prefillAnswer {
		err = fmt.Errorf("its answer is longer than %d bytes", prefillAnswer)
	}
	if err != nil {
		return l.prefillBroke(err)
	}
	l.guard.Prefilled(time.Now())
	outcome, label := judge(resp.StatusCode)
	if outcome == fleet.Failure && alone() {
		outcome, label = fleet.Cancelled, "cancelled"
	}
	l.end(outcome, label)
	return prefillResult{status: resp.StatusCode, header: resp.Header, body: text}
}

func (l *leg) prefillBroke(err error) prefillResult {
	outcome, label, f := l.blame(err)
	l.end(outcome, label)
	f.what = "prefill: " + f.what
	if f.answer != errStale && !l.refused {
		f.answer = errPrefillFailed
	}
	return prefillResult{failed: f}
}

// prefillFailed answers for a pair whose prefill engine did not do its part: what it says of the request
// or of its own load passes to the client.
func (c *call) prefillFailed(r prefillResult) *failure {
	if r.failed != nil {
		return r.failed
	}
	if (r.status >= 400 && r.status < 500) || r.status == http.StatusServiceUnavailable {
		c.head(&http.Response{StatusCode: r.status, Header: r.header}, int64(len(r.body)))
		if c.send(r.body) != nil {
			c.clientLeft, c.broken = true, true
		}
		return nil
	}
	return &failure{answer: errPrefillFailed, what: "the prefill engine answered " + strconv.Itoa(r.status)}
}

// hostOf returns the host of a worker's URL without its port, and without the brackets of an IPv6 address.
func hostOf(base string) string {
	return engineURL(base, "").Hostname()
}

// newRoom returns 63 random bits: two pairs in one room would crash both schedulers.
func newRoom() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:]) >> 1
}
