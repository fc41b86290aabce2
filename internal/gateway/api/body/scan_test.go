package body

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func count(n int64) Count { return Count{N: n, Known: true} }

func TestFacts(t *testing.T) {
	chat := func(tokens int) PromptFacts { return PromptFacts{PromptMessages, false, 1, tokens, tokens} }
	cases := []struct {
		name, body string
		kind       Kind
		want       modelFacts
	}{
		{"least chat", `{"model":"m"}`, Chat, modelFacts{Model: "m", Prompt: chat(3), Keys: KeysOf(Model)}},
		{"all that is read", ` {"model":"org/m", "stream" : true, "max_tokens":10,"max_completion_tokens":0,` +
			`"messages":[{"role":"user","content":"hi"}],"stream_options":{"x":1,"include_usage":true},"rid":"r-1","n":2,"top_k":1e400} `, Chat,
			modelFacts{Model: "org/m", RID: "r-1", Stream: true, FanOut: true, MaxTokens: count(10), MaxCompletionTokens: count(0),
				IncludeUsage: true, Prompt: chat(50),
				Keys: KeysOf(Model, Stream, MaxTokens, MaxCompletionTokens, Messages, StreamOptions, RID, N, TopK)}},
		{"null is absent", `{"model":"m","stream":null,"max_tokens":null,"stream_options":null,"messages":null,"n":null,"rid":null}`, Chat,
			modelFacts{Model: "m", Prompt: chat(25), Keys: KeysOf(Model, Stream, MaxTokens, StreamOptions, Messages, N, RID)}},
		{"escapes in names and values", `{"mod\u0065l":"\u006d\ud83d\ude00\/\"\\"}`, Chat,
			modelFacts{Model: "m😀/\"\\", Prompt: chat(10), Keys: KeysOf(Model)}},
		{"other case is unknown", `{"model":"m","Model":"x","MODEL":1,"Stream":"x"}`, Chat, modelFacts{Model: "m", Prompt: chat(12), Keys: KeysOf(Model)}},
		{"unknown may repeat", `{"x":1,"model":"m","x":{"model":1},"x":[]}`, Chat, modelFacts{Model: "m", Prompt: chat(10), Keys: KeysOf(Model)}},
		{"empty model is a name", `{"model":""}`, Chat, modelFacts{Prompt: chat(3), Keys: KeysOf(Model)}},
		{"empty messages", `{"model":"m","messages":[ ]}`, Chat, modelFacts{Model: "m", Prompt: chat(7), Keys: KeysOf(Model, Messages)}},
		{"n true is one", `{"model":"m","n":true}`, Chat, modelFacts{Model: "m", Prompt: chat(5), Keys: KeysOf(Model, N)}},
		{"n unreadable fans out", `{"model":"m","n":[1]}`, Chat, modelFacts{Model: "m", FanOut: true, Prompt: chat(5), Keys: KeysOf(Model, N)}},
		{"best_of as text fans out", `{"model":"m","best_of":" 2 "}`, Chat, modelFacts{Model: "m", FanOut: true, Prompt: chat(7), Keys: KeysOf(Model, BestOf)}},
		{"rid list", `{"model":"m","rid":["a"]}`, Chat, modelFacts{Model: "m", Prompt: chat(6), Keys: KeysOf(Model, RID)}},
		{"chat does not read prompt", `{"model":"m","prompt":{}}`, Chat, modelFacts{Model: "m", Prompt: chat(6), Keys: KeysOf(Model, Prompt)}},
		{"text", `{"model":"m","prompt":"12345678901"}`, Completion, modelFacts{Model: "m", Prompt: PromptFacts{PromptText, false, 1, 2, 2}, Keys: KeysOf(Model, Prompt)}},
		{"text decoded: 4 characters of 4 bytes", `{"model":"m","prompt":"\ud83d\ude00😀\uD83D\uDE00\\\n\"\/"}`, Completion,
			modelFacts{Model: "m", Prompt: PromptFacts{PromptText, false, 1, 4, 4}, Keys: KeysOf(Model, Prompt)}},
		{"empty text", `{"model":"m","prompt":""}`, Completion, modelFacts{Model: "m", Prompt: PromptFacts{PromptText, false, 1, 1, 1}, Keys: KeysOf(Model, Prompt)}},
		{"texts", `{"model":"m","prompt":["", "12345678" ]}`, Completion, modelFacts{Model: "m", Prompt: PromptFacts{PromptTexts, false, 2, 2, 3}, Keys: KeysOf(Model, Prompt)}},
		{"ids", `{"model":"m","prompt":[ 0,1, 2 ,  4294967295 ]}`, Completion, modelFacts{Model: "m", Prompt: PromptFacts{PromptIDs, true, 1, 4, 4}, Keys: KeysOf(Model, Prompt)}},
		{"id lists", `{"model":"m","prompt":[[1,2,3],[] , [4]]}`, Completion, modelFacts{Model: "m", Prompt: PromptFacts{PromptIDLists, true, 3, 3, 4}, Keys: KeysOf(Model, Prompt)}},
		{"vectors", `{"model":"m","prompt":null,"prompt_embeds":"AAAA"}`, Completion,
			modelFacts{Model: "m", Prompt: PromptFacts{PromptVectors, false, 1, 12, 12}, Keys: KeysOf(Model, Prompt, PromptEmbeds)}},
		{"half a pair passes in values", `{"model":"m","x":"\ud800","\udc00":1,"prompt":"\ud800\u0041"}`, Completion,
			modelFacts{Model: "m", Prompt: PromptFacts{PromptText, false, 1, 1, 1}, Keys: KeysOf(Model, Prompt)}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f, err := Scan([]byte(c.body), c.kind)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, simplify(&f)); d != "" {
				t.Error(d)
			}
			if m, class, _ := model([]byte(c.body), c.kind); class != 0 || m != c.want {
				t.Errorf("the naive model says %v %+v", class, m)
			}
		})
	}
}

