package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/api/body"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/tokens"
	"github.com/perigee-llm/perigee/internal/gateway/tokens/template"
)

const (
	// askLimit bounds a question to an engine for the length of a prompt: a busy engine answers in milliseconds, and a
	// request must not wait longer for its length than for a place.
	askLimit = time.Second
	// askedAnswer bounds the answer, in bytes: it lists every id, each with a comma, and something else besides.
	askedAnswer = 16 << 20
	askedToken  = 8
	askedHead   = 4 << 10
	// templateTokens is how many tokens a prompt may have beyond one for each byte of the request, which no tokenizer exceeds,
	// for what the template adds. An answer beyond is no count, and a sum of such would overflow.
	templateTokens = 1 << 16
)

// input is a request's prompt, measured.
type input struct {
	longest, total int64 // tokens; at least 1
	exact          bool
	source         tokens.Source
	ids            []uint32       // of a conversation that may be forwarded
	prompt         []uint32       // of a single prompt, for look-ups of its prefix; nil where nobody looks or they are not known
	forward        tokens.Outcome // empty: forwarding is off, or it is no conversation
}

// idBytes is what an id takes, in bytes, and idText its text where it is forwarded: six digits and a comma hold nearly every id.
const idBytes, idText = 4, 7

// kept is what it keeps in memory, in bytes. Both lists are the same one.
func (in *input) kept() int64 {
	return idBytes*int64(max(cap(in.prompt), cap(in.ids))) + idText*int64(len(in.ids))
}

// measure finds out how long the input is: as the client counted it, by the model's tokenizer, by an engine's, or by the number
// of its bytes, whichever is there first.
func (c *call) measure() input {
	p := c.facts.Prompt
	in := input{longest: int64(max(p.Longest, 1)), total: int64(max(p.Total, 1)), exact: p.Exact}
	switch {
	case p.Kind == body.PromptIDs || p.Kind == body.PromptIDLists:
		in.source = tokens.Given
		if c.model.Prefixes && p.Kind == body.PromptIDs {
			if n := idBytes * int64(p.Longest); n < smallText || c.holdWork(n) {
				in.prompt = body.AppendIDs(make([]uint32, 0, p.Longest), c.raw(body.Prompt))
			} else {
				c.notEncoded(reasonNoMemory)
			}
		}
	case c.model.Tokens != nil:
		c.tokenize(&in)
	case c.model.AskEngines:
		c.ask(&in)
	}
	c.v.series[c.model].inputs.of(c.s.Metrics.Inputs, c.model.ID, in.source.String()).Inc()
	if in.forward != "" {
		c.s.Metrics.InputIDs.WithLabelValues(c.model.ID, string(in.forward)).Inc()
	}
	return in
}

// tokenize measures by the model's own tokenizer. Where that has nothing to count the estimate stands.
func (c *call) tokenize(in *input) {
	r := c.tokenRequest()
	e := encoding{c: c, patience: measurePatience}
	if !e.begin(&r) {
		return // the estimate stands
	}
	defer func() { e.settle(in); e.leave() }()
	r.Dearer = e.dearer
	f, ok := c.model.Tokens.Measure(r)
	switch {
	case errors.Is(f.Err, tokens.ErrLongWord):
		c.notEncoded(reasonLongWord)
	case errors.Is(f.Err, tokens.ErrDear):
		c.notEncoded(e.reason)
	}
	own := c.callerIDs()
	if ok {
		in.longest, in.total = int64(max(f.Longest, 1)), int64(max(f.Total, 1))
		in.exact, in.source = f.Exact && !own, f.Source // the engine may read those instead
		if c.model.Prefixes && !own && f.Source != tokens.Bare {
			in.prompt = f.IDs
		}
	}
	switch {
	case !c.model.ForwardIDs || c.facts.Kind != body.Chat:
	case c.facts.Has(body.InputIDs):
		in.forward = tokens.CallerIDs
	default:
		if in.forward = tokens.Forwardable(r, f); in.forward == tokens.Forwarded {
			in.ids = f.IDs
		}
	}
}

// callerIDs tells whether an engine gets token ids that the client made.
func (c *call) callerIDs() bool {
	return present(c.raw(body.InputIDs)) && !c.v.Settings.Stripped.Has(body.InputIDs)
}

// tokenRequest gathers what the length depends on.
func (c *call) tokenRequest() tokens.Request {
	r := tokens.Request{
		Tools: c.raw(body.Tools), Documents: c.raw(body.Documents), Kwargs: c.raw(body.ChatTemplateKwargs),
		Functions:          present(c.raw(body.Functions)),
		NoSpecial:          string(c.raw(body.AddSpecialTokens)) == "false",
		NoGenerationPrompt: string(c.raw(body.AddGenerationPrompt)) == "false",
		ContinueFinal:      string(c.raw(body.ContinueFinalMessage)) == "true",
	}
	for _, k := range [...]body.Key{body.ChatTemplate, body.Reasoning, body.ReasoningEffort, body.Task} {
		r.Steered = r.Steered || present(c.raw(k))
	}
	for _, k := range [...]body.Key{body.AddSpecialTokens, body.AddGenerationPrompt, body.ContinueFinalMessage} {
		switch string(c.raw(k)) {
		case "", "null", "true", "false":
		default:
			r.Steered = true // engines read 0 and "no" as false, too
		}
	}
	if c.facts.Kind == body.Completion {
		r.Prompt = c.raw(body.Prompt)
	} else {
		r.Messages = c.raw(body.Messages)
		r.Steered = r.Steered || string(c.raw(body.AddSpecialTokens)) == "true" // vLLM then begins twice
	}
	return r
}

