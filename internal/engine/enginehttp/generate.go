package enginehttp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
)

// job is one generation request on its way from the body to the answer.
type job struct {
	shape   shape
	body    *genBody
	prompts [][]uint32
	max     int // tokens of each answer; 0: the engine's default
	rid     string
	fault   *activeFault
	native  bool // SGLang's /generate
	count   *counts

	room    string   // of a vLLM prefill half
	remotes []remote // of the prompts of a decode half
}

// chat serves /v1/chat/completions.
func (s *Server) chat(w http.ResponseWriter, r *http.Request) {
	j := s.newJob(w, r)
	if j == nil {
		return
	}
	if len(j.body.Messages) == 0 {
		s.fail(w, http.StatusBadRequest, "messages", "messages is missing or empty")
		return
	}
	msgs := make([]engine.Message, len(j.body.Messages))
	for i, m := range j.body.Messages {
		msgs[i] = engine.Message{Role: m.Role, Content: string(m.Content)}
	}
	j.shape.chat = true
	j.prompts = [][]uint32{engine.AppendChat(nil, msgs)}
	s.run(w, r, j)
}

// completions serves /v1/completions.
func (s *Server) completions(w http.ResponseWriter, r *http.Request) {
	j := s.newJob(w, r)
	if j == nil {
		return
	}
	var err error
	if j.prompts, err = j.body.prompts(j.body.Prompt, "prompt"); err != nil {
		s.fail(w, http.StatusBadRequest, "prompt", err.Error())
		return
	}
	s.run(w, r, j)
}

// generate serves SGLang's own /generate.
func (s *Server) generate(w http.ResponseWriter, r *http.Request) {
	j := s.newJob(w, r)
	if j == nil {
		return
	}
	raw, name := j.body.Text, "text"
	if len(raw) == 0 {
		raw, name = j.body.InputIDs, "input_ids"
	}
	var err error
	if j.prompts, err = j.body.prompts(raw, name); err != nil {
		s.fail(w, http.StatusBadRequest, name, err.Error())
		return
	}
	j.native, j.max = true, 128 // SGLang's default of max_new_tokens
	if p := j.body.Sampling; p != nil && p.MaxNewTokens != nil {
		j.max = *p.MaxNewTokens
	}
	s.run(w, r, j)
}

// newJob reads the request and checks what all generation requests have in common. It returns nil if it has answered.
func (s *Server) newJob(w http.ResponseWriter, r *http.Request) *job {
	count := s.count.Load()
	count.requests.Add(1)
	body := &genBody{}
	if err := readBody(w, r, body); err != nil {
		if r.Context().Err() != nil {
			count.clientGone.Add(1)
			panic(http.ErrAbortHandler)
		}
		s.failBody(w, err)
		return nil
	}
	fault := s.faults.next(r.URL.Path, true)
	if handled, err := fault.before(w, r, s); handled || err != nil {
		if err != nil {
			count.clientGone.Add(1)
			panic(http.ErrAbortHandler)
		}
		return nil
	}
	model := body.Model
	if model == "" {
		model = s.opt.Models[0]
	}
	if !slices.Contains(s.opt.Models, model) {
		s.fail(w, http.StatusNotFound, "model", fmt.Sprintf("The model `%s` does not exist.", model))
		return nil
	}
	n := body.N
	if body.Sampling != nil && n == nil {
		n = body.Sampling.N
	}
	if n != nil && *n != 1 {
		s.fail(w, http.StatusBadRequest, "n", "the simulated engine gives one answer a prompt: n must be 1")
		return nil
	}
	j := &job{body: body, fault: fault, count: count, shape: shape{
		flavor: s.opt.Flavor, model: model, created: time.Now().Unix(), hideCache: s.opt.HideCached,
	}}
	if m := body.MaxCompletionTokens; m != nil {
		j.max = *m
	} else if m := body.MaxTokens; m != nil {
		j.max = *m
	}
	if (body.MaxTokens != nil || body.MaxCompletionTokens != nil) && j.max < 1 {
		s.fail(w, http.StatusBadRequest, "max_tokens", "max_tokens must be at least 1, got "+strconv.Itoa(j.max))
		return nil
	}
	s.nameJob(w, r, j)
	return j
}

// nameJob gives the request its id, from the client's if there is one.
func (s *Server) nameJob(w http.ResponseWriter, r *http.Request, j *job) {
	if s.opt.Flavor == SGLang {
		if j.rid = j.body.rid(); j.rid == "" {
			j.rid = randomID()
		}
		j.shape.id = j.rid
		return
	}
	id := r.Header.Get("X-Request-Id")
	if id == "" {
		id = j.body.RequestID
	}
	if id == "" {
		id = randomID()
	}
	if s.opt.EchoRequestID {
		w.Header().Set("X-Request-Id", id)
	}
	j.rid = id
	if strings.HasSuffix(r.URL.Path, "/chat/completions") {
		j.shape.id = "chatcmpl-" + id
	} else {
		j.shape.id = "cmpl-" + id
	}
}