// hostile bodies and their answers. Not one of them may cost more than its length.
var hostile = []struct {
	name, body string
	kind       Kind
	class      Class
	key        string
}{
	{"empty", "", Chat, ErrSyntax, ""},
	{"white space", " \r\n\t", Chat, ErrSyntax, ""},
	{"byte order mark", "\ufeff{\"model\":\"m\"}", Chat, ErrSyntax, ""},
	{"NUL behind", "{\"model\":\"m\"}\x00", Chat, ErrSyntax, ""},
	{"NUL in a string", "{\"model\":\"m\x00\"}", Chat, ErrSyntax, ""},
	{"NUL for a value", "{\"model\":\x00}", Chat, ErrSyntax, ""},
	{"line break in a string", "{\"model\":\"m\n\"}", Chat, ErrSyntax, ""},
	{"two values", `{"model":"m"}{"model":"m"}`, Chat, ErrSyntax, ""},
	{"list", `[1,2]`, Chat, ErrNotObject, ""},
	{"number", ` 12 `, Chat, ErrNotObject, ""},
	{"no JSON at all", `model=m`, Chat, ErrSyntax, ""},
	{"broken list", `[1,`, Chat, ErrSyntax, ""},
	{"trailing comma", `{"model":"m",}`, Chat, ErrSyntax, ""},
	{"missing comma", `{"model":"m" "stream":true}`, Chat, ErrSyntax, ""},
	{"missing colon", `{"model" "m"}`, Chat, ErrSyntax, ""},
	{"single quotes", `{'model':'m'}`, Chat, ErrSyntax, ""},
	{"comment", `{"model":"m"/* */}`, Chat, ErrSyntax, ""},
	{"NaN", `{"model":"m","x":NaN}`, Chat, ErrSyntax, ""},
	{"leading zero", `{"model":"m","x":01}`, Chat, ErrSyntax, ""},
	{"bare point", `{"model":"m","x":1.}`, Chat, ErrSyntax, ""},
	{"bare exponent", `{"model":"m","x":1e}`, Chat, ErrSyntax, ""},
	{"plus", `{"model":"m","x":+1}`, Chat, ErrSyntax, ""},
	{"minus alone", `{"model":"m","x":-}`, Chat, ErrSyntax, ""},
	{"half a literal", `{"model":"m","stream":tru}`, Chat, ErrSyntax, ""},
	{"bad escape", `{"model":"m","x":"\x"}`, Chat, ErrSyntax, ""},
	{"bad hex", `{"model":"m","x":"\u12g4"}`, Chat, ErrSyntax, ""},
	{"crossed brackets", `{"model":"m","x":[{]}}`, Chat, ErrSyntax, ""},
	{"invalid UTF-8", "{\"model\":\"m\",\"x\":\"\xff\"}", Chat, ErrUTF8, ""},
	{"overlong UTF-8", "{\"model\":\"m\",\"x\":\"\xc0\x80\"}", Chat, ErrUTF8, ""},
	{"overlong in three bytes", "{\"model\":\"m\",\"x\":\"\xe0\x80\x80\"}", Chat, ErrUTF8, ""},
	{"surrogate in UTF-8", "{\"model\":\"m\",\"x\":\"\xed\xa0\x80\"}", Chat, ErrUTF8, ""},
	{"cut character", "{\"model\":\"m\",\"x\":\"\xe4\xb8\"}", Chat, ErrUTF8, ""},
	{"half a pair in a name we compare", `{"model":"m\ud800"}`, Chat, ErrUTF8, ""},
	{"half a pair in rid", `{"model":"m","rid":"\udc00"}`, Chat, ErrUTF8, ""},
	{"ten million brackets", strings.Repeat("[", 10_000_000), Chat, ErrNotObject, ""},
	{"ten million brackets inside", `{"x":` + strings.Repeat("[", 10_000_000), Chat, ErrTooDeep, ""},
	{"objects too deep", strings.Repeat(`{"a":`, MaxDepth+1), Chat, ErrTooDeep, ""},
	{"one level too many", `{"model":"m","x":` + strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth) + `}`, Chat, ErrTooDeep, ""},
	{"ids too deep", `{"model":"m","prompt":[[[1]]]}`, Completion, ErrWrongType, "prompt"},
	{"model twice", `{"model":"a","model":"b"}`, Chat, ErrDuplicateKey, "model"},
	{"model twice, once escaped", `{"model":"a","\u006dodel":"b"}`, Chat, ErrDuplicateKey, "model"},
	{"stream twice as null", `{"model":"a","stream":null,"stream":null}`, Chat, ErrDuplicateKey, "stream"},
	{"sampling field twice", `{"model":"a","top_p":1,"top_p":1}`, Chat, ErrDuplicateKey, "top_p"},
	{"protected key twice", `{"cache_salt":"a","cache_salt":"b","model":"a"}`, Chat, ErrDuplicateKey, "cache_salt"},
	{"prompt twice in a chat", `{"model":"a","prompt":1,"prompt":2}`, Chat, ErrDuplicateKey, "prompt"},
	{"include_usage twice", `{"model":"a","stream_options":{"include_usage":true,"includ\u0065_usage":false}}`, Chat, ErrDuplicateKey, "stream_options.include_usage"},
	{"model number", `{"model":1}`, Chat, ErrWrongType, "model"},
	{"model list", `{"model":["m"]}`, Chat, ErrWrongType, "model"},
	{"stream text", `{"model":"m","stream":"true"}`, Chat, ErrWrongType, "stream"},
	{"stream number", `{"model":"m","stream":1}`, Chat, ErrWrongType, "stream"},
	{"max_tokens text", `{"model":"m","max_tokens":"1"}`, Chat, ErrWrongType, "max_tokens"},
	{"max_tokens negative", `{"model":"m","max_tokens":-1}`, Chat, ErrWrongType, "max_tokens"},
	{"max_tokens fraction", `{"model":"m","max_tokens":1.0}`, Chat, ErrWrongType, "max_tokens"},
	{"max_tokens exponent", `{"model":"m","max_tokens":1e2}`, Chat, ErrWrongType, "max_tokens"},
	{"max_tokens too large", `{"model":"m","max_tokens":9223372036854775808}`, Chat, ErrWrongType, "max_tokens"},
	{"max_completion_tokens huge", `{"model":"m","max_completion_tokens":` + strings.Repeat("9", 1000) + `}`, Chat, ErrWrongType, "max_completion_tokens"},
	{"stream_options list", `{"model":"m","stream_options":[]}`, Chat, ErrWrongType, "stream_options"},
	{"include_usage number", `{"model":"m","stream_options":{"include_usage":1}}`, Chat, ErrWrongType, "stream_options.include_usage"},
	{"wrong type but broken", `{"model":[1,}`, Chat, ErrSyntax, ""},
	{"no model", `{}`, Chat, ErrMissingModel, ""},
	{"model null", `{"model":null}`, Chat, ErrMissingModel, ""},
	{"model only inside", `{"x":{"model":"m"}}`, Chat, ErrMissingModel, ""},
	{"no prompt", `{"model":"m"}`, Completion, ErrMissingPrompt, ""},
	{"prompt null", `{"model":"m","prompt":null}`, Completion, ErrMissingPrompt, ""},
	{"prompt empty list", `{"model":"m","prompt":[ ]}`, Completion, ErrMissingPrompt, ""},
	{"prompt number", `{"model":"m","prompt":1}`, Completion, ErrWrongType, "prompt"},
	{"prompt object", `{"model":"m","prompt":{}}`, Completion, ErrWrongType, "prompt"},
	{"prompt of booleans", `{"model":"m","prompt":[true]}`, Completion, ErrWrongType, "prompt"},
	{"text among ids", `{"model":"m","prompt":[1,"a"]}`, Completion, ErrWrongType, "prompt"},
	{"ids among texts", `{"model":"m","prompt":["a",1]}`, Completion, ErrWrongType, "prompt"},
	{"id among lists", `{"model":"m","prompt":[[1],1]}`, Completion, ErrWrongType, "prompt"},
	{"negative id", `{"model":"m","prompt":[1,-1]}`, Completion, ErrWrongType, "prompt"},
	{"id fraction", `{"model":"m","prompt":[1.0]}`, Completion, ErrWrongType, "prompt"},
	{"id exponent", `{"model":"m","prompt":[1e1]}`, Completion, ErrWrongType, "prompt"},
	{"id too large", `{"model":"m","prompt":[4294967296]}`, Completion, ErrWrongType, "prompt"},
	{"id with leading zero", `{"model":"m","prompt":[01]}`, Completion, ErrSyntax, ""},
	{"ids with trailing comma", `{"model":"m","prompt":[1,]}`, Completion, ErrSyntax, ""},
	{"ids cut", `{"model":"m","prompt":[1,2`, Completion, ErrSyntax, ""},
}

