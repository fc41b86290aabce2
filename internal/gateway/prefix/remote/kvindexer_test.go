package remote

import (
	"context"
	"math"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/remote/kvindexerpb"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/remote/pagehash"
)

func scheme4(model string) (pagehash.Scheme, bool) { return pagehash.Scheme{PageSize: 4}, model == "m" }

// TestKVIndexer: what is sent and what is made of the answers, hostile ones too.
func TestKVIndexer(t *testing.T) {
	var sent []int64
	var answer []*kvindexerpb.KVPrefixMatch
	s := (&service{match: func(_ context.Context, r *kvindexerpb.MatchExternalKvPrefixRequest) (*kvindexerpb.MatchExternalKvPrefixResponse, error) {
		sent = r.Hashes
		return &kvindexerpb.MatchExternalKvPrefixResponse{Matches: answer}, nil
	}}).serve(t)
	n := network{"x:80": s}
	k, err := NewKVIndexer(n.options("x"), scheme4)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	line := func(url string, blocks uint32) *kvindexerpb.KVPrefixMatch {
		return &kvindexerpb.KVPrefixMatch{WorkerAddress: url, MatchedPrefixBlocks: blocks}
	}
	for _, c := range []struct {
		about  string
		answer []*kvindexerpb.KVPrefixMatch
		want   string
	}{
		{"a miss", nil, "miss"},
		{"unsorted", []*kvindexerpb.KVPrefixMatch{line("http://b", 1), line("http://a", 4)}, "1/0:[16 16 16 16], 2/0:[4 4 4 4]"},
		{"several ranks of one", []*kvindexerpb.KVPrefixMatch{line("http://a", 1), line("http://a", 3), line("http://a", 2)}, "1/0:[12 12 12 12]"},
		{"engines that we do not have", []*kvindexerpb.KVPrefixMatch{line("http://a/", 4), line("", 4), line("http://z", 4)}, "miss"},
		{"nothing, in words", []*kvindexerpb.KVPrefixMatch{line("http://a", 0)}, "miss"},
		{"more than was asked for", []*kvindexerpb.KVPrefixMatch{line("http://a", 5), line("http://b", 2)}, "2/0:[8 8 8 8], blind [1]"},
		{"far more", []*kvindexerpb.KVPrefixMatch{line("http://a", math.MaxUint32)}, "blind [1]"},
	} {
		answer = c.answer
		if got := look(t.Context(), k, 18); got != c.want {
			t.Errorf("%s: %s, want %s", c.about, got, c.want)
		}
	}
	want := pagehash.Scheme{PageSize: 4}.Append(nil, tokens(16), "", 100)
	if len(sent) != 4 || sent[0] != want[0] || sent[3] != want[3] {
		t.Errorf("sent %d, want the four full pages %d", sent, want)
	}
	asked := s.asked
	for _, q := range []prefix.Query{{Model: "adapter", Tokens: tokens(16)}, {Model: "m", LoRA: "l", Tokens: tokens(16)}} {
		var m prefix.Match
		if err := k.Lookup(t.Context(), &q, &m); outcome(err, false) != Outcome(prefix.NotReady) {
			t.Errorf("%s, %s: %v", q.Model, q.LoRA, err)
		}
	}
	if got := look(t.Context(), k, 3); got != "miss" || s.asked != asked {
		t.Errorf("less than a page: %s, asked %d times", got, s.asked-asked)
	}
}

// TestKVIndexerTruncates sends what a service of upstream's takes, and no more.
func TestKVIndexerTruncates(t *testing.T) {
	sent := 0
	s := (&service{match: func(_ context.Context, r *kvindexerpb.MatchExternalKvPrefixRequest) (*kvindexerpb.MatchExternalKvPrefixResponse, error) {
		sent = len(r.Hashes)
		return &kvindexerpb.MatchExternalKvPrefixResponse{}, nil
	}}).serve(t)
	o := network{"x:80": s}.options("x")
	k, err := NewKVIndexer(o, func(string) (pagehash.Scheme, bool) { return pagehash.Scheme{PageSize: 1}, true })
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	if k.most != 1048574 {
		t.Errorf("at most %d hashes", k.most)
	}
	k.most = 1000 // a million digests take their time
	if got := look(t.Context(), k, k.most+100); got != "miss" || sent != k.most {
		t.Errorf("%s; sent %d hashes", got, sent)
	}
}