// randomID returns 32 hex digits. It need only differ from the others of its time.
func randomID() string { return fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()) }

// run submits the prompts and answers with what comes.
func (s *Server) run(w http.ResponseWriter, r *http.Request, j *job) {
	if len(j.prompts) == 0 || len(j.prompts) > maxPrompts {
		s.fail(w, http.StatusBadRequest, "prompt", fmt.Sprintf("%d prompts: not between 1 and %d", len(j.prompts), maxPrompts))
		return
	}
	salt := j.body.CacheSalt
	if j.body.ExtraKey != "" {
		salt += "\x00" + j.body.ExtraKey
	}
	reqs := make([]engine.Request, len(j.prompts))
	for i, p := range j.prompts {
		reqs[i] = engine.Request{Prompt: p, MaxTokens: j.max, Salt: salt, LoRA: j.body.LoraPath}
	}
	if !s.halve(w, j, reqs) {
		return
	}
	c := newCall(j.body.Stream)
	c.remotes = j.remotes
	c.names = s.names(reqs)
	if err := s.owner.submit(c, reqs, j.rid); err != nil {
		s.failSubmit(w, err)
		return
	}
	a := &answer{job: j, choices: make([]choice, len(reqs)), open: len(reqs)}
	for i, p := range j.prompts {
		a.choices[i].prompt = len(p)
	}
	var err error
	if j.body.Stream {
		err = s.stream(w, r, c, a)
	} else {
		err = s.whole(w, r, c, a)
	}
	if err != nil {
		s.owner.leave(c)
		j.count.clientGone.Add(1)
		// Returning would end the answer cleanly, should it be us who are leaving.
		panic(http.ErrAbortHandler)
	}
	j.count.completed.Add(1)
}

// answer collects what the engine gives.
type answer struct {
	*job
	choices []choice
	open    int // sequences that have not ended
	gone    bool
	failed  string // not empty: what the engine says of a request that it could not finish

	events []event
	buf    []byte
	chunks int // sent, counted only with a fault
	begun  time.Time
}

// next waits for events and takes them into the choices, all but their text. It returns errClientGone when nobody waits any more.
func (a *answer) next(ctx context.Context, c *call) ([]event, error) {
	evs, err := c.take(ctx, a.events)
	if err != nil {
		return nil, errClientGone
	}
	a.events = evs
	return evs, nil
}

func (a *answer) apply(ev event) {
	ch := &a.choices[ev.index]
	if ev.admitted {
		ch.cached = ev.cached
	}
	if ev.hasToken {
		ch.tokens = append(ch.tokens, ev.token)
	}
	switch ev.end {
	case open:
		return
	case endLength:
		ch.reason = "length"
	case endAbort:
		ch.reason = "abort"
	case endCorrupt:
		ch.reason, a.failed = "error", corruptPage
	case endFailed:
		ch.reason, a.failed = "error", ev.why
	case endGone:
		a.gone = true
	}
	a.open--
}

// corruptPage is what an engine says that met one.
const corruptPage = "a KV page does not hold the bytes of its token chain"