func TestHostile(t *testing.T) {
	for _, c := range hostile {
		t.Run(c.name, func(t *testing.T) {
			f, err := Scan([]byte(c.body), c.kind)
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("accepted, or another error: %v", err)
			}
			if e.Class != c.class || e.Key != c.key || !errors.Is(err, c.class) {
				t.Errorf("got %v %q at %d, want %v %q", e.Class, e.Key, e.Offset, c.class, c.key)
			}
			if e.Offset < 0 || e.Offset > len(c.body) {
				t.Errorf("offset %d of %d", e.Offset, len(c.body))
			}
			if want := c.class.Error(); e.Error() != want && e.Error() != want+": "+c.key {
				t.Errorf("says %q", e.Error())
			}
			if f.Keys() != 0 || f.Model != nil {
				t.Error("facts beside an error")
			}
		})
	}
}

func TestDeepestAccepted(t *testing.T) {
	for _, pair := range []string{"[]", "{}"} {
		open, mid := pair[:1], ""
		if pair == "{}" {
			open, mid = `{"a":`, "1"
		}
		b := `{"model":"m","x":` + strings.Repeat(open, MaxDepth-1) + mid + strings.Repeat(pair[1:], MaxDepth-1) + `}`
		if _, err := Scan([]byte(b), Chat); err != nil {
			t.Errorf("%s: %v", pair, err)
		}
	}
}

