package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/api/body"
	"github.com/perigee-llm/perigee/internal/gateway/tokens"
)

var (
	errNoTokenizer   = &Error{Status: http.StatusNotImplemented, Code: "no_tokenizer", Message: "this gateway has no tokenizer for the model"}
	errUnprocessable = &Error{Status: http.StatusUnprocessableEntity, Code: "unprocessable", Message: "the request has a field that this path does not know, or one of another type"}
)

var errBusy = &Error{Status: http.StatusServiceUnavailable, Code: "gateway_overloaded", Message: "this gateway encodes as many long texts as it may", RetryAfter: 1}

var errLongWord = badRequest("the text has a word of more than " + strconv.Itoa(tokens.MaxWord>>10) + " KiB, which is not encoded here")

// tokenizeRequest is the body of POST /tokenize: a prompt or messages. What is a list or an object of it is a part of the body's text.
type tokenizeRequest struct {
	Model             string
	Prompt            *string
	Messages, Tools   []byte
	WithoutSpecial    bool // add_special_tokens: false
	WithoutGeneration bool // add_generation_prompt: false
}

func (*tokenizeRequest) names() []string {
	return []string{"model", "prompt", "messages", "tools", "add_special_tokens", "add_generation_prompt"}
}

func (q *tokenizeRequest) read(fields []body.Field) bool {
	q.Messages, q.Tools = fields[2].Raw, fields[3].Raw
	add, generate := true, true
	if raw := fields[1].Raw; present(raw) {
		text, ok := body.Text(raw)
		if !ok {
			return false
		}
		q.Prompt = &text
	}
	ok := readSwitch(fields[4].Raw, &add) && readSwitch(fields[5].Raw, &generate)
	q.WithoutSpecial, q.WithoutGeneration = !add, !generate
	return ok
}

func (q *tokenizeRequest) size() int64 {
	n := len(q.Messages) + len(q.Tools)
	if q.Prompt != nil {
		n += len(*q.Prompt)
	}
	return int64(n)
}

func (q *tokenizeRequest) keeps(text int64) int64 {
	if q.Messages == nil && q.Tools == nil {
		text = 0
	}
	if q.Prompt != nil {
		text += int64(len(*q.Prompt))
	}
	return text
}

type detokenizeRequest struct {
	Model             string
	Tokens            []byte // a part of the body's text
	SkipSpecialTokens bool
}

func (*detokenizeRequest) names() []string { return []string{"model", "tokens", "skip_special_tokens"} }

func (q *detokenizeRequest) read(fields []body.Field) bool {
	q.Tokens = fields[1].Raw
	return readSwitch(fields[2].Raw, &q.SkipSpecialTokens)
}

func (q *detokenizeRequest) size() int64 { return int64(len(q.Tokens)) }

func (*detokenizeRequest) keeps(text int64) int64 { return text }

// readSwitch sets to to what raw is, and leaves it where raw is not there or null. false: it is neither true nor false.
func readSwitch(raw []byte, to *bool) bool {
	switch {
	case !present(raw):
	case string(raw) == "true":
		*to = true
	case string(raw) == "false":
		*to = false
	default:
		return false
	}
	return true
}

// question is a body of one of the two.
type question interface {
	// names are the keys that there are, the model's first.
	names() []string
	// read takes what is in the fields of these names. It is false for a value of another type.
	read(fields []body.Field) bool
	// size is how much there is to be encoded or decoded, in bytes.
	size() int64
	// keeps is what it has in memory, where the body's text takes so many bytes.
	keeps(text int64) int64
}

// maxDetokenized bounds the ids of one request: four million take 16 MiB here, and no engine has a longer context.
const maxDetokenized = 4 << 20

// tokenizeText answers POST /tokenize and /v1/tokenize.
func (s *Server) tokenizeText(w http.ResponseWriter, r *http.Request) {
	var q tokenizeRequest
	s.answerQuestion(w, r, &q, &q.Model, func(c *call, m *Model) *Error {
		ids, e := c.tokensOf(m, &q)
		if e == nil {
			c.writeTokens(q.Model, ids)
		}
		return e
	})
}

// detokenizeIDs answers POST /detokenize and /v1/detokenize. Ids that no token has add nothing to the text.
func (s *Server) detokenizeIDs(w http.ResponseWriter, r *http.Request) {
	var q detokenizeRequest
	s.answerQuestion(w, r, &q, &q.Model, func(c *call, m *Model) *Error {
		text, e := c.textOf(m, &q)
		if e == nil {
			c.writeText(q.Model, text)
		}
		return e
	})
}

// answerQuestion reads a body into q, with the name of its model in model, and has answer write an answer or say what is wrong. From the body's first byte to the
// answer's last what the request has in memory counts among what all requests may hold: the body, its decoded copies, what encoding works with, and what comes
// out of it.
func (s *Server) answerQuestion(w http.ResponseWriter, r *http.Request, q question, model *string, answer func(*call, *Model) *Error) {
	v := s.current.Load()
	c := &call{s: s, v: v, w: w, r: r, rc: *http.NewResponseController(w), started: time.Now(), ids: [1]string{requestID(r.Header)}}
	w.Header()[headerRequestID] = c.ids[:]
	defer c.letGo()
	defer c.extend() // for what the server has still to write
	c.rest()
	m, e := c.readQuestion(q, model)
	if e == nil {
		e = answer(c, m)
		c.model = m
		c.countSlow()
	}
	if sw, ok := w.(*statusWriter); ok {
		sw.slow = c.stalled
	}
	if e != nil {
		c.letGo()
		c.extend()
		s.refuse(w, e)
	}
}

