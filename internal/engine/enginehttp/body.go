package enginehttp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"sync"

	"github.com/perigee-llm/perigee/internal/engine"
)

// maxBody bounds a request body. It is twice the gateway's own limit, so that a limit which a client meets is the gateway's.
const maxBody = 64 << 20

// maxPrompts bounds the prompts of one request: each takes a place in the queue, and one request must not fill it.
const maxPrompts = 128

// genBody is what the simulator reads of a generation request. All other fields are accepted and ignored.
type genBody struct {
	Model    string          `json:"model"`
	Prompt   json.RawMessage `json:"prompt"`
	Messages []chatMessage   `json:"messages"`

	MaxTokens           *int  `json:"max_tokens"`
	MaxCompletionTokens *int  `json:"max_completion_tokens"`
	N                   *int  `json:"n"`
	Stream              bool  `json:"stream"`
	StreamOptions       *opts `json:"stream_options"`

	CacheSalt string          `json:"cache_salt"`
	ExtraKey  string          `json:"extra_key"`
	LoraPath  string          `json:"lora_path"`
	RequestID string          `json:"request_id"`
	RID       json.RawMessage `json:"rid"`

	// Of separated pairs: SGLang's and vLLM's.
	BootstrapHost    json.RawMessage `json:"bootstrap_host"`
	BootstrapPort    json.RawMessage `json:"bootstrap_port"`
	Room             json.RawMessage `json:"bootstrap_room"`
	KVTransferParams json.RawMessage `json:"kv_transfer_params"`

	// SGLang's own /generate.
	Text     json.RawMessage `json:"text"`
	InputIDs json.RawMessage `json:"input_ids"`
	Sampling *struct {
		MaxNewTokens *int `json:"max_new_tokens"`
		N            *int `json:"n"`
	} `json:"sampling_params"`

	ids [][]uint32 // token-id prompts, taken out of the body before it is decoded
}

type opts struct {
	IncludeUsage bool `json:"include_usage"`
}

type chatMessage struct {
	Role    string      `json:"role"`
	Content chatContent `json:"content"`
}

// chatContent reads a string, null, or parts, of which it keeps the text.
type chatContent string

