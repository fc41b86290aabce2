package enginehttp

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// FuzzFindTokenIDs: on valid JSON the fast way finds what encoding/json finds, or leaves it to it; on anything else it does not panic.
func FuzzFindTokenIDs(f *testing.F) {
	for _, s := range []string{
		`{"prompt":[1,2,3]}`, `{"model":"a\"b","prompt" : [ 1 , 4294967295 ] , "x":1}`, `{"prompt":[[1],[2,3]],"stream":true}`,
		`{"a":{"prompt":[9]},"b":[{"prompt":[8]}],"input_ids":[7]}`, `{"prompt":"text"}`, `{"prompt":["a"]}`, `{"prompt":[]}`,
		`{"prompt":[[]]}`, `{"prompt":[01]}`, `{"prompt":[1.5]}`, `{"prompt":[-1]}`, `{"prompt":[1e3]}`, `{"prompt":[4294967296]}`,
		`{"prompt":[1,]}`, `{"prompt":[1`, `{"prompt`, `{`, ``, `[1]`, `{"p":tru,"prompt":[1]}`, "{\"prompt\":\n[\t1\r]}", `{"\u0070rompt":[1]}`,
		`{"prompt":[1,[2]]}`, `{"prompt":[[1],2]}`, `{"a":1 "prompt":[1]}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		ids, from, to, ok := findTokenIDs([]byte(body))
		if !ok || !json.Valid([]byte(body)) {
			return
		}
		if from < 0 || to > len(body) || from >= to {
			t.Fatalf("[%d:%d] of %d bytes", from, to, len(body))
		}
		value := body[from:to]
		var flat []uint32
		var lists [][]uint32
		if json.Unmarshal([]byte(value), &flat) == nil {
			lists = [][]uint32{flat}
		} else if err := json.Unmarshal([]byte(value), &lists); err != nil {
			t.Fatalf("%q is no list of token ids: %v", value, err)
		}
		if !slices.EqualFunc(ids, lists, slices.Equal) {
			t.Fatalf("%q: got %v, want %v", value, ids, lists)
		}
		if rest := body[:from] + "null" + body[to:]; !json.Valid([]byte(rest)) {
			t.Fatalf("what is left is no JSON: %q", rest)
		}
	})
}

// TestTokenIDsAreTakenTheFastWay holds that the ordinary forms of token-id prompts do not fall back to encoding/json.
func TestTokenIDsAreTakenTheFastWay(t *testing.T) {
	for _, body := range []string{
		`{"model":"m","prompt":[1,2,3],"max_tokens":4}`, `{"messages":[{"a":"]}\\\""}],"prompt": [[1, 2], [3]]}`, `{"input_ids":[5]}`,
	} {
		if _, _, _, ok := findTokenIDs([]byte(body)); !ok {
			t.Errorf("not found in %s", body)
		}
	}
}

// BenchmarkReadBody reads a request of 15,000 token ids, the mean of the Mooncake trace.
func BenchmarkReadBody(b *testing.B) {
	body := `{"model":"perigee-sim","prompt":` + ids(50000, 65000) + `,"max_tokens":100,"stream":true}`
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	w := httptest.NewRecorder()
	for b.Loop() {
		r := httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(body))
		g := &genBody{}
		if err := readBody(w, r, g); err != nil || len(g.ids[0]) != 15000 {
			b.Fatal(err)
		}
	}
}
