package events_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/wire"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
)

// session is testdata/vllm-0.32.0-session.json; its README says what is in it.
type session struct {
	BlockSize    int             `json:"block_size"`
	Incarnations [][]sessionStep `json:"incarnations"`
}

type sessionStep struct {
	Step     string           `json:"step"`
	Requests []sessionRequest `json:"requests"`
	Messages [][]string       `json:"messages"`
}

type sessionRequest struct {
	Prompt []uint32 `json:"prompt_token_ids"`
	Output []uint32 `json:"output_token_ids"`
	Cached int      `json:"cached_tokens"`
	LoRA   string   `json:"lora_name"`
	Salt   string   `json:"cache_salt"`
}

// atOnce are the steps whose requests came together, so that what was published in them belongs to no single one.
var atOnce = []string{"three at once", "more at once than fit: some are put off and begun again"}

// differences are the requests of the session for which the index says something else than the engine used, and why. No other may differ,
// and each of these must. Above all nothing else may be foreseen that is not there. That an index which keeps a set foresees too little once a copy
// was removed, the session does not show: the block that has a copy in it is asked for before the removal only.
var differences = map[string]string{
	"a reset and at once the same prompt, request 1: foreseen 96, used 0": "vLLM tells of a reset with the step of the next request, which is this one",
}

// follow applies what an engine publishes to an index, and says what that then holds of a prompt.
type follow struct {
	t     *testing.T
	size  int
	store *local.Store
	rank  *local.Rank
	dec   wire.Decoder
	there map[prefix.Hash]bool // what the engine has, as it names it
}

func newFollow(t *testing.T, size int) *follow {
	f := &follow{t: t, size: size, store: local.New(local.Options{}), there: map[prefix.Hash]bool{}}
	f.rank = f.store.Open(local.Engine{No: 1, Base: "tiny", Adapters: []string{"adapter"}}, 0)
	f.rank.Mark(index.Exact)
	return f
}

// held is what of the prompt the index says is held and an engine can use: the last token is always computed, and with it its block.
func (f *follow) held(r *sessionRequest) int {
	q := prefix.Query{Model: "tiny", LoRA: r.LoRA, Salt: r.Salt, Tokens: r.Prompt}
	if r.LoRA != "" {
		q.Model, q.LoRA = r.LoRA, "" // as clients name it
	}
	var m prefix.Match
	if err := f.store.Lookup(f.t.Context(), &q, &m); err != nil || len(m.Blind) > 0 {
		f.t.Fatalf("look-up: %v, %+v", err, m)
	}
	usable := (len(r.Prompt) - 1) / f.size * f.size
	return min(int(m.Of(1)[prefix.Device]), usable)
}

// apply tells the index a message. Each event must be of use, and then there are as many claims as there are names.
func (f *follow) apply(message []string) {
	payload := f.payload(message)
	if err := f.dec.Begin(payload); err != nil {
		f.t.Fatal(err)
	}
	for {
		switch s := f.dec.Next(); s {
		case wire.Event:
			if o := f.rank.Apply(&f.dec.Event); o.Result != index.Applied || o.Moved != 0 {
				f.t.Errorf("%+v: %+v", f.dec.Event, o)
			}
			f.note(&f.dec.Event)
		case wire.End:
			if a, _ := f.rank.About(); a.Claims != len(f.there) {
				f.t.Errorf("%d claims of %d blocks", a.Claims, len(f.there))
			}
			return
		default:
			f.t.Fatalf("an event of no use: %v, %v", s, f.dec.Bad)
		}
	}
}

func (f *follow) note(e *prefix.Event) {
	switch e.Kind {
	case prefix.Cleared:
		clear(f.there)
	case prefix.Removed:
		for _, h := range e.Hashes {
			delete(f.there, h)
		}
	case prefix.Stored:
		for _, h := range e.Hashes {
			f.there[h] = true
		}
	}
}

func (f *follow) payload(message []string) []byte {
	b, err := hex.DecodeString(message[len(message)-1])
	if err != nil {
		f.t.Fatal(err)
	}
	return b
}

// isOf tells whether all that a message stores is of the request.
func (f *follow) isOf(message []string, r *sessionRequest) bool {
	all := slices.Concat(r.Prompt, r.Output)
	var d wire.Decoder
	_ = d.Begin(f.payload(message)) // apply looks at the error
	for d.Next() == wire.Event {
		if e := &d.Event; e.Kind == prefix.Stored && !contains(all, e.Tokens, f.size) {
			return false
		}
	}
	return true
}

// contains tells whether part is in all, from the beginning of a block on.
func contains(all, part []uint32, size int) bool {
	for i := 0; i+len(part) <= len(all); i += size {
		if slices.Equal(all[i:i+len(part)], part) {
			return true
		}
	}
	return false
}

// TestGoldenSession holds the decoder and the index against a real engine: what they foresee of each request, and what the engine used.
func TestGoldenSession(t *testing.T) {
	raw, err := os.ReadFile("testdata/vllm-0.32.0-session.json")
	if err != nil {
		t.Fatal(err)
	}
	var s session
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Fatal(err)
	}
	compared, seen := 0, map[string]bool{}
	for _, steps := range s.Incarnations {
		f := newFollow(t, s.BlockSize) // a restarted engine is another one
		for i := range steps {
			compared += f.step(&steps[i], seen)
		}
	}
	for d := range differences {
		if !seen[d] {
			t.Errorf("it makes no difference any more: %s", d)
		}
	}
	t.Logf("%d requests, %d of them differ", compared, len(seen))
}

// step compares the requests of a step with what was published before each, and returns their number.
func (f *follow) step(s *sessionStep, seen map[string]bool) int {
	left := s.Messages
	together := slices.Contains(atOnce, s.Step)
	for i := range s.Requests {
		r := &s.Requests[i]
		if held := f.held(r); held != r.Cached {
			d := fmt.Sprintf("%s, request %d: foreseen %d, used %d", s.Step, i+1, held, r.Cached)
			if seen[d] = true; differences[d] == "" {
				f.t.Error(d)
			}
		}
		for !together && len(left) > 0 && f.isOf(left[0], r) {
			f.apply(left[0])
			left = left[1:]
		}
	}
	if !together && len(left) > 0 && len(s.Requests) > 0 {
		f.t.Errorf("%s: %d messages belong to no request", s.Step, len(left))
	}
	for _, m := range left {
		f.apply(m)
	}
	return len(s.Requests)
}
