package remote

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

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
		w := &scripted{net: network{}, told: map[string]string{}}
		return w.do
	})
}

type scripted struct {
	net       network
	addresses []string
	told      map[string]string
	tried     []string
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

func (w *scripted) service(c *script.Command, name string) *service {
	return &service{
		lookup: func(ctx context.Context, r *indexpb.LookupRequest) (*indexpb.LookupResponse, error) {
			switch told := w.told[name]; told {
			case "":
				return holds(8)(ctx, r)
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
