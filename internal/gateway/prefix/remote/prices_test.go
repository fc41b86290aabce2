package remote

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/indexer"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
)

// priceRig is a service proper, in memory, with an engine at http://1, and a gateway's source that has it as number 1000.
type priceRig struct {
	t         *testing.T
	store     *local.Store
	far, near prefix.Costs // the service's, the gateway's
	x         *Index
}

func newPriceRig(t *testing.T) *priceRig {
	r := &priceRig{t: t, store: local.New(local.Options{})}
	r.store.Open(local.Engine{No: 1, Base: "m", Adapters: []string{"tuned"}}, 0).Mark(index.Exact)
	s := &service{listener: bufconn.Listen(1 << 20)}
	serve(t, indexer.Options{Store: r.store, URL: urlOf, Costs: &r.far}, s.listener)
	o := network{"one:80": s}.options("one")
	o.Engines, o.Costs = numbers(3), &r.near
	r.x = network{"one:80": s}.index(t, o)
	return r
}

// look asks for a model, and writes whether the gateway's engine has a price that counts.
func (r *priceRig) look(model string, engine uint32) string {
	r.t.Helper()
	if err := r.x.Lookup(r.t.Context(), &prefix.Query{Model: model, Tokens: tokens(4)}, new(prefix.Match)); err != nil {
		r.t.Fatal(err)
	}
	return r.counts(engine)
}

func (r *priceRig) counts(engine uint32) string {
	rec := r.near.Of(engine)[prefix.Host]
	_, ok := rec.Restore(1, time.Now())
	return fmt.Sprint(rec.Fixed, " ", ok)
}

func (r *priceRig) want(about, got, want string) {
	r.t.Helper()
	if got != want {
		r.t.Errorf("%s: %s, want %s", about, got, want)
	}
}

// TestPricesAge: a price counts for as long at the gateway as where it was heard of, whether or not anybody looks up meanwhile.
func TestPricesAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPriceRig(t)
		manager := r.far.Source()
		r.want("before any", r.look("m", 1000), "0 false")
		r.far.Set(manager, 1, prefix.Host, prefix.CostRecord{Fixed: 0.5, Samples: 1, At: time.Now()})
		time.Sleep(4 * time.Second)
		r.want("told late", r.look("m", 1000), "0.5 true")
		time.Sleep(prefix.CostFreshness - 4*time.Second)
		r.want("to the last moment", r.counts(1000), "0.5 true")
		time.Sleep(time.Millisecond)
		r.want("over", r.look("m", 1000), "0.5 false")

		r.far.Set(manager, 1, prefix.Host, prefix.CostRecord{Fixed: 0.25, Samples: 1, At: time.Now()})
		r.want("measured again", r.look("m", 1000), "0.25 true")
		r.far.Withdraw(manager, 1)
		time.Sleep(time.Second)
		r.want("taken back", r.look("m", 1000), "0 false")
	})
}

// TestPricesOfNames: an engine that goes by several names has one price, which is that of the last answer of any.
func TestPricesOfNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPriceRig(t)
		manager := r.far.Source()
		set := func(engine uint32, fixed float64) {
			r.far.Set(manager, engine, prefix.Host, prefix.CostRecord{Fixed: fixed, Samples: 1, At: time.Now()})
			time.Sleep(time.Second)
		}
		set(1, 0.5)
		r.want("by the base model", r.look("m", 1000), "0.5 true")
		set(1, 0.25)
		r.want("by the adapter", r.look("tuned", 1000), "0.25 true")
		r.want("by the base model again", r.look("m", 1000), "0.25 true")
		r.far.Withdraw(manager, 1)
		time.Sleep(time.Second)
		r.want("the adapter's is gone", r.look("tuned", 1000), "0 false")

		set(1, 1)
		r.store.Open(local.Engine{No: 2, Base: "m"}, 0).Mark(index.Exact) // goes by the one name
		set(2, 2)
		r.want("two engines", r.look("m", 1000)+", "+r.counts(999), "1 true, 2 true")
		r.want("nothing of the one that has not the name", r.look("tuned", 1000)+", "+r.counts(999), "1 true, 2 true")
		r.far.Withdraw(manager, 2)
		time.Sleep(time.Second)
		r.want("whoever said it last takes it back", r.look("tuned", 1000)+", "+r.counts(999), "1 true, 2 true")
		r.want("and the base model's is gone", r.look("m", 1000)+", "+r.counts(999), "1 true, 0 false")
		r.x.Close()
		r.want("closed", r.counts(1000), "0 false")
	})
}
