package indexer

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/indexer/indexpb"
)

// asker is a caller who keeps the edition of prices that he was told.
type asker struct {
	*world
	has uint64
}

// ask looks nothing up, and writes which prices come along.
func (a *asker) ask() string {
	a.t.Helper()
	r, err := a.client.Lookup(a.t.Context(), &indexpb.LookupRequest{Model: "m", Edition: a.model("m").Edition, PriceEdition: a.has})
	if err != nil || r.Model != nil {
		a.t.Fatal(r, err)
	}
	edition := "same"
	switch {
	case r.PriceEdition == 0:
		edition = "none"
	case r.PriceEdition != a.has:
		edition = "new"
	}
	if a.has != 0 {
		a.has = max(r.PriceEdition, anyEdition)
	}
	slices.SortFunc(r.Prices, func(x, y *indexpb.Price) int { return int(x.Engine*4+x.Tier) - int(y.Engine*4+y.Tier) })
	out := []string{edition}
	for _, p := range r.Prices {
		out = append(out, fmt.Sprintf("%d/%s:%v+%v/%d±%v %dms", p.Engine, prefix.Tier(p.Tier), p.FixedSeconds, p.SecondsPerToken, p.Samples, p.ErrorShare, p.AgeMs))
	}
	return strings.Join(out, " ")
}

func (a *asker) want(about, want string) {
	a.t.Helper()
	if got := a.ask(); got != want {
		a.t.Errorf("%s: %s, want %s", about, got, want)
	}
}

// TestPrices: who asks for prices gets those that count when they have changed, once a second at most.
func TestPrices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var costs prefix.Costs
		w := newWorld(t, Options{Costs: &costs})
		w.open(1, 0, 4, 8)
		w.open(2, 0, 4, 8)
		w.open(9, 0, 4, 8) // nobody knows where
		gateway, old := &asker{w, anyEdition}, &asker{w, 0}
		gateway.want("before any", "none")

		manager := costs.Source()
		set := func(engine uint32, tier prefix.Tier, fixed float64) {
			costs.Set(manager, engine, tier, prefix.CostRecord{Fixed: fixed, PerToken: 1e-6, Samples: 7, Error: 0.5, At: time.Now()})
		}
		set(1, prefix.Host, 0.1)
		set(9, prefix.Host, 0.1)
		set(3, prefix.Host, 0.1) // of another model
		time.Sleep(20 * time.Millisecond)
		gateway.want("the first", "new 0/host:0.1+1e-06/7±0.5 20ms")
		gateway.want("again", "same")
		old.want("to one of before", "none")

		set(2, prefix.Disk, 0.2)
		gateway.want("too soon", "same")
		late := &asker{w, anyEdition}
		late.want("to one who comes then", "new 0/host:0.1+1e-06/7±0.5 20ms 1/disk:0.2+1e-06/7±0.5 0ms")
		time.Sleep(pricesRest)
		gateway.want("a second later", "new 0/host:0.1+1e-06/7±0.5 1020ms 1/disk:0.2+1e-06/7±0.5 1000ms")
		late.want("to him too", "new 0/host:0.1+1e-06/7±0.5 1020ms 1/disk:0.2+1e-06/7±0.5 1000ms")

		time.Sleep(prefix.CostFreshness - time.Second)
		gateway.want("nothing new", "same")
		set(2, prefix.Host, math.Inf(1))
		gateway.want("those that count no more, and none", "new 1/disk:0.2+1e-06/7±0.5 10000ms")
		time.Sleep(pricesRest)
		costs.Withdraw(manager, 1)
		costs.Withdraw(manager, 2)
		gateway.want("all taken back", "new")
		gateway.want("and no more", "same")

		stranger := &asker{w, 77}
		stranger.want("to one who has another service's", "new")
	})
	w := newWorld(t, Options{})
	w.open(1, 0, 4, 8)
	(&asker{w, anyEdition}).want("of a service that follows no Manager", "none")
}
