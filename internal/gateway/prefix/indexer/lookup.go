package indexer

import (
	"context"
	"sync"

	"google.golang.org/grpc/status"

	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/indexer/indexpb"
)

// scratch is what a look-up needs besides its request.
type scratch struct {
	keys  []chain.Key
	names [][]chain.Key
	match prefix.Match
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// keep bounds the names that wait for their next use: a megabyte, of which there are few.
const keep = 64 << 10

// Lookup implements indexpb.PrefixIndexServer.
func (s *Server) Lookup(ctx context.Context, r *indexpb.LookupRequest) (*indexpb.LookupResponse, error) {
	m := s.models.get(s.o.Store, s.o.URL, r.Model)
	if r.Edition != m.wire.Edition {
		return &indexpb.LookupResponse{Model: m.wire}, nil
	}
	if len(r.Names) > len(m.wire.Domains) {
		return nil, errDomains
	}
	x := scratches.Get().(*scratch)
	defer x.release()
	if err := x.read(r.Names); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	x.match.Reset()
	m.edition.Lookup(r.Model, x.names, &x.match)
	out := m.answer(&x.match)
	s.prices.tell(r.PriceEdition, m, out)
	return out, nil
}

// read takes the names out of a request.
func (x *scratch) read(names [][]byte) error {
	n := 0
	for _, b := range names {
		if len(b)%chain.Size != 0 {
			return errNames
		}
		n += len(b) / chain.Size
	}
	if n > MaxNames {
		return errCapped
	}
	x.keys, x.names = x.keys[:0], x.names[:0]
	if cap(x.keys) < n {
		x.keys = make([]chain.Key, 0, n)
	}
	for _, b := range names {
		first := len(x.keys)
		for ; len(b) > 0; b = b[chain.Size:] {
			x.keys = append(x.keys, chain.FromBytes([chain.Size]byte(b)))
		}
		x.names = append(x.names, x.keys[first:])
	}
	return nil
}

func (x *scratch) release() {
	if cap(x.keys) <= keep {
		scratches.Put(x)
	}
}

// answer writes a match down. An engine that is not in the model's list has come or gone meanwhile, and is left out.
func (m *model) answer(match *prefix.Match) *indexpb.LookupResponse {
	n := len(match.Held)
	out := &indexpb.LookupResponse{
		Engines: make([]uint32, 0, n), Ranks: make([]int32, 0, n), Depths: make([]uint32, 0, n*prefix.Tiers), Blind: make([]uint32, 0, len(match.Blind)),
	}
	for _, h := range match.Held {
		place, there := m.places[h.Engine]
		if !there {
			continue
		}
		out.Engines, out.Ranks = append(out.Engines, place), append(out.Ranks, h.Rank)
		for _, d := range h.Depth {
			out.Depths = append(out.Depths, uint32(d))
		}
	}
	for _, e := range match.Blind {
		if place, there := m.places[e]; there {
			out.Blind = append(out.Blind, place)
		}
	}
	return out
}

var _ indexpb.PrefixIndexServer = (*Server)(nil)