func TestHugeNumbersPass(t *testing.T) {
	for _, n := range []string{"1e400", "-1e-400", "9007199254740993", "1.10", "-0", "0.0e+00", strings.Repeat("7", 1<<20)} {
		b := []byte(`{"model":"m","x":` + n + `,"temperature":` + n + `,"n":1}`)
		f, err := Scan(b, Chat)
		if err != nil {
			t.Fatalf("%.40s: %v", n, err)
		}
		if got := string(f.Value(Temperature).Of(b)); got != n {
			t.Errorf("temperature is %.40s", got)
		}
	}
}

// TestTruncated cuts a body that has everything at every byte: only the whole one may pass.
func TestTruncated(t *testing.T) {
	for _, kind := range []Kind{Chat, Completion} {
		for cut := range full {
			if _, err := Scan([]byte(full[:cut]), kind); !errors.Is(err, ErrSyntax) && !errors.Is(err, ErrUTF8) {
				t.Errorf("cut at %d: %v", cut, err)
			}
		}
		if _, err := Scan([]byte(full), kind); err != nil {
			t.Error(err)
		}
	}
}

const full = `{ "model":"m\u00e9\ud83d\ude00", "stream":true,"max_tokens":12,"x":[1,-2.5e+3,{"y":[[],{}],"z":null}],` +
	`"messages":[{"role":"user","content":"héllo 世界 \n \"q\""}],"prompt":[[1,2],[3]],"stream_options":{"include_usage":true},` +
	`"temperature":"0.5","rid":"a","u":false}`

