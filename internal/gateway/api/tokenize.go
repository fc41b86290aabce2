package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/tokens"
)

var (
	errNoTokenizer   = &Error{Status: http.StatusNotImplemented, Code: "no_tokenizer", Message: "this gateway has no tokenizer for the model"}
	errUnprocessable = &Error{Status: http.StatusUnprocessableEntity, Code: "unprocessable", Message: "the request has a field that this path does not know, or one of another type"}
)

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
	Model             string   `json:"model"`
	Tokens            []uint32 `json:"tokens"`
	SkipSpecialTokens bool     `json:"skip_special_tokens"`
}

type detokenizeAnswer struct {
	Model string `json:"model"`
	Text  string `json:"text"`
}

// tokenizeText answers POST /tokenize and /v1/tokenize.
func (s *Server) tokenizeText(w http.ResponseWriter, r *http.Request) {
	var q tokenizeRequest
	m, e := s.tokenQuestion(w, r, &q, func() string { return q.Model })
	if e != nil {
		e.write(w)
		return
	}
	var ids []uint32
	switch {
	case q.Prompt != nil && q.Messages == nil:
		ids = m.Encode(*q.Prompt, q.AddSpecialTokens == nil || *q.AddSpecialTokens)
	case q.Prompt == nil && q.Messages != nil:
		f, _ := m.Measure(tokens.Request{
			Messages: q.Messages, Tools: q.Tools, NoGenerationPrompt: q.AddGenerationPrompt != nil && !*q.AddGenerationPrompt,
		})
		if f.Source != tokens.Rendered { // ids of something else than the conversation would be no answer
			badRequest("the messages cannot be rendered by the model's chat template").write(w)
			return
		}
		ids = f.IDs
	default:
		badRequest("a prompt or messages are needed, and not both").write(w)
		return
	}
	if ids == nil {
		ids = []uint32{} // an empty text has none, which is a list too
	}
	writeJSON(w, http.StatusOK, tokenizeAnswer{Model: q.Model, Tokens: ids, Count: len(ids)})
}

// detokenizeIDs answers POST /detokenize and /v1/detokenize. Ids that no token has add nothing to the text.
func (s *Server) detokenizeIDs(w http.ResponseWriter, r *http.Request) {
	var q detokenizeRequest
	m, e := s.tokenQuestion(w, r, &q, func() string { return q.Model })
	if e != nil {
		e.write(w)
		return
	}
	if q.Tokens == nil {
		badRequest("tokens are needed").write(w)
		return
	}
	writeJSON(w, http.StatusOK, detokenizeAnswer{Model: q.Model, Text: m.Decode(q.Tokens, q.SkipSpecialTokens)})
}

// tokenQuestion reads a body into q and finds the model that it names.
func (s *Server) tokenQuestion(w http.ResponseWriter, r *http.Request, q any, model func() string) (*tokens.Model, *Error) {
	v := s.current.Load()
	caller, e := v.admit(v.Keys, w, r)
	if e != nil {
		return nil, e
	}
	c := &call{s: s, v: v, w: w, r: r, rc: http.NewResponseController(w), started: time.Now()}
	text, e := c.readBody()
	if e != nil {
		return nil, e
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(q); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return nil, badRequest("the body is not JSON")
		}
		return nil, errUnprocessable
	}
	if d.More() {
		return nil, badRequest("the body is not one JSON value")
	}
	m := v.models[model()]
	if m == nil || !v.allows(caller, m) {
		return nil, &Error{Status: http.StatusNotFound, Code: "model_not_found", Message: "this gateway does not serve the model that the request names"}
	}
	if m.Tokens == nil {
		return nil, errNoTokenizer
	}
	return m.Tokens, nil
}
