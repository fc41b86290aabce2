package gateway

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/api"
	"github.com/perigee-llm/perigee/internal/gateway/assemble"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/explain"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
	"github.com/perigee-llm/perigee/internal/gateway/tokens"
	"github.com/perigee-llm/perigee/internal/gateway/tokens/bpe"
	"github.com/perigee-llm/perigee/internal/telemetry"
)

// BenchmarkPick is the time from a chat body of 32 KB in memory to the moment at which its request goes to the engine that was picked:
// scan, template, tokenizer, look-up in an index of a million blocks of 64 engines, pick, guards, head and patch. "seen" is a conversation
// whose beginning was seen before and is held by engines, with a new last turn; "new" is one of which nothing was seen. p50 and p99 are
// of the wall clock: they mean something on a quiet machine only. Needs the real tokenizer of Qwen 3 (scripts/tokenizers.sh).
func BenchmarkPick(b *testing.B) {
	for _, policy := range []config.PolicyName{config.CacheAware, config.Cost} {
		for _, seen := range []bool{true, false} {
			name := map[bool]string{true: "seen", false: "new"}[seen]
			b.Run(string(policy)+"/"+name, func(b *testing.B) { benchPick(b, policy, seen) })
		}
	}
}

func benchPick(b *testing.B, name config.PolicyName, seen bool) {
	store := local.New(local.Options{})
	ranks := fillIndex(store)
	model := benchModel(b)
	prose := benchProse(b)
	rng := rand.New(rand.NewPCG(1, 2))
	// The conversations: 32 of them, each of 32 KB, held by two engines.
	var histories []string
	for i := range 32 {
		at := rng.IntN(len(prose) - 33<<10)
		text := strings.ToValidUTF8(prose[at:at+32<<10], "")
		histories = append(histories, text)
		f, ok := model.Measure(tokens.Request{Messages: messages(b, text, "")})
		if !ok {
			b.Fatal("nothing to measure")
		}
		hold(ranks[i], f.IDs, prefix.Hash(1<<40+i<<20))
		hold(ranks[i+7], f.IDs, prefix.Hash(1<<41+i<<20))
	}
	s, engines := benchServer(b, name, store, model)
	h := s.Public()
	var took []time.Duration
	n := 0
	for b.Loop() {
		b.StopTimer()
		turn := fmt.Sprint("question ", n, " ", rng.Uint64())
		history := histories[n%len(histories)]
		if !seen {
			at := rng.IntN(len(prose) - 33<<10)
			history = fmt.Sprint(rng.Uint64(), " ") + strings.ToValidUTF8(prose[at:at+32<<10], "")
		}
		body, _ := json.Marshal(map[string]any{"model": rigModel, "max_tokens": 1, "messages": json.RawMessage(messages(b, history, turn))})
		r := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", bytes.NewReader(body))
		w := httptest.NewRecorder()
		b.StartTimer()
		began := time.Now()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			b.Fatal(w.Body.String())
		}
		took = append(took, engines.at.Sub(began))
		n++
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// fillIndex makes 64 engines that hold 2,048 prompts of 512 blocks, one each.
func fillIndex(store *local.Store) (ranks []*local.Rank) {
	for i := range 64 {
		r := store.Open(local.Engine{No: uint32(i + 1), Base: rigModel}, 0)
		r.Mark(index.Exact)
		ranks = append(ranks, r)
	}
	for p := range 2048 {
		g := rand.New(rand.NewPCG(uint64(p), 1024))
		ids := make([]uint32, 8192)
		for i := range ids {
			ids[i] = uint32(g.IntN(150000))
		}
		hold(ranks[p%64], ids, prefix.Hash(p<<16))
	}
	return ranks
}

// hold has an engine publish that it holds the blocks of the ids.
func hold(r *local.Rank, ids []uint32, hash prefix.Hash) {
	e := prefix.Event{Kind: prefix.Stored, BlockSize: 16, Tokens: ids[:len(ids)/16*16]}
	for i := range len(ids) / 16 {
		e.Hashes = append(e.Hashes, hash+prefix.Hash(i))
	}
	r.Apply(&e)
}

func messages(b *testing.B, history, turn string) []byte {
	list := []map[string]string{{"role": "system", "content": history}}
	if turn != "" {
		list = append(list, map[string]string{"role": "user", "content": turn})
	}
	text, err := json.Marshal(list)
	if err != nil {
		b.Fatal(err)
	}
	return text
}

func benchModel(b *testing.B) *tokens.Model {
	root := filepath.Join("..", "..")
	dir := b.TempDir()
	for to, from := range map[string]string{
		"tokenizer.json":      filepath.Join(root, ".cache", "tokenizers", "qwen3.json"),
		"chat_template.jinja": filepath.Join("tokens", "template", "testdata", "templates", "Qwen3-8B-Q8_0.jinja"),
	} {
		text, err := os.ReadFile(from)
		if err != nil {
			b.Skip("no real tokenizer here: scripts/tokenizers.sh fetches it: ", err)
		}
		if err := os.WriteFile(filepath.Join(dir, to), text, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	m, err := tokens.Open(dir, bpe.NewCache(64<<20))
	if err != nil {
		b.Fatal(err)
	}
	return m
}

func benchProse(b *testing.B) string {
	f, err := os.Open(filepath.Join("tokens", "bpe", "testdata", "prose.txt.gz"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		b.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		b.Fatal(err)
	}
	return string(text)
}

// clock answers at once, and says when it was asked.
type clock struct{ at time.Time }

func (c *clock) RoundTrip(*http.Request) (*http.Response, error) {
	c.at = time.Now()
	const answer = `{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"length"}]}`
	return &http.Response{
		StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"Content-Type": {"application/json"}},
		ContentLength: int64(len(answer)), Body: io.NopCloser(strings.NewReader(answer)),
	}, nil
}

func benchServer(b *testing.B, name config.PolicyName, store *local.Store, m *tokens.Model) (*api.Server, *clock) {
	cfg, faults := config.Parse("bench.yaml", fmt.Appendf(nil, "models: [{id: %s, policy: %s}]\ndiscovery: {static: {workers: [http://e1]}}\n", rigModel, name))
	if err := faults.Err(); err != nil {
		b.Fatal(err)
	}
	registry := fleet.NewRegistry(fleet.BreakerConfig{}, 0)
	for i := range 64 {
		registry.Put(fleet.Spec{ID: fmt.Sprint("e", i+1), URL: fmt.Sprint("http://e", i+1), Kind: fleet.VLLM, Models: []string{rigModel}})
	}
	metrics := telemetry.New()
	source := newCountedSource(store, metrics)
	builder := assemble.Builder{Seed: 1, Source: func(string, *config.Policy) prefix.Source { return source }}
	resolver, err := builder.Resolver(rigModel, &cfg.Models[0], nil)
	if err != nil {
		b.Fatal(err)
	}
	engines := &clock{}
	s, err := api.New(api.Options{
		Config: api.Config{
			Models:   []*api.Model{{ID: rigModel, Resolver: resolver, Tokens: m, Prefixes: true}},
			Settings: buildSettings(cfg),
		},
		Registry: registry, Tracker: &load.Tracker{}, Engines: engines, Metrics: metrics, Explain: explain.NewLog(0), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.Close)
	return s, engines
}
