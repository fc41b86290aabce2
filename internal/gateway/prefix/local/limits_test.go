package local

import (
	"cmp"
	"math"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
)

// TestClaimsOfAnEngine: what each rank may claim, with answers: so many ranks, pools of so many tokens in blocks of 16.
func TestClaimsOfAnEngine(t *testing.T) {
	const million = 1 << 20
	for name, c := range map[string]struct {
		limit int // of the options
		ranks int
		pool  int64 // 0: not known
		want  int
	}{
		"not known":                       {0, 1, 0, index.DefaultLimit},
		"not known, four ranks":           {0, 4, 0, index.DefaultLimit},
		"not known, many ranks":           {0, 64, 0, 4 * index.DefaultLimit / 64},
		"eight times the pool":            {0, 1, 16 * 200_000, 1_600_000},
		"eight times the pool, by rank":   {0, 8, 16 * 200_000, 1_600_000},
		"a small pool":                    {0, 1, 16 * 100, million},
		"small pools":                     {0, 32, 16 * 100, million / 32},
		"a large pool":                    {0, 1, 16 * 1_800_000, 14_400_000},
		"no engine is that large":         {0, 1, math.MaxInt64, 4 * index.DefaultLimit},
		"no engine is that large, ranks":  {0, 512, math.MaxInt64, 4 * index.DefaultLimit / 512},
		"less than a block":               {0, 1, 15, million},
		"options that allow little":       {100, 1, 0, 100},
		"options, with ranks":             {100, 40, 0, 10},
		"options, with a pool":            {100, 1, 16 * 20, 400},
		"more ranks than claims":          {1, 12, 0, 1},
		"a pool that is below zero is no": {0, 1, -5, index.DefaultLimit},
	} {
		s := New(Options{Limit: c.limit})
		other := s.Open(Engine{No: 2, Base: "m"}, 0) // which has no part in it
		other.Apply(stored(16, 16, 9000, "", ""))
		var ranks []*Rank
		for i := range c.ranks {
			r := s.Open(Engine{No: 1, Base: "m"}, int32(i))
			if i%2 == 0 {
				r.Expect(c.pool) // before it has a block size
			}
			r.Apply(stored(16, 16, 1, "", ""))
			r.Expect(c.pool)
			ranks = append(ranks, r)
		}
		sum := 0
		for _, r := range ranks {
			a, _ := r.About()
			if a.Limit != c.want {
				t.Errorf("%s: rank %d may claim %d, want %d", name, r.no, a.Limit, c.want)
			}
			sum += a.Limit
		}
		if most := mostRanks * cmp.Or(c.limit, index.DefaultLimit); sum > most && sum > c.ranks {
			t.Errorf("%s: all ranks may claim %d, want %d at the most", name, sum, most)
		}
		for _, r := range ranks[1:] {
			r.Close()
			r.Close()
		}
		alone, _ := ranks[0].About()
		only := New(Options{Limit: c.limit})
		r := only.Open(Engine{No: 1, Base: "m"}, 0)
		r.Expect(c.pool)
		r.Apply(stored(16, 16, 1, "", ""))
		if want, _ := r.About(); alone.Limit != want.Limit {
			t.Errorf("%s: when the others have gone it may claim %d, want %d", name, alone.Limit, want.Limit)
		}
		ranks[0].SetLimit(7)
		if a, _ := ranks[0].About(); a.Limit != 7 {
			t.Errorf("%s: it may claim %d, and was told 7", name, a.Limit)
		}
		ranks[0].Withdraw() // and joins another index
		ranks[0].Apply(stored(8, 16, 1, "", ""))
		if a, size := ranks[0].About(); a.Limit != 7 || size != 8 {
			t.Errorf("%s: it may claim %d in blocks of %d", name, a.Limit, size)
		}
		ranks[0].Close()
		other.Close()
		if len(s.mu.ranksOf) != 0 {
			t.Errorf("%s: %v are counted, and all have gone", name, s.mu.ranksOf)
		}
	}
}
