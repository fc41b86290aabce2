package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// both are the paths of each endpoint.
func both(name string) []string { return []string{"/" + name, "/v1/" + name} }

// TestTokenize: the ids of a prompt and of a conversation, at both paths.
func TestTokenize(t *testing.T) {
	answer := func(model, text string, special bool) string {
		ids := idList(t, text, special)
		n := strings.Count(ids, ",") + 1
		if ids == "null" || ids == "[]" {
			ids, n = "[]", 0
		}
		return `{"model":"` + model + `","tokens":` + ids + `,"count":` + strconv.Itoa(n) + "}\n"
	}
	modelBubble(t, measured(t), rigOptions{Aliases: []string{"nick"}}, func(t *testing.T, r *rig) {
		for _, c := range []struct{ sent, want string }{
			{`{"model":"m","prompt":"hello"}`, answer("m", "hello", true)},
			{`{"model":"nick","prompt":"hello","messages":null,"add_special_tokens":null}`, answer("nick", "hello", true)},
			{`{"model":"m","prompt":"hello","add_special_tokens":false}`, answer("m", "hello", false)},
			{`{"model":"m","prompt":"","add_special_tokens":false}`, answer("m", "", false)},
			{`{"model":"m","prompt":"h\u00e9 \ud83d\ude00 <|end|>"}`, answer("m", "hé 😀 <|end|>", true)},
			{`{"model":"m","messages":[{"role":"user","content":"hello"}]}`, answer("m", helloText, false)},
			{`{"model":"m","messages":[{"role":"user","content":"hello"}],"add_generation_prompt":false,"tools":[{}],"add_special_tokens":true}`, answer("m", "<|begin|>user:hello<|end|>", false)},
		} {
			for _, path := range both("tokenize") {
				if a := r.post(path, c.sent, "X-Request-Id", "mine"); a.status != 200 || a.body != c.want || a.header.Get("Content-Type") != "application/json" || a.header.Get("X-Request-Id") != "mine" {
					t.Errorf("%s %s: %+v, want %s", path, c.sent, a, c.want)
				}
			}
		}
		if n := len(r.engines[0].calls()); n != 0 {
			t.Errorf("an engine got %d requests", n)
		}
	})
}

// TestDetokenize: the text of ids, and what other ids are.
func TestDetokenize(t *testing.T) {
	modelBubble(t, measured(t), rigOptions{}, func(t *testing.T, r *rig) {
		ids := idList(t, "hello, é", true)
		for _, c := range []struct{ sent, want string }{
			{`{"model":"m","tokens":` + ids + `}`, `<|begin|>hello, é`},
			{`{"model":"m","tokens":` + ids + `,"skip_special_tokens":true}`, `hello, é`},
			{`{"model":"m","tokens":` + ids + `,"skip_special_tokens":false}`, `<|begin|>hello, é`},
			{`{"model":"m","tokens":[]}`, ``},
			{`{"model":"m","tokens":[4294967295,100000]}`, ``},
		} {
			want, _ := json.Marshal(struct {
				Model string `json:"model"`
				Text  string `json:"text"`
			}{"m", c.want})
			for _, path := range both("detokenize") {
				if a := r.post(path, c.sent); a.status != 200 || a.body != string(want)+"\n" {
					t.Errorf("%s %s: %+v", path, c.sent, a)
				}
			}
		}
	})
}

