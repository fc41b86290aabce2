package remote

import (
	"context"
	"errors"
	"math"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/remote/kvindexerpb"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/remote/pagehash"
)

// KVIndexer is a prefix source that asks an indexer of SGLang's, kv_indexer.v1. Make it with [NewKVIndexer], and close it. All methods may be
// called at once.
//
// Such an indexer knows pages by SGLang's hashes (package pagehash), in which neither the model nor an adapter is: one indexer serves one base
// model, and a look-up for an adapter is not ready rather than answered with what the base model's pages are worth. It does not tell
// ranks or tiers apart either: what it says is rank 0's and counts as on the device, which is what SGLang's router makes of it.
type KVIndexer struct {
	c      *caller
	scheme func(model string) (pagehash.Scheme, bool)
	most   int // hashes in a request: maxHashes, but for tests
}

var _ prefix.Source = (*KVIndexer)(nil)

// NewKVIndexer returns a source that has no connection yet. The caller closes it.
//
// Scheme returns how the engines of a model cut their pages; false: it is not known yet, or the name is an adapter's. The indexer does not say
// it. It is /server_info's kv_events.block_size, with bigrams where its speculative_algorithm is EAGLE, EAGLE3 or FROZEN_KV_MTP.
func NewKVIndexer(o Options, scheme func(model string) (pagehash.Scheme, bool)) (*KVIndexer, error) {
	if scheme == nil {
		return nil, errors.New("nobody says what pages there are")
	}
	c, err := newCaller(o)
	if err != nil {
		return nil, err
	}
	return &KVIndexer{c: c, scheme: scheme, most: maxHashes}, nil
}

// Name implements prefix.Source.
func (k *KVIndexer) Name() string { return "kv_indexer" }

// Close breaks off what is under way, as unreachable, and ends the connections.
func (k *KVIndexer) Close() { k.c.close() }

// InFlight returns how many look-ups are out.
func (k *KVIndexer) InFlight() int { return int(k.c.inFlight.Load()) }

// maxHashes is what fits into upstream's decode limit of 8 MiB with 16 bytes of framing. What is beyond is left out; how much of the
// prompt an answer is remains a share of all of it.
const maxHashes = (8<<20 - 16) / 8

var errNoScheme = &prefix.Unavailable{Reason: prefix.NotReady, Err: errors.New("the page size of the model's engines is not known, or the model is an adapter")}

// Lookup implements prefix.Source.
func (k *KVIndexer) Lookup(ctx context.Context, q *prefix.Query, into *prefix.Match) error {
	s, known := k.scheme(q.Model)
	if !known || q.LoRA != "" || s.PageSize <= 0 {
		k.c.o.Hooks.LookedUp(Outcome(prefix.NotReady), 0)
		return errNoScheme
	}
	pages := s.Pages(len(q.Tokens))
	if pages == 0 { // nothing of it can be held
		into.Reset()
		k.c.o.Hooks.LookedUp(Miss, 0)
		return nil
	}
	var r kvindexerpb.MatchExternalKvPrefixRequest
	return k.c.lookup(ctx, into, func(ctx context.Context, e *endpoint) error {
		if r.Hashes == nil { // not before there is room for the look-up
			n := min(pages, k.most)
			r.Hashes = s.Append(make([]int64, 0, n), q.Tokens, q.Salt, n)
		}
		answer, err := kvindexerpb.NewKVIndexerClient(e.conn).MatchExternalKvPrefix(ctx, &r)
		if err != nil {
			return err
		}
		if n := readMatches(answer, k.c.o.Engines(q.Model), s.PageSize, len(r.Hashes), into); n > 0 {
			k.c.o.Hooks.Distrusted(e.name, n)
		}
		return nil
	})
}

// readMatches fills the match, and returns how many engines it made blind because they cannot hold what is said of them. Several lines of one
// engine are its ranks', and the best counts.
func readMatches(r *kvindexerpb.MatchExternalKvPrefixResponse, engines map[string]uint32, pageSize, asked int, into *prefix.Match) (distrusted int) {
	best := map[uint32]uint32{}
	for _, m := range r.Matches {
		no, there := engines[m.GetWorkerAddress()]
		if there && m.GetMatchedPrefixBlocks() > 0 {
			best[no] = max(best[no], m.GetMatchedPrefixBlocks())
		}
	}
	for no, blocks := range best {
		if int64(blocks) > int64(asked) || int64(blocks)*int64(pageSize) > math.MaxInt32 {
			distrusted++
			into.Blind = append(into.Blind, no)
			continue
		}
		d := int32(blocks) * int32(pageSize)
		into.Held = append(into.Held, prefix.Held{Engine: no, Depth: prefix.Depth{d, d, d, d}})
	}
	order(into)
	return distrusted
}
