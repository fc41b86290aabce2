package remote

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/indexer/indexpb"
)

// TestHostileAnswers has answers that cannot be, to a prompt of 16 tokens. The gateway has a, b and c; the service follows these.
func TestHostileAnswers(t *testing.T) {
	type resp = indexpb.LookupResponse
	one := func(depths ...uint32) *resp { return &resp{Engines: []uint32{0}, Ranks: []int32{0}, Depths: depths} }
	priced := func(prices ...*indexpb.Price) *resp {
		r := one(0, 8, 8, 8)
		r.PriceEdition, r.Prices = 5, prices
		return r
	}
	price := func(change func(*indexpb.Price)) *resp {
		p := hostPrice(0, 0.5)
		change(p)
		return priced(p, hostPrice(1, 0.5))
	}
	for _, c := range []struct {
		about, want string
		answer      *resp
	}{
		{"unsorted", "1/0:[4 4 4 4], 2/0:[4 4 4 4], 2/1:[8 8 8 8], blind [1 3]", &resp{
			Engines: []uint32{1, 1, 0}, Ranks: []int32{1, 0, 0}, Depths: []uint32{8, 8, 8, 8, 4, 4, 4, 4, 4, 4, 4, 4}, Blind: []uint32{2, 0, 2},
		}},
		{"all of the prompt", "1/0:[0 4 8 16]", one(0, 4, 8, 16)},
		{"more than the prompt", "blind [1]", one(4, 4, 4, 17)},
		{"far more", "blind [1]", one(math.MaxUint32, math.MaxUint32, math.MaxUint32, math.MaxUint32)},
		{"less on more tiers", "blind [1]", one(8, 4, 8, 8)},
		{"nothing, in words", "blind [1]", one(0, 0, 0, 0)},
		{"a rank below zero", "blind [1]", &resp{Engines: []uint32{0}, Ranks: []int32{-1}, Depths: []uint32{4, 4, 4, 4}}},
		{"twice", "2/0:[4 4 4 4], blind [1]", &resp{
			Engines: []uint32{0, 1, 0}, Ranks: []int32{0, 0, 0}, Depths: []uint32{4, 4, 4, 4, 4, 4, 4, 4, 8, 8, 8, 8},
		}},
		{"engines beyond the list", "miss", &resp{Engines: []uint32{3, math.MaxUint32}, Ranks: []int32{0, 0}, Depths: make([]uint32, 8), Blind: []uint32{9}}},
		{"too few ranks", "rejected: the answer contradicts itself: its columns differ in length", &resp{Engines: []uint32{0, 1}, Ranks: []int32{0}, Depths: make([]uint32, 8)}},
		{"too few depths", "rejected: the answer contradicts itself: its columns differ in length", one(4, 4, 4)},
		{"prices", "1/0:[0 8 8 8]; prices 1:0.5 2:0.5", price(func(*indexpb.Price) {})},
		{"dear ones", "1/0:[0 8 8 8]; prices 1:1.7976931348623157e+308 2:0.5", price(func(p *indexpb.Price) { p.FixedSeconds = math.MaxFloat64 })},
		{"no number", "blind [1]; prices 2:0.5", price(func(p *indexpb.Price) { p.FixedSeconds = math.NaN() })},
		{"no number a token", "blind [1]; prices 2:0.5", price(func(p *indexpb.Price) { p.SecondsPerToken = math.NaN() })},
		{"no number for an error", "blind [1]; prices 2:0.5", price(func(p *indexpb.Price) { p.ErrorShare = math.NaN() })},
		{"without end", "blind [1]; prices 2:0.5", price(func(p *indexpb.Price) { p.SecondsPerToken = math.Inf(1) })},
		{"below zero", "blind [1]; prices 2:0.5", price(func(p *indexpb.Price) { p.FixedSeconds = -1e-9 })},
		{"an error below zero", "blind [1]; prices 2:0.5", price(func(p *indexpb.Price) { p.ErrorShare = -0.1 })},
		{"of nothing", "blind [1]; prices 2:0.5", price(func(p *indexpb.Price) { p.Samples = 0 })},
		{"of the device", "blind [1]; prices 2:0.5", price(func(p *indexpb.Price) { p.Tier = 0 })},
		{"of no tier", "blind [1]; prices 2:0.5", price(func(p *indexpb.Price) { p.Tier = 4 })},
		{"of a tier far beyond", "blind [1]; prices 2:0.5", price(func(p *indexpb.Price) { p.Tier = math.MaxUint32 })},
		{"of another time", "blind [1]; prices 2:0.5", price(func(p *indexpb.Price) { p.AgeMs = math.MaxUint32 })},
		{"twice for a tier", "blind [1]; prices 2:0.5", priced(hostPrice(0, 1), hostPrice(1, 0.5), hostPrice(0, 1))},
		{"of nobody", "1/0:[0 8 8 8]; prices 1:0.5", priced(hostPrice(3, 1), hostPrice(math.MaxUint32, 1), hostPrice(0, 0.5))},
		{"more than there can be", "rejected: the answer contradicts itself: more prices than engines can have", priced(make([]*indexpb.Price, 10)...)},
		{"an edition that is no other", "rejected: the answer contradicts itself: the edition that was asked for is another", &resp{Model: said()}},
		{"no edition", "rejected: the answer contradicts itself: the edition that was asked for is another", &resp{Model: &indexpb.Model{Engines: []string{"x"}}}},
		{"blocks of no tokens", "rejected: the answer contradicts itself: a block size that cannot be", &resp{Model: &indexpb.Model{Edition: 9, Domains: []*indexpb.Domain{{}}}}},
		{"blocks of too many", "rejected: the answer contradicts itself: a block size that cannot be", &resp{Model: &indexpb.Model{Edition: 9, Domains: []*indexpb.Domain{{BlockSize: 1<<20 + 1}}}}},
		{"too many domains", "rejected: the answer contradicts itself: more domains or engines than there can be", &resp{Model: &indexpb.Model{Edition: 9, Domains: make([]*indexpb.Domain, 65)}}},
	} {
		t.Run(c.about, func(t *testing.T) {
			s := (&service{lookup: func(_ context.Context, r *indexpb.LookupRequest) (*resp, error) {
				if r.Edition == 0 {
					return &resp{Model: said()}, nil
				}
				return c.answer, nil
			}}).serve(t)
			n := network{"one:80": s}
			o := n.options("one")
			o.Costs = new(prefix.Costs)
			if got := look(t.Context(), n.index(t, o), 16) + known(o.Costs); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// hostPrice is a good one of the engine at a place.
func hostPrice(place uint32, fixed float64) *indexpb.Price {
	return &indexpb.Price{Engine: place, Tier: uint32(prefix.Host), FixedSeconds: fixed, SecondsPerToken: 1e-6, Samples: 9, ErrorShare: 0.1, AgeMs: 40}
}

// known writes what is known of restores from host memory, engine by engine.
func known(c *prefix.Costs) (out string) {
	for no := range uint32(10) {
		if r := c.Of(no)[prefix.Host]; r.Samples > 0 {
			out += fmt.Sprintf(" %d:%v", no, r.Fixed)
		}
	}
	if out != "" {
		out = "; prices" + out
	}
	return out
}

// TestUnfollowed: an engine of ours that the service does not follow is blind; one of its that we do not have is nobody's.
func TestUnfollowed(t *testing.T) {
	s := (&service{lookup: func(_ context.Context, r *indexpb.LookupRequest) (*indexpb.LookupResponse, error) {
		if r.Edition == 0 {
			return &indexpb.LookupResponse{Model: &indexpb.Model{Edition: 7, Engines: []string{"http://b", "http://gone", "http://c/"}}}, nil
		}
		return &indexpb.LookupResponse{Engines: []uint32{1}, Ranks: []int32{0}, Depths: []uint32{4, 4, 4, 4}, Blind: []uint32{1}}, nil
	}}).serve(t)
	n := network{"one:80": s}
	o := n.options("one")
	distrusted := 0
	o.Hooks.Distrusted = func(_ string, engines int) { distrusted += engines }
	if got := look(t.Context(), n.index(t, o), 16); got != "blind [1 3]" || distrusted != 0 {
		t.Errorf("%s, distrusted %d", got, distrusted)
	}
}

// FuzzAnswer: whatever comes over the wire, the match is one that policies can use.
func FuzzAnswer(f *testing.F) {
	add := func(r *indexpb.LookupResponse, tokens int) {
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, tokens)
	}
	add(&indexpb.LookupResponse{Engines: []uint32{0, 2}, Ranks: []int32{0, 1}, Depths: []uint32{4, 4, 8, 8, 0, 0, 0, 16}, Blind: []uint32{1}}, 16)
	add(&indexpb.LookupResponse{Model: said()}, 16)
	add(&indexpb.LookupResponse{Engines: []uint32{0}, Ranks: []int32{0}, Depths: []uint32{0, 4, 4, 4}, PriceEdition: 9, Prices: []*indexpb.Price{
		hostPrice(0, 0.01), hostPrice(1, math.NaN()), {Engine: 2, Tier: 7}, hostPrice(9, 1), {Engine: 2, Tier: 2, SecondsPerToken: math.Inf(1), Samples: 1, AgeMs: math.MaxUint32},
	}}, 16)
	f.Fuzz(func(t *testing.T, b []byte, tokens int) {
		var r indexpb.LookupResponse
		if proto.Unmarshal(b, &r) != nil {
			return
		}
		if r.Model != nil {
			if m, err := learn(r.Model, 3); err == nil {
				m.request(&prefix.Query{Model: "m", Tokens: make([]uint32, tokens&1023)})
			}
		}
		tokens &= math.MaxInt32
		m, err := learn(said(), 0)
		if err != nil {
			t.Fatal(err)
		}
		a := answer{model: m, engines: fleet(""), prompt: tokens}
		var into prefix.Match
		if _, err := a.read(&r, &into); err != nil {
			return
		}
		if why := wrong(&into, tokens); why != "" {
			t.Errorf("%s in %+v", why, into)
		}
		var costs prefix.Costs
		var p prices
		p.init(&costs)
		p.take(&endpoint{}, "m", &a, anyPrices, r.PriceEdition)
		checkPrices(t, &costs, &into, &a)
		if p.close(); !reflect.DeepEqual(costs.Of(1), [prefix.Tiers]prefix.CostRecord{}) || len(p.mu.told) > 0 {
			t.Error("prices of a source that is closed")
		}
	})
}

// checkPrices holds that what came of an answer are prices, of engines that it did not make blind for theirs.
func checkPrices(t *testing.T, costs *prefix.Costs, into *prefix.Match, a *answer) {
	now := time.Now()
	for no := range uint32(5) {
		for tier, r := range costs.Of(no) {
			if r == (prefix.CostRecord{}) {
				continue
			}
			bad := !(r.Fixed >= 0 && r.PerToken >= 0 && r.Error >= 0) || math.IsInf(r.Fixed, 0) || math.IsInf(r.PerToken, 0) || math.IsInf(r.Error, 0)
			if age := now.Sub(r.At); bad || r.Samples <= 0 || age < 0 || age > time.Hour || tier == int(prefix.Device) || a.distrusts(no) {
				t.Errorf("engine %d, tier %d: %+v", no, tier, r)
			}
		}
		if a.distrusts(no) && (!into.IsBlind(no) || len(into.Ranks(no)) > 0) {
			t.Errorf("engine %d is not blind: %+v", no, into)
		}
	}
}

// wrong says what a policy could not use of a match.
func wrong(m *prefix.Match, tokens int) string {
	for i, h := range m.Held {
		if i > 0 && (m.Held[i-1].Engine > h.Engine || m.Held[i-1].Engine == h.Engine && m.Held[i-1].Rank >= h.Rank) {
			return "order of holders"
		}
		if h.Rank < 0 || h.Depth.Any() <= 0 || int(h.Depth.Any()) > tokens || !slices.IsSorted(h.Depth[:]) || h.Depth[0] < 0 {
			return fmt.Sprint("depth ", h)
		}
	}
	for i, b := range m.Blind {
		if i > 0 && m.Blind[i-1] >= b {
			return "order of the blind"
		}
	}
	return ""
}
