package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"reflect"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/tokens"
)

var (
	errNoTokenizer   = &Error{Status: http.StatusNotImplemented, Code: "no_tokenizer", Message: "this gateway has no tokenizer for the model"}
	errUnprocessable = &Error{Status: http.StatusUnprocessableEntity, Code: "unprocessable", Message: "the request has a field that this path does not know, or one of another type"}
)

var errBusy = &Error{Status: http.StatusServiceUnavailable, Code: "gateway_overloaded", Message: "this gateway encodes as many long texts as it may", RetryAfter: 1}

// tokenizeRequest is the body of POST /tokenize: a prompt or messages.
type tokenizeRequest struct {
	Model               string          `json:"model"`
	Prompt              *string         `json:"prompt"`
	Messages            json.RawMessage `json:"messages"`
	Tools               json.RawMessage `json:"tools"`
	AddSpecialTokens    *bool           `json:"add_special_tokens"`
	AddGenerationPrompt *bool           `json:"add_generation_prompt"`
}

type tokenizeAnswer struct {
	Model  string   `json:"model"`
	Tokens []uint32 `json:"tokens"`
	Count  int      `json:"count"`
}

type detokenizeRequest struct {
	Model             string          `json:"model"`
	Tokens            json.RawMessage `json:"tokens"`
	SkipSpecialTokens bool            `json:"skip_special_tokens"`
}

type detokenizeAnswer struct {
	Model string `json:"model"`
	Text  string `json:"text"`
}

// maxDetokenized bounds the ids of one request: four million take 16 MiB here, and no engine has a longer context.
const maxDetokenized = 4 << 20

// tokenizeText answers POST /tokenize and /v1/tokenize.
func (s *Server) tokenizeText(w http.ResponseWriter, r *http.Request) {
	var q tokenizeRequest
	m, e := s.tokenQuestion(w, r, &q, func() string { return q.Model })
	if e != nil {
		e.write(w)
		return
	}
	size := len(q.Messages)
	if q.Prompt != nil {
		size += len(*q.Prompt)
	}
	if !s.encoders.enter(r.Context(), size, s.current.Load().Settings.RequestTimeout) {
		errBusy.write(w)
		return
	}
	ids, e := s.tokensOf(m, &q, size)
	if e != nil {
		e.write(w)
		return
	}
	writeJSON(w, http.StatusOK, tokenizeAnswer{Model: q.Model, Tokens: ids, Count: len(ids)})
}

// tokensOf returns the tokens that are asked for, and gives the place up; none is a list too.
func (s *Server) tokensOf(m *Model, q *tokenizeRequest, size int) ([]uint32, *Error) {
	defer s.encoders.leave(size)
	var ids []uint32
	switch chat := present(q.Messages); {
	case q.Prompt != nil && !chat:
		ids = m.Tokens.Encode(*q.Prompt, q.AddSpecialTokens == nil || *q.AddSpecialTokens)
	case q.Prompt == nil && chat:
		f, _ := m.Tokens.Measure(tokens.Request{
			Messages: q.Messages, Tools: q.Tools, NoGenerationPrompt: q.AddGenerationPrompt != nil && !*q.AddGenerationPrompt,
		})
		if f.Source != tokens.Rendered { // ids of something else than the conversation would be no answer
			return nil, badRequest("the messages cannot be rendered by the model's chat template")
		}
		ids = f.IDs
	default:
		return nil, badRequest("a prompt or messages are needed, and not both")
	}
	if ids == nil {
		ids = []uint32{}
	}
	return ids, nil
}

// detokenizeIDs answers POST /detokenize and /v1/detokenize. Ids that no token has add nothing to the text.
func (s *Server) detokenizeIDs(w http.ResponseWriter, r *http.Request) {
	var q detokenizeRequest
	m, e := s.tokenQuestion(w, r, &q, func() string { return q.Model })
	if e != nil {
		e.write(w)
		return
	}
	if !present(q.Tokens) {
		badRequest("tokens are needed").write(w)
		return
	}
	if bytes.Count(q.Tokens, []byte{','}) >= maxDetokenized {
		errBodyTooLarge.write(w)
		return
	}
	var ids []uint32
	if bytes.IndexByte(q.Tokens, 'n') >= 0 || json.Unmarshal(q.Tokens, &ids) != nil { // null would be read as 0
		errUnprocessable.write(w)
		return
	}
	if !s.encoders.enter(r.Context(), len(q.Tokens), s.current.Load().Settings.RequestTimeout) {
		errBusy.write(w)
		return
	}
	text, ok := s.textOf(m, ids, &q)
	if !ok {
		badRequest("the text of these tokens is longer than this gateway's bodies").write(w)
		return
	}
	writeJSON(w, http.StatusOK, detokenizeAnswer{Model: q.Model, Text: text})
}

// textOf returns the text that is asked for, and gives the place up.
func (s *Server) textOf(m *Model, ids []uint32, q *detokenizeRequest) (string, bool) {
	defer s.encoders.leave(len(q.Tokens))
	return m.Tokens.Decode(ids, q.SkipSpecialTokens, int(s.current.Load().Settings.MaxBody))
}

// tokenQuestion reads a body into q, a pointer to a struct, and finds the model that it names, which has a tokenizer.
func (s *Server) tokenQuestion(w http.ResponseWriter, r *http.Request, q any, model func() string) (*Model, *Error) {
	v := s.current.Load()
	c := &call{s: s, v: v, w: w, r: r, rc: *http.NewResponseController(w), started: time.Now(), id: requestID(r.Header)}
	w.Header()[headerRequestID] = []string{c.id}
	caller, e := v.admit(v.Keys, w, r)
	if e != nil {
		return nil, e
	}
	defer c.letGo()
	text, e := c.readBody()
	if e != nil {
		return nil, e
	}
	if !json.Valid(text) {
		return nil, badRequest("the body is not JSON")
	}
	if !onlyKnown(text, q) || json.Unmarshal(text, q) != nil {
		return nil, errUnprocessable
	}
	m := v.models[model()]
	if m == nil || !v.allows(caller, m) {
		return nil, &Error{Status: http.StatusNotFound, Code: "model_not_found", Message: "this gateway does not serve the model that the request names"}
	}
	if m.Tokens == nil {
		return nil, errNoTokenizer
	}
	return m, nil
}

// onlyKnown tells whether text is an object whose keys are those of the struct that q points to, letter for letter:
// encoding/json takes PROMPT for prompt.
func onlyKnown(text []byte, q any) bool {
	var fields map[string]json.RawMessage
	if json.Unmarshal(text, &fields) != nil || fields == nil {
		return false
	}
	for t, i := reflect.TypeOf(q).Elem(), 0; i < t.NumField(); i++ {
		delete(fields, t.Field(i).Tag.Get("json"))
	}
	return len(fields) == 0
}
