package api

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/api/body"
	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
	"github.com/perigee-llm/perigee/internal/gateway/tokens"
	"github.com/perigee-llm/perigee/internal/gateway/tokens/bpe"
	"github.com/perigee-llm/perigee/internal/gateway/tokens/template"
)

// tinyTokenizer is a small tokenizer of Llama's kind, which bpe is tested with.
var tinyTokenizer = sync.OnceValues(func() (*bpe.Tokenizer, error) {
	f, err := os.Open(filepath.Join("..", "tokens", "bpe", "testdata", "tiny-llama3.json.gz"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(z)
	if err != nil {
		return nil, err
	}
	return bpe.Parse(text)
})

const tinyTemplate = `{% for m in messages %}{% if m.role == "liar" %}{{ raise_exception("no liars") }}{% endif %}<|begin|>{{ m.role }}:{{ m.content }}<|end|>{% endfor %}` +
	`{% if add_generation_prompt %}<|begin|>assistant:{% endif %}`

// tinyModel joins that tokenizer and a template; empty: none.
func tinyModel(t testing.TB, source string) *tokens.Model {
	t.Helper()
	tok, err := tinyTokenizer()
	if err != nil {
		t.Fatal(err)
	}
	if source == "" {
		return tokens.New(tok, nil, errors.New("there is no template"), bpe.NewCache(1<<20))
	}
	tmpl, err := template.Compile(template.Config{Source: source})
	if err != nil {
		t.Fatal(err)
	}
	return tokens.New(tok, tmpl, nil, bpe.NewCache(1<<20))
}

// modelBubble is bubble with a model that is changed before anything is asked of it.
func modelBubble(t *testing.T, model func(*Model), o rigOptions, test func(t *testing.T, r *rig)) {
	t.Helper()
	bubble(t, o, func(t *testing.T, r *rig) {
		model(r.s.current.Load().models["m"])
		test(t, r)
	})
}

// measured gives the model a tokenizer and has it forward ids.
func measured(t testing.TB) func(*Model) {
	m := tinyModel(t, tinyTemplate)
	return func(to *Model) { to.Tokens, to.ForwardIDs = m, true }
}

const helloText = "<|begin|>user:hello<|end|><|begin|>assistant:" // of chatBody

// idList writes a text's ids as JSON.
func idList(t testing.TB, text string, special bool) string {
	t.Helper()
	out, err := json.Marshal(tinyModel(t, "").Encode(text, special))
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// wantSource checks what the decision log, the access log and the metrics say of the last request, and that it is the only one.
func (r *rig) wantSource(source string, n int, exact bool) {
	r.t.Helper()
	rec := r.s.Explain.Records(noQuery)[0]
	if rec.InputSource != source || rec.InputTokens != int64(n) || rec.InputExact != exact {
		r.t.Errorf("the decision has %d tokens, %s, exact %v; want %d, %s, %v", rec.InputTokens, rec.InputSource, rec.InputExact, n, source, exact)
	}
	if a := r.access.last(); a["input_source"] != source || a["input_tokens"] != int64(n) {
		r.t.Errorf("the access log has %v, %v", a["input_tokens"], a["input_source"])
	}
	if got := r.metric(`inputs_total{model="m",source="` + source + `"}`); got != "1" {
		r.t.Errorf("%q requests of source %s are counted", got, source)
	}
}

// TestForwardIDs: an SGLang engine gets a conversation's ids, a vLLM engine never, and nothing else of the body changes.
func TestForwardIDs(t *testing.T) {
	ids := idList(t, helloText, false)
	n := strings.Count(ids, ",") + 1
	odd := `{"x": 1e400 , "model":"m","messages":[ {"role":"user","content":"h\u0065llo"} ],"y":[1.10]}`
	liar := `{"model":"m","messages":[{"role":"liar","content":"hello"}]}`
	allow := func(s *Settings) { s.Refused &^= body.KeysOf(body.InputIDs) }
	strip := func(s *Settings) { s.Refused, s.Stripped = 0, body.ProtectedKeys }
	own := `{"model":"m","input_ids":[7,8],"messages":[{"role":"user","content":"hello"}]}`
	none := strings.Replace(own, "[7,8]", "null", 1)
	off := func(to *Model) { measured(t)(to); to.ForwardIDs = false }
	for _, c := range []struct {
		name     string
		kind     fleet.Kind
		settings func(*Settings)
		model    func(*Model)
		path     string
		sent     string
		got      string // by the engine, with a rid where the gateway gave one as RID
		source   string
		tokens   int
		exact    bool
		outcome  string
	}{
		{"SGLang", fleet.SGLang, nil, nil, chatPath, chatBody, strings.TrimSuffix(chatBody, "}") + `,"input_ids":` + ids + `,"rid":RID}`, "rendered", n, true, "forwarded"},
		{"what is strange stays", fleet.SGLang, nil, nil, chatPath, odd, strings.TrimSuffix(odd, "}") + `,"input_ids":` + ids + `,"rid":RID}`, "rendered", n, true, "forwarded"},
		{"vLLM", fleet.VLLM, nil, nil, chatPath, odd, odd, "rendered", n, true, "forwarded"},
		{"another kind", fleet.UnknownKind, nil, nil, chatPath, odd, odd, "rendered", n, true, "forwarded"},
		{"off", fleet.SGLang, nil, off, chatPath, chatBody, strings.TrimSuffix(chatBody, "}") + `,"rid":RID}`, "rendered", n, true, ""},
		{"not rendered", fleet.SGLang, nil, nil, chatPath, liar, strings.TrimSuffix(liar, "}") + `,"rid":RID}`, "bare_text", strings.Count(idList(t, "hello\n", false), ",") + 1, false, "not_rendered"},
		{"the client's own", fleet.SGLang, allow, nil, chatPath, own, strings.TrimSuffix(own, "}") + `,"rid":RID}`, "rendered", n, false, "caller_input_ids"},
		{"the client's own, at vLLM", fleet.VLLM, allow, nil, chatPath, own, own, "rendered", n, false, "caller_input_ids"},
		{"the client's null", fleet.SGLang, allow, nil, chatPath, none, strings.TrimSuffix(none, "}") + `,"rid":RID}`, "rendered", n, true, "caller_input_ids"},
		{"the client's are stripped", fleet.SGLang, strip, nil, chatPath, own, `{"model":"m","messages":[{"role":"user","content":"hello"}],"rid":RID}`, "rendered", n, true, "caller_input_ids"},
		{"a prompt", fleet.SGLang, nil, nil, textPath, textBody, strings.TrimSuffix(textBody, "}") + `,"rid":RID}`, "encoded", strings.Count(idList(t, "hello", true), ",") + 1, true, ""},
		{"ids as a prompt", fleet.SGLang, nil, nil, textPath, `{"model":"m","prompt":[1,2,3]}`, `{"model":"m","prompt":[1,2,3],"rid":RID}`, "given", 3, true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			model := c.model
			if model == nil {
				model = measured(t)
			}
			modelBubble(t, model, rigOptions{Specs: plain(1, c.kind), Settings: c.settings}, func(t *testing.T, r *rig) {
				if a := r.post(c.path, c.sent); a.status != 200 || a.body != okAnswer {
					t.Fatalf("got %+v", a)
				}
				got := r.engines[0].calls()[0].body
				_, rest, _ := strings.Cut(got, `"rid":`)
				if rid := strings.TrimSuffix(rest, "}"); rid != "" {
					got = strings.Replace(got, rid, "RID", 1)
				}
				if got != c.got {
					t.Errorf("the engine got\n%s, want\n%s", got, c.got)
				}
				r.wantSource(c.source, c.tokens, c.exact)
				for _, o := range []string{"forwarded", "not_rendered", "caller_input_ids", "no_messages"} {
					want := ""
					if o == c.outcome {
						want = "1"
					}
					if got := r.metric(`input_ids_forwarding_total{model="m",outcome="` + o + `"}`); got != want {
						t.Errorf("%s is counted %q times, want %q", o, got, want)
					}
				}
			})
		})
	}
}

// TestForwardRefused: a client that may not send ids is refused, whatever the gateway could send.
func TestForwardRefused(t *testing.T) {
	modelBubble(t, measured(t), rigOptions{}, func(t *testing.T, r *rig) {
		r.wantError(r.post(chatPath, `{"model":"m","input_ids":null,"messages":[{"role":"user","content":"hello"}]}`), 400, "bad_request")
		if n := len(r.engines[0].calls()); n != 0 {
			t.Errorf("%d requests went on", n)
		}
	})
}

// TestForwardPair: both halves of an SGLang pair get the same ids; a vLLM pair gets none.
func TestForwardPair(t *testing.T) {
	ids := `"input_ids":` + idList(t, helloText, false)
	modelBubble(t, measured(t), rigOptions{Specs: pair(fleet.SGLang)}, func(t *testing.T, r *rig) {
		if a := r.post(chatPath, chatBody); a.status != 200 {
			t.Fatalf("got %+v", a)
		}
		one, two := r.engines[0].calls()[0].body, r.engines[1].calls()[0].body
		if one != two || strings.Count(one, ids) != 1 {
			t.Errorf("got\n%s and\n%s, with %s", one, two, ids)
		}
		r.wantSource("rendered", strings.Count(ids, ",")+1, true)
	})
	modelBubble(t, measured(t), rigOptions{Specs: pair(fleet.VLLM)}, func(t *testing.T, r *rig) {
		r.engines[0].handler = func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"kv_transfer_params":{"a":1}}`)
		}
		if a := r.post(chatPath, chatBody); a.status != 200 {
			t.Fatalf("got %+v", a)
		}
		for _, e := range r.engines {
			if got := e.calls()[0].body; strings.Contains(got, "input_ids") {
				t.Errorf("%s got %s", e.id, got)
			}
		}
	})
}

// TestForwardAgain: another attempt at an engine of another family has the body for that one.
func TestForwardAgain(t *testing.T) {
	for _, kinds := range [][]fleet.Kind{{fleet.SGLang, fleet.VLLM}, {fleet.VLLM, fleet.SGLang}} {
		modelBubble(t, measured(t), rigOptions{Specs: []fleet.Spec{{Kind: kinds[0]}, {Kind: kinds[1]}}}, func(t *testing.T, r *rig) {
			r.engines[0].raw = func(c net.Conn, _ *seenCall) { _ = c.Close() }
			if a := r.post(chatPath, chatBody); a.status != 200 {
				t.Fatalf("got %+v", a)
			}
			for i, e := range r.engines {
				got, sglang := e.calls()[0].body, kinds[i] == fleet.SGLang
				if strings.Contains(got, `"input_ids":`+idList(t, helloText, false)) != sglang || !sglang && got != chatBody {
					t.Errorf("%s got %s", kinds[i], got)
				}
			}
		})
	}
}

// TestSteering: what changes a rendering keeps the ids here, and the length is not called exact.
func TestSteering(t *testing.T) {
	for field, want := range map[string]struct {
		exact   bool
		outcome string
	}{
		`"tools":[{}]`: {false, "tools"}, `"functions":[{}]`: {false, "tools"}, `"functions":null`: {true, "forwarded"},
		`"chat_template":"x"`: {false, "steered"}, `"chat_template":null`: {true, "forwarded"}, `"reasoning":{}`: {false, "steered"},
		`"reasoning_effort":"low"`: {false, "steered"}, `"task":"query"`: {false, "steered"}, `"documents":[]`: {false, "steered"},
		`"chat_template_kwargs":{"a":1}`: {true, "steered"}, `"chat_template_kwargs":null`: {true, "forwarded"},
		`"add_generation_prompt":false`: {false, "continuation"}, `"add_generation_prompt":true`: {true, "forwarded"}, `"add_generation_prompt":0`: {false, "steered"},
		`"continue_final_message":true`: {false, "continuation"}, `"continue_final_message":false`: {true, "forwarded"}, `"continue_final_message":"yes"`: {false, "steered"},
		`"add_special_tokens":true`: {false, "steered"}, `"add_special_tokens":false`: {true, "forwarded"}, `"add_special_tokens":"off"`: {false, "steered"},
	} {
		modelBubble(t, measured(t), rigOptions{}, func(t *testing.T, r *rig) {
			if a := r.post(chatPath, strings.TrimSuffix(chatBody, "}")+","+field+"}"); a.status != 200 {
				t.Fatalf("%s: %+v", field, a)
			}
			if rec := r.s.Explain.Records(noQuery)[0]; rec.InputExact != want.exact {
				t.Errorf("%s: exact is %v", field, rec.InputExact)
			}
			if r.metric(`input_ids_forwarding_total{model="m",outcome="`+want.outcome+`"}`) != "1" {
				t.Errorf("%s: not %s", field, want.outcome)
			}
			if got := strings.Contains(r.engines[0].calls()[0].body, `"input_ids"`); got != (want.outcome == "forwarded") {
				t.Errorf("%s: forwarded %v", field, got)
			}
		})
	}
}

// TestLengthChoosesBucket: a prompt that is short by its bytes and long by its tokens goes where its tokens belong, and the other way.
func TestLengthChoosesBucket(t *testing.T) {
	buckets := func(group func(fleet.Stage) *bucket.Group) []*bucket.Bucket {
		return []*bucket.Bucket{
			bucket.NewPlain("short", 0, bucket.Range{MaxInput: 20}, group(fleet.Plain)),
			bucket.NewPlain("long", 1, bucket.Range{MinInput: 21}, group(fleet.Plain)),
		}
	}
	dense, thin := strings.Repeat("9!", 25), strings.Repeat(" conversation", 15)
	for _, c := range []struct {
		name, prompt, bucket, estimate string
	}{{"dense", dense, "long", "short"}, {"thin", thin, "short", "long"}} {
		for _, exact := range []bool{false, true} {
			model, want := func(*Model) {}, c.estimate
			if exact {
				model, want = measured(t), c.bucket
			}
			modelBubble(t, model, rigOptions{Buckets: buckets, Specs: plain(1, fleet.VLLM)}, func(t *testing.T, r *rig) {
				text, _ := json.Marshal(c.prompt)
				if a := r.post(textPath, `{"model":"m","prompt":`+string(text)+`}`); a.status != 200 {
					t.Fatalf("got %+v", a)
				}
				rec := r.s.Explain.Records(noQuery)[0]
				if got := rec.Attempts[0].Bucket; got != want {
					t.Errorf("%s, measured %v: bucket %s with %d tokens", c.name, exact, got, rec.InputTokens)
				}
			})
		}
	}
}

// TestMeasureBatch: of several prompts the longest chooses the bucket, and all of them are load.
func TestMeasureBatch(t *testing.T) {
	modelBubble(t, measured(t), rigOptions{Specs: plain(1, fleet.VLLM)}, func(t *testing.T, r *rig) {
		n := func(s string) int { return strings.Count(idList(t, s, true), ",") + 1 }
		var load int64
		r.engines[0].handler = func(w http.ResponseWriter, _ *http.Request) {
			load = r.engines[0].worker.Load.PrefillTokens()
			_, _ = io.WriteString(w, okAnswer)
		}
		r.post(textPath, `{"model":"m","prompt":["hello","hello there, you","x"]}`)
		r.wantSource("encoded", n("hello there, you"), true)
		if want := n("hello") + n("hello there, you") + n("x"); load != int64(want) {
			t.Errorf("%d tokens in flight, want %d", load, want)
		}
	})
}

// asking has an engine count; there is no tokenizer.
func asking(m *Model) { m.AskEngines = true }

// counter answers /tokenize with a text, and everything else well.
func counter(answer string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/tokenize" {
			_, _ = io.WriteString(w, answer)
			return
		}
		_, _ = io.WriteString(w, okAnswer)
	}
}

// TestAskEngines: what an engine is asked, and what its answer is worth.
func TestAskEngines(t *testing.T) {
	chat := func(more string) string {
		return `{"model":"nick","messages":[{"role":"user","content":"hello"}]` + more + `}`
	}
	parts := `{"model":"nick","messages":[{"role":"user","content":[{"type":"text","text":"hel\"lo"},{"type":"image_url","image_url":{"url":"data:,AAAA"}}]}]}`
	for _, c := range []struct {
		name     string
		kind     fleet.Kind
		path     string
		sent     string
		question string // empty: none is asked
		exact    bool
	}{
		{"vLLM, chat", fleet.VLLM, chatPath, chat(""), `{"messages":[{"role":"user","content":"hello"}],"model":"nick"}`, true},
		{"vLLM, chat with tools", fleet.VLLM, chatPath, chat(`,"tools":[1],"chat_template_kwargs":{"a":1},"add_generation_prompt":false,"continue_final_message":true`),
			`{"add_generation_prompt":false,"chat_template_kwargs":{"a":1},"continue_final_message":true,"messages":[{"role":"user","content":"hello"}],"model":"nick","tools":[1]}`, true},
		{"vLLM, nulls", fleet.VLLM, chatPath, chat(`,"tools":null,"chat_template_kwargs":null`), `{"messages":[{"role":"user","content":"hello"}],"model":"nick"}`, true},
		{"vLLM, steered", fleet.VLLM, chatPath, chat(`,"reasoning_effort":"low"`), `{"messages":[{"role":"user","content":"hello"}],"model":"nick"}`, false},
		{"vLLM, documents", fleet.VLLM, chatPath, chat(`,"documents":[1]`), `{"messages":[{"role":"user","content":"hello"}],"model":"nick"}`, false},
		{"vLLM, an image", fleet.VLLM, chatPath, parts, `{"model":"nick","prompt":"hel\"lo\u000a"}`, false},
		{"vLLM, a prompt", fleet.VLLM, textPath, `{"model":"nick","prompt":"hel\u006co"}`, `{"model":"nick","prompt":"hel\u006co"}`, true},
		{"vLLM, a bare prompt", fleet.VLLM, textPath, `{"model":"nick","prompt":"hello","add_special_tokens":false}`, `{"add_special_tokens":false,"model":"nick","prompt":"hello"}`, true},
		{"SGLang, chat", fleet.SGLang, chatPath, chat(`,"tools":[1]`), `{"model":"nick","prompt":"hello\u000a"}`, false},
		{"SGLang, a prompt", fleet.SGLang, textPath, `{"model":"nick","prompt":"hello"}`, `{"model":"nick","prompt":"hello"}`, true},
		{"a list", fleet.VLLM, textPath, `{"model":"nick","prompt":["hello","you"]}`, "", false},
		{"ids", fleet.VLLM, textPath, `{"model":"nick","prompt":[1,2]}`, "", true},
		{"no text", fleet.SGLang, chatPath, `{"model":"nick","messages":[{"role":"user"}]}`, "", false},
		{"no messages", fleet.VLLM, chatPath, `{"model":"nick","messages":null}`, "", false},
		{"embeddings", fleet.VLLM, textPath, `{"model":"nick","prompt":null,"prompt_embeds":"AAAA"}`, "", false},
		{"another kind", fleet.UnknownKind, textPath, `{"model":"nick","prompt":"hello"}`, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			modelBubble(t, asking, rigOptions{Specs: plain(1, c.kind), Aliases: []string{"nick"}}, func(t *testing.T, r *rig) {
				r.engines[0].handler = counter(`{"tokens":[1,2],"max_model_len":8,"count":17}`)
				if a := r.post(c.path, c.sent, "Traceparent", "tp"); a.status != 200 {
					t.Fatalf("got %+v", a)
				}
				calls := r.engines[0].calls()
				if rec := r.s.Explain.Records(noQuery)[0]; c.question == "" {
					if len(calls) != 1 || rec.InputSource == "engine" || rec.InputExact != c.exact {
						t.Errorf("%d calls; %+v", len(calls), rec)
					}
					return
				}
				if len(calls) != 2 || calls[0].path != "/tokenize" || calls[0].body != c.question || calls[0].header.Get("Traceparent") != "tp" || calls[0].header.Get("X-Request-Id") == "" {
					t.Fatalf("%d calls, the first is %+v", len(calls), calls[0])
				}
				r.wantSource("engine", 17, c.exact)
				if r.engines[0].mu.dials != 1 {
					t.Error("the connection was not kept")
				}
			})
		})
	}
}

// TestAskFails: whatever the engine answers or does not, the estimate stands within a second, and the engine is not blamed.
func TestAskFails(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer http.HandlerFunc
		after  time.Duration
	}{
		{"nothing", func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }, askLimit},
		{"a head alone", func(w http.ResponseWriter, q *http.Request) { startStream(w); <-q.Context().Done() }, askLimit},
		{"drop by drop", func(w http.ResponseWriter, q *http.Request) {
			for range 40 {
				_, _ = io.WriteString(w, " ")
				_ = http.NewResponseController(w).Flush()
				select {
				case <-time.After(100 * time.Millisecond):
				case <-q.Context().Done():
					return
				}
			}
		}, askLimit},
		{"an error", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, 0},
		{"an error with a count", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(404)
			_, _ = io.WriteString(w, `{"count":9}`)
		}, 0},
		{"a redirect", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Location", "/x"); w.WriteHeader(307) }, 0},
		{"garbage", counter("count: 9"), 0},
		{"no count", counter(`{"tokens":[1]}`), 0},
		{"null", counter(`null`), 0},
		{"a list", counter(`[9]`), 0},
		{"none", counter(`{"count":0}`), 0},
		{"less than none", counter(`{"count":-9}`), 0},
		{"a broken number", counter(`{"count":9.5}`), 0},
		{"more than there are bytes", counter(`{"count":100000}`), 0},
		{"as many as there are", counter(`{"count":9223372036854775807}`), 0},
		{"more than that", counter(`{"count":1e400}`), 0},
		{"no end", func(w http.ResponseWriter, q *http.Request) {
			_, _ = io.WriteString(w, `{"tokens":[1`)
			for n := 0; q.Context().Err() == nil; n += 1 << 16 {
				if _, err := io.WriteString(w, strings.Repeat(",1", 1<<15)); err != nil {
					return
				}
				if n > 2*askedAnswer {
					t.Error("it is read on and on")
					return
				}
			}
		}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			modelBubble(t, asking, rigOptions{Specs: plain(1, fleet.VLLM)}, func(t *testing.T, r *rig) {
				r.engines[0].handler = func(w http.ResponseWriter, q *http.Request) {
					if q.URL.Path == "/tokenize" {
						c.answer(w, q)
						return
					}
					_, _ = io.WriteString(w, okAnswer)
				}
				began := time.Now()
				if a := r.post(chatPath, strings.TrimSuffix(chatBody, "}")+`,"max_tokens":5}`); a.status != 200 {
					t.Fatalf("got %+v", a)
				}
				if took := time.Since(began); took != c.after {
					t.Errorf("after %v", took)
				}
				r.wantSource("estimated", (len(chatBody)+len(`,"max_tokens":5`))/4, false)
				if _, n := r.reg.Breaker(r.engines[0].worker); n != 0 {
					t.Errorf("%d strikes", n)
				}
			})
		})
	}
	t.Run("nobody there", func(t *testing.T) {
		buckets := func(func(fleet.Stage) *bucket.Group) []*bucket.Bucket {
			group := bucket.NewGroup("m", fleet.Plain, []string{"w1"}, policy.NewRoundRobin(policy.Limits{}))
			return []*bucket.Bucket{bucket.NewPlain("one", 0, bucket.Range{}, group)}
		}
		modelBubble(t, asking, rigOptions{Specs: plain(2, fleet.VLLM), Buckets: buckets}, func(t *testing.T, r *rig) {
			r.engines[0].refuse.Store(true)
			r.engines[1].handler = counter(`{"count":9}`)
			seen := map[string]int{}
			for range 40 {
				if a := r.post(chatPath, chatBody); a.status != 200 {
					t.Fatalf("got %+v", a)
				}
				seen[r.s.Explain.Records(noQuery)[0].InputSource]++
			}
			if seen["engine"] < 5 || seen["estimated"] < 5 || seen["engine"]+seen["estimated"] != 40 {
				t.Errorf("sources %v", seen)
			}
			if _, n := r.reg.Breaker(r.engines[0].worker); n != 0 {
				t.Errorf("%d strikes for not counting", n)
			}
		})
	})
}

// TestAskWhom: only live engines of a known kind that could take the prompt are asked, and all of them in time.
func TestAskWhom(t *testing.T) {
	specs := []fleet.Spec{{Kind: fleet.UnknownKind}, {Kind: fleet.VLLM}, {Kind: fleet.VLLM}, {Kind: fleet.VLLM, Stage: fleet.Decode}}
	buckets := func(group func(fleet.Stage) *bucket.Group) []*bucket.Bucket {
		return []*bucket.Bucket{bucket.NewPlain("all", 0, bucket.Range{}, group(fleet.Plain))}
	}
	modelBubble(t, asking, rigOptions{Specs: specs, Buckets: buckets}, func(t *testing.T, r *rig) {
		for _, e := range r.engines {
			e.handler = counter(`{"count":9}`)
		}
		for range 40 {
			if a := r.post(chatPath, chatBody); a.status != 200 {
				t.Fatalf("got %+v", a)
			}
		}
		for i, want := range []bool{false, true, true, false} {
			asked := slices.ContainsFunc(r.engines[i].calls(), func(c *seenCall) bool { return c.path == "/tokenize" })
			if asked != want {
				t.Errorf("%s was asked: %v", r.engines[i].id, asked)
			}
		}
		r.reg.Remove("w1")
		r.reg.Remove("w2")
		r.reg.Remove("w3")
		if a := r.post(chatPath, chatBody); a.status != 200 || r.s.Explain.Records(noQuery)[0].InputSource != "estimated" {
			t.Errorf("without an engine that counts: %+v", a)
		}
	})
}

// TestAskClientLeaves: a question ends with the client, and nothing is sent after it.
func TestAskClientLeaves(t *testing.T) {
	modelBubble(t, asking, rigOptions{Specs: plain(1, fleet.VLLM)}, func(t *testing.T, r *rig) {
		var gone time.Duration
		began := time.Now()
		r.engines[0].handler = func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done(); gone = time.Since(began) }
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(300*time.Millisecond, cancel)
		if resp, err := r.client.Do(r.request(ctx, "POST", chatPath, chatBody)); err == nil {
			_ = resp.Body.Close()
			t.Error("there was an answer")
		}
		synctest.Wait()
		if gone != 300*time.Millisecond || len(r.engines[0].calls()) != 1 {
			t.Errorf("the question ended after %v; calls: %d", gone, len(r.engines[0].calls()))
		}
		if a := r.access.last(); a["status"] != int64(499) || a["client_left"] != true {
			t.Errorf("the access log has %v", a)
		}
	})
}

// TestTokenizerBeforeEngines: who can count does not ask.
func TestTokenizerBeforeEngines(t *testing.T) {
	modelBubble(t, func(m *Model) { measured(t)(m); m.AskEngines = true }, rigOptions{}, func(t *testing.T, r *rig) {
		r.post(textPath, textBody)
		if len(r.engines[0].calls()) != 1 {
			t.Errorf("%d calls", len(r.engines[0].calls()))
		}
	})
}