// readQuestion reads a body into q, and finds the model that it names, which has a tokenizer. What is held then is what q has. Nothing is made of a body
// before its model is known to be there.
func (c *call) readQuestion(q question, model *string) (*Model, *Error) {
	caller, e := c.v.admit(c.v.Keys, c.w, c.r)
	if e != nil {
		return nil, e
	}
	if !c.hold(c.headBytes()) {
		return nil, errOverloaded
	}
	text, e := c.readBody()
	if e != nil {
		return nil, e
	}
	var room [6]body.Field
	fields := room[:0]
	for _, name := range q.names() {
		fields = append(fields, body.Field{Name: name})
	}
	switch err := body.ReadFields(text, fields); {
	case errors.Is(err, body.ErrUnknownKey), errors.Is(err, body.ErrNotObject):
		return nil, errUnprocessable
	case err != nil:
		return nil, badRequest(err.Error())
	}
	if !c.hold(2 * int64(len(text))) { // a text that is decoded is there twice for a moment
		return nil, errOverloaded
	}
	if raw := fields[0].Raw; present(raw) {
		var ok bool
		if *model, ok = body.Text(raw); !ok {
			return nil, errUnprocessable
		}
	}
	m := c.v.models[*model]
	switch {
	case m == nil || !c.v.allows(caller, m):
		return nil, &Error{Status: http.StatusNotFound, Code: "model_not_found", Message: "this gateway does not serve the model that the request names"}
	case m.Tokens == nil:
		return nil, errNoTokenizer
	case !q.read(fields):
		return nil, errUnprocessable
	}
	if !c.keep(c.headBytes() + q.keeps(int64(cap(text)))) {
		return nil, errOverloaded
	}
	return m, nil
}

// tokensOf returns the tokens that are asked for, which are held; what is asked is held no more. None is a list too.
func (c *call) tokensOf(m *Model, q *tokenizeRequest) ([]uint32, *Error) {
	size := int(q.size())
	e := encoding{c: c, patience: c.v.Settings.RequestTimeout}
	if !e.enter(size) {
		return nil, e.refusal
	}
	defer e.leave()
	if !e.hold(encodingNeeds(size-len(q.Messages)-len(q.Tools), q.Messages, q.Tools)) {
		return nil, e.refusal
	}
	var ids []uint32
	switch chat := present(q.Messages); {
	case q.Prompt != nil && !chat:
		if ids = m.Tokens.Encode(*q.Prompt, !q.WithoutSpecial); ids == nil {
			return nil, errLongWord
		}
	case q.Prompt == nil && chat:
		f, _ := m.Tokens.Measure(tokens.Request{
			Messages: q.Messages, Tools: q.Tools, NoGenerationPrompt: q.WithoutGeneration, Dearer: e.dearer,
		})
		switch {
		case errors.Is(f.Err, tokens.ErrLongWord):
			return nil, errLongWord
		case errors.Is(f.Err, tokens.ErrDear):
			return nil, e.refusal
		}
		if f.Source != tokens.Rendered { // ids of something else than the conversation would be no answer
			return nil, badRequest("the messages cannot be rendered by the model's chat template")
		}
		ids = f.IDs
	default:
		return nil, badRequest("a prompt or messages are needed, and not both")
	}
	q.Prompt, q.Messages, q.Tools = nil, nil, nil
	if !c.keep(idBytes * int64(cap(ids))) {
		return nil, errOverloaded
	}
	return ids, nil
}

// textOf returns the text that is asked for, which is held; what is asked is held no more.
func (c *call) textOf(m *Model, q *detokenizeRequest) (string, *Error) {
	if !present(q.Tokens) {
		return "", badRequest("tokens are needed")
	}
	n := bytes.Count(q.Tokens, []byte{','}) + 1
	if n > maxDetokenized {
		return "", errBodyTooLarge
	}
	if !c.hold(2 * idBytes * int64(n)) { // a list that grows is there twice for a moment
		return "", errOverloaded
	}
	var ids []uint32
	if bytes.IndexByte(q.Tokens, 'n') >= 0 || json.Unmarshal(q.Tokens, &ids) != nil { // null would be read as 0
		return "", errUnprocessable
	}
	size := len(q.Tokens)
	if !c.s.encoders.enter(c.r.Context(), size, c.v.Settings.RequestTimeout) {
		return "", errBusy
	}
	defer c.s.encoders.leave(size)
	if !c.hold(3 * min(m.Tokens.TokenBytes(ids), c.v.Settings.MaxBody)) { // as Decode bounds it
		return "", errOverloaded
	}
	text, ok := m.Tokens.Decode(ids, q.SkipSpecialTokens, int(c.v.Settings.MaxBody))
	if !ok {
		return "", badRequest("the text of these tokens is longer than this gateway's bodies")
	}
	q.Tokens = nil
	if !c.keep(int64(len(text))) {
		return "", errOverloaded
	}
	return text, nil
}

// writeTokens answers with a list of ids. It is written in pieces: as one text it would be twice as long as the ids.
func (c *call) writeTokens(model string, ids []uint32) {
	p := c.beginJSON()
	p.text(`{"model":`)
	p.quoted(model)
	p.text(`,"tokens":[`)
	for i, id := range ids {
		if i > 0 {
			p.text(",")
		}
		p.number(uint64(id))
	}
	p.text(`],"count":`)
	p.number(uint64(len(ids)))
	p.text("}\n")
	p.end()
}

// writeText answers with a text, in pieces.
func (c *call) writeText(model, text string) {
	p := c.beginJSON()
	p.text(`{"model":`)
	p.quoted(model)
	p.text(`,"text":`)
	p.quoted(text)
	p.text("}\n")
	p.end()
}