// TestTokenizeRefuses: what is wrong with a request has a status and a code, at both paths.
func TestTokenizeRefuses(t *testing.T) {
	long := `{"model":"m","prompt":"` + strings.Repeat("a", 1<<20) + `"}`
	o := rigOptions{Models: []string{"other"}, Settings: func(s *Settings) { s.MaxBody = 1 << 20 }}
	modelBubble(t, measured(t), o, func(t *testing.T, r *rig) {
		for _, c := range []struct {
			name, sent string
			status     int
			code       string
		}{
			{"tokenize", ``, 400, "bad_request"},
			{"tokenize", `{`, 400, "bad_request"},
			{"tokenize", `{"model":"m","prompt":"x"}]`, 400, "bad_request"},
			{"tokenize", `{"model":"m","prompt":"x"}{}`, 400, "bad_request"},
			{"tokenize", `{"model":"m"}`, 400, "bad_request"},
			{"tokenize", `{"model":"m","prompt":null,"messages":null}`, 400, "bad_request"},
			{"tokenize", `{"model":"m","prompt":"x","messages":[]}`, 400, "bad_request"},
			{"tokenize", `{"model":"m","messages":[{"role":"liar","content":"x"}]}`, 400, "bad_request"},
			{"tokenize", `{"model":"m","messages":"x"}`, 400, "bad_request"},
			{"tokenize", `[]`, 422, "unprocessable"},
			{"tokenize", `null`, 422, "unprocessable"},
			{"tokenize", `"x"`, 422, "unprocessable"},
			{"tokenize", `{"model":"m","prompt":1}`, 422, "unprocessable"},
			{"tokenize", `{"model":"m","prompt":["x"]}`, 422, "unprocessable"},
			{"tokenize", `{"model":["m"],"prompt":"x"}`, 422, "unprocessable"},
			{"tokenize", `{"model":"m","prompt":"x","add_special_tokens":"no"}`, 422, "unprocessable"},
			{"tokenize", `{"model":"m","prompt":"x","stream":true}`, 422, "unprocessable"},
			{"tokenize", `{"model":"m","PROMPT":"x"}`, 422, "unprocessable"},
			{"tokenize", `{"model":"m","prompt":"x","p\u0072ompt":"x"}`, 400, "bad_request"},
			{"tokenize", `{"model":"m","prompt":"` + "\xff" + `"}`, 400, "bad_request"},
			{"tokenize", `{"model":"m","messages":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + `}`, 400, "bad_request"},
			{"tokenize", `{"other":1,`, 422, "unprocessable"},
			{"tokenize", `{"model":"x","prompt":"x","chat_template":"y"}`, 422, "unprocessable"},
			{"tokenize", `{"model":"x","prompt":"x"}`, 404, "model_not_found"},
			{"tokenize", `{"prompt":"x"}`, 404, "model_not_found"},
			{"tokenize", `{"model":"other","prompt":"x"}`, 501, "no_tokenizer"},
			{"tokenize", long, 413, "request_too_large"},
			{"detokenize", `{"model":"m"}`, 400, "bad_request"},
			{"detokenize", `{"model":"m","tokens":null}`, 400, "bad_request"},
			{"detokenize", `{"model":"m","tokens":[1,null]}`, 422, "unprocessable"},
			{"detokenize", `{"model":"m","tokens":[-1]}`, 422, "unprocessable"},
			{"detokenize", `{"model":"m","tokens":[1.5]}`, 422, "unprocessable"},
			{"detokenize", `{"model":"m","tokens":[4294967296]}`, 422, "unprocessable"},
			{"detokenize", `{"model":"m","tokens":["1"]}`, 422, "unprocessable"},
			{"detokenize", `{"model":"m","tokens":[[1]]}`, 422, "unprocessable"},
			{"detokenize", `{"model":"m","tokens":{}}`, 422, "unprocessable"},
			{"detokenize", `{"model":"m","tokens":1}`, 422, "unprocessable"},
			{"detokenize", `{"model":"m","tokens":[1],"prompt":"x"}`, 422, "unprocessable"},
			{"detokenize", `{"model":"x","tokens":[1]}`, 404, "model_not_found"},
			{"detokenize", `{"model":"other","tokens":[1]}`, 501, "no_tokenizer"},
			{"detokenize", long, 413, "request_too_large"},
		} {
			for _, path := range both(c.name) {
				a := r.post(path, c.sent)
				t.Logf("%s %.60s", path, c.sent)
				r.wantError(a, c.status, c.code)
			}
		}
		for _, name := range []string{"tokenize", "detokenize"} {
			for _, path := range both(name) {
				a := r.do("GET", path, "")
				r.wantError(a, 405, "method_not_allowed")
				if a.header.Get("Allow") != "POST" {
					t.Errorf("%s: %v", path, a.header)
				}
			}
		}
	})
}

// TestDetokenizeBounds: neither many ids nor few that stand for much text take more memory than a body may.
func TestDetokenizeBounds(t *testing.T) {
	o := rigOptions{Settings: func(s *Settings) { s.MaxBody, s.MaxBuffered = 32<<20, 1<<30 }}
	modelBubble(t, measured(t), o, func(t *testing.T, r *rig) {
		many := func(n int, id string) string {
			return `{"model":"m","tokens":[` + strings.TrimSuffix(strings.Repeat(id+",", n), ",") + `]}`
		}
		r.wantError(r.post("/detokenize", many(maxDetokenized+1, "0")), 413, "request_too_large")
		begin := strings.Trim(idList(t, "<|begin|>", false), "[]") // nine bytes
		r.wantError(r.post("/detokenize", many(32<<20/9+1, begin)), 400, "bad_request")
		if a := r.post("/detokenize", many(1000, begin)); a.status != 200 || utf8.RuneCountInString(a.body) < 9000 {
			t.Errorf("got %d and %d bytes", a.status, len(a.body))
		}
	})
}

// TestTokenizeKeys: who may not use a model does not learn of it.
func TestTokenizeKeys(t *testing.T) {
	const sent, ids = `{"model":"m","prompt":"x"}`, `{"model":"m","tokens":[1]}`
	modelBubble(t, measured(t), rigOptions{Keys: ring(t), Aliases: []string{"nick"}, Models: []string{"other"}}, func(t *testing.T, r *rig) {
		for _, c := range []struct {
			key    string
			status int
			code   string
		}{{"", 401, "invalid_api_key"}, {"sk-wrong", 401, "invalid_api_key"}, {keyOther, 404, "model_not_found"}, {keyAll, 200, ""}, {"sk-alias", 200, ""}} {
			var header []string
			if c.key != "" {
				header = []string{"Authorization", "Bearer " + c.key}
			}
			for _, q := range [][2]string{{"tokenize", sent}, {"detokenize", ids}} {
				for _, path := range both(q[0]) {
					if a := r.post(path, q[1], header...); c.code != "" {
						r.wantError(a, c.status, c.code)
					} else if a.status != 200 {
						t.Errorf("%s with %s: %+v", path, c.key, a)
					}
				}
			}
		}
	})
}

// TestTokenizeWithoutTemplate: prompts are counted, conversations are not.
func TestTokenizeWithoutTemplate(t *testing.T) {
	bare := tinyModel(t, "")
	modelBubble(t, func(m *Model) { m.Tokens = bare }, rigOptions{}, func(t *testing.T, r *rig) {
		r.wantError(r.post("/tokenize", `{"model":"m","messages":[{"role":"user","content":"hello"}]}`), 400, "bad_request")
		if a := r.post("/tokenize", textBody); a.status != 200 {
			t.Errorf("got %+v", a)
		}
	})
}

// TestQuestionsOfManyKeys: a body of keys that a path does not know is refused at the first of them, and takes no memory beside its own text; nor does one
// whose model is not there. The memory of what is decoded counts before it is taken.
func TestQuestionsOfManyKeys(t *testing.T) {
	keys := []byte("{")
	for i := 0; len(keys) < 4<<20; i++ {
		keys = fmt.Appendf(keys, `"%05x":0,`, i)
	}
	keys = append(keys, `"model":"m"}`...)
	text := `{"prompt":"` + strings.Repeat(`\u0061`, 1<<18) + `","model":"`
	for _, c := range []struct {
		name, sent, code string
		buffered         int64
	}{
		{"unknown keys", string(keys), "unprocessable", 1 << 30},
		{"no such model", text + `x"}`, "model_not_found", 1 << 30},
		{"no room", text + `m"}`, "gateway_overloaded", 4 << 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := relayServer(t, nil)
			v := s.current.Load()
			v.models["m"].Tokens, v.Settings.MaxBody, v.Settings.MaxBuffered = tinyModel(t, tinyTemplate), 32<<20, c.buffered
			h := s.Public()
			w := httptest.NewRecorder()
			r := httptest.NewRequest("POST", "/tokenize", strings.NewReader(c.sent))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			h.ServeHTTP(w, r)
			runtime.ReadMemStats(&after)
			if got := w.Header().Get(headerErrorCode); got != c.code {
				t.Errorf("got %d %s", w.Code, got)
			}
			// The text is copied a few times while it grows.
			if took, most := after.TotalAlloc-before.TotalAlloc, 2*uint64(len(c.sent))+1<<20; took > most {
				t.Errorf("a body of %d KiB took %d KiB", len(c.sent)>>10, took>>10)
			}
			if n := s.buffered.Load(); n != 0 {
				t.Errorf("%d bytes are held", n)
			}
		})
	}
}

// FuzzTokenizeRequest: whatever comes, the answer is one of ours, and ids that it gives are those of the text.
func FuzzTokenizeRequest(f *testing.F) {
	for _, s := range []string{
		textBody, chatBody, `{"model":"m","prompt":"x","add_special_tokens":false}`, `{"model":"m","tokens":[958,1,2],"skip_special_tokens":true}`,
		`{"model":"m","tokens":[1,null]}`, `{"model":"m","messages":[{"role":"liar","content":[]}],"tools":[{}]}`, `{"model":"x"}`, `[1`, `{"model":"m","prompt":"\ud800"}`,
	} {
		f.Add([]byte(s))
	}
	m := tinyModel(f, tinyTemplate)
	s := relayServer(f, nil)
	s.current.Load().models["m"].Tokens = m
	h := s.Public()
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, path := range []string{"/tokenize", "/v1/detokenize"} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("POST", path, strings.NewReader(string(text))))
			switch w.Code {
			case http.StatusOK, http.StatusBadRequest, http.StatusNotFound, http.StatusUnprocessableEntity:
			default:
				t.Fatalf("%s: %d %s", path, w.Code, w.Body)
			}
			if !json.Valid(w.Body.Bytes()) || w.Code != 200 && w.Header().Get("X-Router-Error-Code") == "" {
				t.Fatalf("%s: %d %s", path, w.Code, w.Body)
			}
			if w.Code != 200 || path != "/tokenize" {
				continue
			}
			var q struct{ Prompt *string }
			var a struct {
				Tokens []uint32
				Count  int
			}
			if err := json.Unmarshal(text, &q); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil || a.Count != len(a.Tokens) || a.Tokens == nil {
				t.Fatalf("%v %s", err, w.Body)
			}
			if q.Prompt != nil {
				if back, _ := m.Decode(a.Tokens, false, 1<<30); strings.TrimPrefix(back, "<|begin|>") != strings.TrimPrefix(*q.Prompt, "<|begin|>") {
					t.Errorf("%q comes back as %q", *q.Prompt, back)
				}
			}
		}
	})
}