// TestEveryByteBroken sets every byte of a body to several values; the naive model says what is right.
func TestEveryByteBroken(t *testing.T) {
	for i := range full {
		for _, c := range []byte{0, ' ', '"', '\\', '{', '}', '[', ']', ',', ':', '0', '9', 'e', 'n', 0x80, 0xc3, 0xff} {
			b := []byte(full)
			b[i] = c
			checkAgainstModel(t, b, Completion)
		}
	}
}

func checkAgainstModel(t *testing.T, b []byte, kind Kind) {
	t.Helper()
	want, class, key := model(b, kind)
	f, err := Scan(b, kind)
	var e *Error
	switch {
	case class == anyFault:
		if err == nil {
			t.Fatalf("accepted, but it is not JSON: %q", b)
		}
	case class != 0:
		if !errors.As(err, &e) || e.Class != class || e.Key != key {
			t.Fatalf("got %v, want %v %q: %q", err, class, key, b)
		}
	case err != nil:
		t.Fatalf("refused (%v), but it is right: %q", err, b)
	default:
		if got := simplify(&f); got != want {
			t.Fatalf("%s\n%q", cmp.Diff(want, got), b)
		}
	}
}

func FuzzScan(f *testing.F) {
	for _, c := range hostile {
		if len(c.body) < 1<<16 {
			f.Add([]byte(c.body), c.kind == Completion)
		}
	}
	f.Add([]byte(full), true)
	f.Add([]byte(`{"model":"m","prompt":[1, 2 ,3]}`), true)
	f.Add([]byte(`{"model":"m","prompt":["a","\u0061"],"n":"1_0","best_of":false}`), true)
	f.Fuzz(func(t *testing.T, b []byte, completion bool) {
		kind := Chat
		if completion {
			kind = Completion
		}
		before := bytes.Clone(b)
		checkAgainstModel(t, b, kind)
		if !bytes.Equal(b, before) {
			t.Fatal("the body was changed")
		}
	})
}

func TestKeyNames(t *testing.T) {
	for k := range numKeys {
		if got, ok := keyAt([]byte(k.String()), false); !ok || got != k {
			t.Errorf("%s reads as %v, %v", k, got, ok)
		}
		var escaped strings.Builder
		for _, c := range []byte(k.String()) {
			escaped.WriteString(`\u00`)
			escaped.WriteByte("0123456789ABCDEF"[c>>4])
			escaped.WriteByte("0123456789abcdef"[c&15])
		}
		if got, ok := keyAt([]byte(escaped.String()), true); !ok || got != k {
			t.Errorf("%s in escapes reads as %v, %v", k, got, ok)
		}
		if _, ok := keyAt([]byte(k.String()+"x"), false); ok {
			t.Errorf("%sx is known", k)
		}
		if _, ok := keyAt([]byte(strings.ToUpper(k.String())), false); ok {
			t.Errorf("%s is known in capitals", k)
		}
	}
	if SamplingKeys.Len() != 8 || !SamplingKeys.Has(Temperature) || !SamplingKeys.Has(N) || SamplingKeys&ProtectedKeys != 0 {
		t.Errorf("sampling keys are %v", SamplingKeys)
	}
	var protected []string
	for k := range ProtectedKeys.All() {
		protected = append(protected, k.String())
	}
	want := []string{"kv_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room", "input_ids", "cache_salt", "extra_key", "rid", "routed_dp_rank", "data_parallel_rank", "disagg_prefill_dp_rank", "vllm_xargs", "ec_transfer_params"}
	if d := cmp.Diff(want, protected); d != "" {
		t.Errorf("protected keys (- want):\n%s", d)
	}
}

func TestAppendIDs(t *testing.T) {
	got := AppendIDs(nil, []byte("[ 0,12, 4294967295 ]"))
	if d := cmp.Diff([]uint32{0, 12, 4294967295}, got); d != "" {
		t.Error(d)
	}
}