func (c *chatContent) UnmarshalJSON(b []byte) error {
	switch b[0] {
	case 'n':
		return nil
	case '"':
		return json.Unmarshal(b, (*string)(c))
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if err := json.Unmarshal(b, &parts); err != nil {
		return errors.New("content is neither a string nor a list of parts")
	}
	for _, p := range parts {
		*c += chatContent(p.Text)
	}
	return nil
}

var bodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// readBody reads and decodes a JSON body. The error is an *http.MaxBytesError for one beyond maxBody, a transport error, or says
// what is wrong with the JSON.
func readBody(w http.ResponseWriter, r *http.Request, into *genBody) error {
	buf := bodies.Get().(*bytes.Buffer)
	defer bodies.Put(buf)
	buf.Reset()
	if n := r.ContentLength; n > 0 && n <= maxBody {
		buf.Grow(int(n) + bytes.MinRead)
	}
	if _, err := io.Copy(buf, http.MaxBytesReader(w, r.Body, maxBody)); err != nil {
		return err
	}
	body := buf.Bytes()
	if ids, from, to, ok := findTokenIDs(body); ok {
		into.ids = ids
		// What is left is small: it is decoded without the ids, which are most of such a body.
		body = append(append(append(make([]byte, 0, len(body)-(to-from)+4), body[:from]...), "null"...), body[to:]...)
	}
	return json.Unmarshal(body, into)
}

// findTokenIDs looks for "prompt" or "input_ids" in the object that body is, and reads its value if that is a list of token ids or a
// list of such lists. encoding/json takes a millisecond for 15,000 ids, this a tenth of it. ok is false for anything else, malformed
// bodies included: then the ordinary way decides.
func findTokenIDs(b []byte) (ids [][]uint32, from, to int, ok bool) {
	i := skipSpace(b, 0)
	if i >= len(b) || b[i] != '{' {
		return nil, 0, 0, false
	}
	for i++; ; i++ {
		i = skipSpace(b, i)
		end := skipString(b, i)
		if end < 0 {
			return nil, 0, 0, false
		}
		key := b[i+1 : end-1]
		i = skipSpace(b, end)
		if i >= len(b) || b[i] != ':' {
			return nil, 0, 0, false
		}
		i = skipSpace(b, i+1)
		if string(key) == "prompt" || string(key) == "input_ids" {
			ids, to = parseTokenIDs(b, i)
			return ids, i, to, ids != nil
		}
		if i = skipSpace(b, skipValue(b, i)); i >= len(b) || i < 0 || b[i] != ',' {
			return nil, 0, 0, false
		}
	}
}

// parseTokenIDs reads [1,2] or [[1,2],[3]] at b[i:]. ids is nil if it is anything else.
func parseTokenIDs(b []byte, i int) (ids [][]uint32, end int) {
	if i >= len(b) || b[i] != '[' {
		return nil, 0
	}
	if j := skipSpace(b, i+1); j < len(b) && b[j] != '[' {
		one, end := parseIDs(b, i)
		if one == nil {
			return nil, 0
		}
		return [][]uint32{one}, end
	}
	for {
		i = skipSpace(b, i+1)
		one, end := parseIDs(b, i)
		if one == nil {
			return nil, 0
		}
		ids = append(ids, one)
		if i = skipSpace(b, end); i >= len(b) {
			return nil, 0
		}
		switch b[i] {
		case ',':
		case ']':
			return ids, i + 1
		default:
			return nil, 0
		}
	}
}

// parseIDs reads a list of at least one token id at b[i:]. It returns nil for anything else, an id beyond 32 bits too.
func parseIDs(b []byte, i int) (ids []uint32, end int) {
	if i >= len(b) || b[i] != '[' {
		return nil, 0
	}
	// An id and its comma take about six bytes; a short list in a long body shall not take more than 256 KiB for that guess.
	ids = make([]uint32, 0, min((len(b)-i)/6+1, 1<<16))
	for i++; ; i++ {
		i = skipSpace(b, i)
		v, digits := uint64(0), i
		for i < len(b) && b[i]-'0' <= 9 && v <= math.MaxUint32 {
			v = v*10 + uint64(b[i]-'0')
			i++
		}
		leadingZero := i-digits > 1 && b[digits] == '0'
		if i == digits || v > math.MaxUint32 || leadingZero {
			return nil, 0
		}
		ids = append(ids, uint32(v))
		if i < len(b) && b[i] == ',' {
			continue
		}
		if i = skipSpace(b, i); i < len(b) && b[i] == ']' {
			return ids, i + 1
		} else if i >= len(b) || b[i] != ',' {
			return nil, 0
		}
	}
}

func skipSpace(b []byte, i int) int {
	for i >= 0 && i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// skipString returns the index behind the string that begins at i, or -1.
func skipString(b []byte, i int) int {
	if i >= len(b) || b[i] != '"' {
		return -1
	}
	for i++; i < len(b); i++ {
		switch b[i] {
		case '"':
			return i + 1
		case '\\':
			i++
		}
	}
	return -1
}

// skipValue returns the index behind the value that begins at i, or -1. It does not check the value.
func skipValue(b []byte, i int) int {
	depth := 0
	for i < len(b) {
		switch c := b[i]; {
		case c == '"':
			if i = skipString(b, i); i < 0 {
				return -1
			}
			if depth == 0 {
				return i
			}
			continue
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth == 0 {
				return i
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case c == ',' && depth == 0:
			return i
		}
		i++
	}
	return -1
}

// prompts returns the token ids of each prompt in raw: a string, a list of strings, token ids, or a list of lists of them.
func (g *genBody) prompts(raw json.RawMessage, name string) ([][]uint32, error) {
	if g.ids != nil {
		return g.ids, nil
	}
	var (
		text  string
		texts []string
		ids   []uint32
		lists [][]uint32
	)
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return nil, fmt.Errorf("%s is missing", name)
	case json.Unmarshal(raw, &text) == nil:
		return [][]uint32{engine.AppendTokens(nil, text)}, nil
	case json.Unmarshal(raw, &texts) == nil:
		for _, t := range texts {
			lists = append(lists, engine.AppendTokens(nil, t))
		}
		return lists, nil
	case json.Unmarshal(raw, &ids) == nil:
		return [][]uint32{ids}, nil
	case json.Unmarshal(raw, &lists) == nil:
		return lists, nil
	}
	return nil, fmt.Errorf("%s is neither text nor token ids of 32 bits", name)
}

// rid returns SGLang's request id: a string, or the first of a list.
func (g *genBody) rid() string {
	var one string
	var many []string
	if json.Unmarshal(g.RID, &one) == nil {
		return one
	}
	if json.Unmarshal(g.RID, &many) == nil && len(many) > 0 {
		return many[0]
	}
	return ""
}
