package remote

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/indexer/indexpb"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/remote/kvindexerpb"
	"github.com/perigee-llm/perigee/internal/script"
)

// codeOf finds a status by its name.
func codeOf(c *script.Command, name string) codes.Code {
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		if code.String() == name {
			return code
		}
	}
	c.Fatalf("no status %q", name)
	return 0
}

// TestScripts: endpoints answer as they are told, and each look-up says what came of it and who was asked.
func TestScripts(t *testing.T) {
	script.Run(t, "testdata/*.txt", func(t *testing.T) script.Interpreter {
		w := &scripted{net: network{}, told: map[string]string{}, priced: map[string]*indexpb.LookupResponse{}, fleet: fleet("")}
		return w.do
	})
}

type scripted struct {
	net       network
	addresses []string
	told      map[string]string
	priced    map[string]*indexpb.LookupResponse // its edition and prices alone
	model     *indexpb.Model                     // nil: as always
	fleet     map[string]uint32                  // the gateway's
	tried     []string
	asked     []string // the price editions of requests
	costs     *prefix.Costs
	index     *Index
	kv        *KVIndexer
}

func (w *scripted) do(c *script.Command) bool {
	switch c.Name {
	case "endpoints": // NAME...: an address with a service each; a name that begins with "nobody" has none
		w.addresses = c.Words()
		for _, a := range w.addresses {
			if len(a) < 6 || a[:6] != "nobody" {
				w.net[a+":80"] = w.service(c, a).serve(c.T)
			}
		}
		w.start(c)
	case "tell": // NAME what: how it answers from now on
		name := c.Word()
		w.told[name] = c.Word()
	case "lookup":
		w.tried = nil
		c.Print(look(c.T.Context(), w.index, int(c.Int("tokens", 16))), fmt.Sprint("tried ", w.tried))
	case "prices": // NAME edition=N ENGINE:SECONDS...: what it says of restores from now on; it looks at the request's edition as services do
		name := c.Word()
		w.priced[name] = w.prices(c)
	case "follow": // edition=N ENGINE...: what the services follow
		w.model = &indexpb.Model{Edition: uint64(c.Int("edition", 0)), Engines: c.Words()}
	case "fleet": // ENGINE:NUMBER...: what the gateway has
		w.fleet = map[string]uint32{}
		for _, e := range c.Words() {
			url, no, _ := strings.Cut(e, ":")
			w.fleet["http://"+url] = uint32(c.ParseInt(no))
		}
	case "ask": // a look-up, with the price editions that were asked with, and what is known of prices
		w.asked = nil
		got := look(c.T.Context(), w.index, 16)
		c.Print(got+known(w.costs), fmt.Sprint("asked ", w.asked))
	case "close":
		w.index.Close()
		c.Print("closed" + known(w.costs))
	case "kv": // the same as kv_indexer.v1
		w.tried = nil
		c.Print(look(c.T.Context(), w.kv, int(c.Int("tokens", 16))), fmt.Sprint("tried ", w.tried))
	default:
		return false
	}
	return true
}

func (w *scripted) start(c *script.Command) {
	o := w.net.options(w.addresses...)
	w.costs = new(prefix.Costs)
	o.Costs, o.Engines = w.costs, func(string) map[string]uint32 { return w.fleet }
	o.Hooks.Tried = func(e string, o Outcome, _ time.Duration) {
		w.tried = append(w.tried, e[len("http://"):]+"="+string(o))
	}
	w.index = w.net.index(c.T, o)
	kv, err := NewKVIndexer(o, scheme4)
	if err != nil {
		c.Fatalf("%v", err)
	}
	c.T.Cleanup(kv.Close)
	w.kv = kv
}

// prices reads a service's prices.
func (w *scripted) prices(c *script.Command) *indexpb.LookupResponse {
	r := &indexpb.LookupResponse{PriceEdition: uint64(c.Int("edition", 0))}
	for _, p := range c.Words() {
		url, seconds, _ := strings.Cut(p, ":")
		fixed, err := strconv.ParseFloat(seconds, 64)
		if err != nil {
			c.Fatalf("%v", err)
		}
		all := said().Engines
		if w.model != nil {
			all = w.model.Engines
		}
		r.Prices = append(r.Prices, hostPrice(uint32(slices.Index(all, "http://"+url)), fixed))
	}
	return r
}

// holds answers that the first engine holds 8 tokens, with what is told of prices.
func (w *scripted) holds(ctx context.Context, name string, r *indexpb.LookupRequest) (*indexpb.LookupResponse, error) {
	if w.model != nil && r.Edition != w.model.Edition {
		return &indexpb.LookupResponse{Model: w.model}, nil
	}
	if w.model != nil {
		r.Edition = 7
	}
	out, err := holds(8)(ctx, r)
	if p := w.priced[name]; p != nil && out.GetModel() == nil && r.PriceEdition != 0 {
		if out.PriceEdition = p.PriceEdition; r.PriceEdition != p.PriceEdition {
			out.Prices = p.Prices
		}
	}
	return out, err
}

func (w *scripted) service(c *script.Command, name string) *service {
	return &service{
		lookup: func(ctx context.Context, r *indexpb.LookupRequest) (*indexpb.LookupResponse, error) {
			w.asked = append(w.asked, fmt.Sprint(name, ":", r.PriceEdition))
			switch told := w.told[name]; told {
			case "", "well":
				return w.holds(ctx, name, r)
			case "miss":
				return holds(0)(ctx, r)
			case "cold":
				return &indexpb.LookupResponse{Model: &indexpb.Model{Edition: 9}}, nil
			default:
				return fails(codeOf(c, told))(ctx, r)
			}
		},
		match: func(ctx context.Context, _ *kvindexerpb.MatchExternalKvPrefixRequest) (*kvindexerpb.MatchExternalKvPrefixResponse, error) {
			switch told := w.told[name]; told {
			case "":
				return &kvindexerpb.MatchExternalKvPrefixResponse{Matches: []*kvindexerpb.KVPrefixMatch{{WorkerAddress: "http://a", MatchedPrefixBlocks: 2}}}, nil
			case "miss", "cold":
				return &kvindexerpb.MatchExternalKvPrefixResponse{}, nil
			default:
				_, err := fails(codeOf(c, told))(ctx, nil)
				return nil, err
			}
		},
	}
}