// raw returns the raw value of a field, nil where it is absent.
func (c *call) raw(k body.Key) []byte { return c.facts.Value(k).Of(c.body) }

func present(raw []byte) bool { return len(raw) > 0 && string(raw) != "null" }

// forwardIDs puts the conversation's ids into a body for an engine that takes them in place of rendering it again.
func (c *call) forwardIDs(w *fleet.Worker, patch *body.Patch) {
	if len(c.in.ids) == 0 || w.Kind != fleet.SGLang {
		return
	}
	text := make([]byte, 0, 2+idText*len(c.in.ids))
	text = append(text, '[')
	for i, id := range c.in.ids {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendUint(text, uint64(id), 10)
	}
	patch.Set(body.InputIDs, append(text, ']'))
}

// ask has an engine count the prompt. Whatever goes wrong, the estimate stands: a length is worth a moment and no failure.
func (c *call) ask(in *input) {
	w := c.someEngine()
	if w == nil {
		return
	}
	// A question is made of what the body has, value by value, and its answer has a number for each token.
	r := c.tokenRequest()
	e := encoding{c: c, patience: measurePatience}
	if !e.begin(&r) {
		return
	}
	defer func() { e.settle(in) }()
	question, exact := e.question(w, &r)
	if question == nil {
		return
	}
	span := c.trace.Leg(w.ID, w.URL, "tokenize", 0)
	header := span.Send(http.MethodPost, "/tokenize", c.engineHeader(false), time.Now())
	most := int64(len(c.body)) + templateTokens
	n, ids, err := c.s.askTokens(c.r.Context(), w, question, header, min(askedAnswer, askedHead+askedToken*most), c.model.Prefixes)
	if err != nil {
		span.Blame("not_counted", err.Error())
	}
	span.End(0, "", time.Now())
	if err != nil || n < 1 || n > most {
		return
	}
	in.longest, in.total, in.source, in.exact = n, n, tokens.Asked, exact && !c.callerIDs()
	if in.exact && int64(len(ids)) == n {
		in.prompt = ids
	}
}

// someEngine returns a live engine of the model whose family can count, another one for each request.
func (c *call) someEngine() (found *fleet.Worker) {
	now, seen := time.Now(), uint64(0)
	for w := range c.v.view(c.s.Registry).All() {
		if w.Kind == fleet.UnknownKind || w.Stage == fleet.Decode || !w.Serves(c.model.ID) || !c.s.Registry.Admits(w, now) {
			continue
		}
		if seen++; c.key%seen == 0 { // nearly even, without a list
			found = w
		}
	}
	return found
}

// question makes a question in the place that it has, and gives the place back: the engine's answer is waited for without one.
func (e *encoding) question(w *fleet.Worker, r *tokens.Request) (text []byte, exact bool) {
	defer e.leave() // also if it panics
	return e.c.question(w, r)
}

// question is the body of a request to /tokenize, nil where the engine cannot be asked. SGLang's takes no messages; it counts
// their bare text. So does vLLM's where there is something else in them than text, as an image that would be sent twice.
func (c *call) question(w *fleet.Worker, r *tokens.Request) (text []byte, exact bool) {
	q := map[string]json.RawMessage{"model": body.Quote(string(c.facts.Model))}
	set := func(keys ...body.Key) {
		for _, k := range keys {
			if raw := c.raw(k); present(raw) {
				q[k.String()] = raw
			}
		}
	}
	switch {
	case len(r.Prompt) > 0 && r.Prompt[0] == '"':
		q["prompt"], exact = r.Prompt, !r.Steered
		set(body.AddSpecialTokens)
	case r.Prompt != nil || c.facts.Kind != body.Chat:
		return nil, false // a list: an engine counts one text
	case w.Kind == fleet.VLLM && tokens.TextOnly(r.Messages):
		q["messages"], exact = r.Messages, !r.Steered && !present(r.Documents)
		set(body.Tools, body.ChatTemplateKwargs, body.AddGenerationPrompt, body.ContinueFinalMessage, body.AddSpecialTokens)
	default:
		bare, form, _ := template.Prompt(nil, nil, template.Input{Messages: r.Messages})
		if form == template.Absent {
			return nil, false
		}
		q["prompt"] = body.Quote(string(bare))
	}
	text, err := json.Marshal(q)
	if err != nil { // every value is JSON that the scan accepted
		return nil, false
	}
	return text, exact
}

// askTokens makes the call and reads so many bytes of its answer at most. The ids are read only if they are wanted.
func (s *Server) askTokens(ctx context.Context, w *fleet.Worker, question []byte, header http.Header, limit int64, wanted bool) (n int64, ids []uint32, err error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	req := (&http.Request{
		Method: http.MethodPost, URL: engineURL(w.URL, "/tokenize"), Header: header,
		ContentLength: int64(len(question)), Body: newBodyReader([][]byte{question}),
	}).WithContext(ctx)
	resp, err := s.Engines.RoundTrip(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return 0, nil, errors.New("the engine does not count")
	}
	var answer struct {
		Count  int64           `json:"count"`
		Tokens json.RawMessage `json:"tokens"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, limit)).Decode(&answer); err != nil {
		return 0, nil, err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1)) // to its end, so that the connection is kept
	if wanted && json.Unmarshal(answer.Tokens, &ids) != nil {
		ids = nil // a list of lists, or none: the count stands without them
	}
	return answer.Count, ids, nil
}