// whole answers in one piece.
func (s *Server) whole(w http.ResponseWriter, r *http.Request, c *call, a *answer) error {
	a.begun = time.Now()
	for a.open > 0 {
		evs, err := a.next(r.Context(), c)
		if err != nil {
			return err
		}
		for _, ev := range evs {
			a.apply(ev)
		}
	}
	switch {
	case a.gone:
		s.fail(w, http.StatusInternalServerError, "", "the engine has stopped")
		return nil
	case a.failed != "":
		s.fail(w, http.StatusInternalServerError, "", a.failed)
		return nil
	}
	var b []byte
	for i := range a.choices {
		for _, t := range a.choices[i].tokens {
			b = engine.AppendText(b, t)
		}
		a.choices[i].text, b = string(b), b[:0]
	}
	if a.native {
		b = a.appendNative(b)
	} else {
		b = a.shape.appendAnswer(b, a.choices)
		if a.shape.flavor == VLLM {
			b = append(s.transferred(b, a.job), '}')
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	if a.fault.midAnswer() {
		return s.breakOff(w, r, a, b)
	}
	_, err := w.Write(b)
	return err
}

// breakOff writes the first half of an answer, then hangs or resets as the fault says.
func (s *Server) breakOff(w http.ResponseWriter, r *http.Request, a *answer, b []byte) error {
	if _, err := w.Write(b[:len(b)/2]); err != nil {
		return err
	}
	if err := http.NewResponseController(w).Flush(); err != nil {
		return err
	}
	if err := a.fault.chunk(r, s, a.fault.AfterChunks); err != nil {
		return err
	}
	_, err := w.Write(b[len(b)/2:])
	return err
}

// stream answers chunk by chunk, as the tokens come.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, c *call, a *answer) error {
	a.begun = time.Now()
	rc := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache")
	for a.open > 0 {
		evs, err := a.next(r.Context(), c)
		if err != nil {
			return err
		}
		a.buf = a.buf[:0]
		for _, ev := range evs {
			a.apply(ev)
			a.appendEvent(ev)
		}
		if err := s.flush(w, r, rc, a); err != nil {
			return err
		}
	}
	if a.gone {
		s.resetConn(r) // an engine that dies does not finish its streams
	}
	a.buf = a.buf[:0]
	if o := a.body.StreamOptions; o != nil && o.IncludeUsage && !a.native {
		a.buf = a.shape.appendUsageChunk(a.buf, a.choices)
	}
	a.buf = append(a.buf, "data: [DONE]\n\n"...)
	return s.flush(w, r, rc, a)
}

// flush sends the chunks that are ready: at once, or with a fault one by one, so that it meets exactly the chunk it is asked for.
func (s *Server) flush(w http.ResponseWriter, r *http.Request, rc *http.ResponseController, a *answer) error {
	for rest := a.buf; len(rest) > 0; {
		now := rest
		if a.fault != nil {
			now = rest[:bytes.Index(rest, []byte("\n\n"))+2]
			if err := a.fault.chunk(r, s, a.chunks); err != nil {
				return err
			}
			a.chunks++
		}
		if _, err := w.Write(now); err != nil {
			return err
		}
		if err := rc.Flush(); err != nil {
			return err
		}
		rest = rest[len(now):]
	}
	return nil
}

// appendEvent appends the chunks that ev makes.
func (a *answer) appendEvent(ev event) {
	ch := &a.choices[ev.index]
	switch {
	case ev.end == endCorrupt || ev.end == endFailed:
		a.buf = append(append(append(a.buf, "data: "...), errorBody(a.shape.flavor, http.StatusInternalServerError, "", a.failed)...), "\n\n"...)
	case !ev.hasToken && ev.end != endAbort:
		return
	case a.native:
		ch.text += string(engine.AppendText(nil, ev.token))
		a.buf = append(a.appendNativeChoice(append(a.buf, "data: "...), ev.index), "\n\n"...)
	default:
		if len(ch.tokens) <= 1 && ev.hasToken {
			a.buf = a.shape.appendFirst(a.buf, ev.index)
		}
		var text [4]byte
		out := text[:0]
		if ev.hasToken {
			out = engine.AppendText(out, ev.token)
		}
		a.buf = a.shape.appendChunk(a.buf, ev.index, out, ch.reason)
	}
}

// appendNative appends the answer of /generate: an object, or a list of them for several prompts.
func (a *answer) appendNative(b []byte) []byte {
	if len(a.choices) == 1 {
		return a.appendNativeChoice(b, 0)
	}
	for i := range a.choices {
		sep := byte(',')
		if i == 0 {
			sep = '['
		}
		b = a.appendNativeChoice(append(b, sep), i)
	}
	return append(b, ']')
}

func (a *answer) appendNativeChoice(b []byte, i int) []byte {
	ch := &a.choices[i]
	ids, _ := json.Marshal(ch.tokens) // numbers always have a JSON form
	id := a.rid
	if len(a.choices) > 1 {
		id += "_" + strconv.Itoa(i)
	}
	b = append(append(b, `{"text":`...), quote(ch.text)...)
	b = append(append(b, `,"output_ids":`...), ids...)
	b = append(append(b, `,"meta_info":{"id":`...), quote(id)...)
	b = append(b, `,"finish_reason":`...)
	switch ch.reason {
	case "":
		b = append(b, "null"...)
	case "abort":
		b = append(b, `{"type":"abort","message":"Aborted by AbortReq."}`...)
	default:
		b = append(strconv.AppendInt(append(b, `{"type":"length","length":`...), int64(len(ch.tokens)), 10), '}')
	}
	b = strconv.AppendInt(append(b, `,"prompt_tokens":`...), int64(ch.prompt), 10)
	b = append(appendWeightVersions(append(b, ','), len(ch.tokens)), `,"num_retractions":0,"reasoning_tokens":0`...)
	b = strconv.AppendInt(append(b, `,"completion_tokens":`...), int64(len(ch.tokens)), 10)
	b = strconv.AppendInt(append(b, `,"cached_tokens":`...), int64(ch.cached), 10)
	b = append(b, `,"cached_tokens_details":null,"dp_rank":null,"e2e_latency":`...)
	b = strconv.AppendFloat(b, time.Since(a.begun).Seconds(), 'g', -1, 64)
	b = strconv.AppendFloat(append(b, `,"response_sent_to_client_ts":`...), float64(time.Now().UnixNano())/1e9, 'f', -1, 64)
	return append(b, "}}"...)
}
