package remote

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"time"

	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/indexer/indexpb"
)

// Rank is what a snapshot says of a rank before its claims.
type Rank struct {
	// Engine is the gateway's number of it, Rank the data-parallel rank.
	Engine uint32
	Rank   int32
	// Base and BlockSize are the domain that the claims are of.
	Base      string
	BlockSize int
	// Next is the number of the first batch whose events may be missing; Print is that of the batch before it, if Printed
	// (stream.Machine.Adopt).
	Next    int64
	Print   uint64
	Printed bool
	// Whole says that the claims are all that the engine holds, once the batches up to [Sink.End]'s are applied.
	Whole bool
	// Groups are those that the claims speak of.
	Groups index.Groups
}

// Sink gets a snapshot, in the goroutine that asked for it.
type Sink interface {
	// Begin begins a rank; false: nobody wants it.
	Begin(r Rank) bool
	// Claims are further ones of the rank that has begun. The slice is good until Claims returns. An error ends the snapshot.
	Claims(claims []index.Claim) error
	// End ends the rank. Its claims are true once all batches before through are applied.
	End(through int64)
	// Void ends the rank too: what it claimed is good for nothing. It is also called for a rank that has begun when the snapshot breaks
	// off.
	Void()
}

// Wanted is the rank of an engine that a snapshot is asked for.
type Wanted struct {
	// Model is any name that the engine goes by.
	Model string
	// URL is the engine's base, as it was registered; Engine is the gateway's number of it.
	URL    string
	Engine uint32
	Rank   int32
}

// Snapshot asks for all that is claimed of a model, of the endpoint that answered last or the next that can, and hands it over. It takes as
// long as the context allows, outside the bounds of look-ups. The errors are as of Lookup, or the sink's; what has ended before stands.
func (x *Index) Snapshot(ctx context.Context, model string, into Sink) error {
	first := int(x.c.preferred.Load())
	var err error
	for i := range x.c.endpoints {
		e := x.c.endpoints[(first+i)%len(x.c.endpoints)]
		s := snapshot{into: into, engines: x.c.o.Engines(model)}
		err = classify(s.from(ctx, e, &indexpb.SnapshotRequest{Model: model}))
		var away *prefix.Unavailable
		if !errors.As(err, &away) || ctx.Err() != nil || s.any {
			return err
		}
	}
	return err
}

// SnapshotOf asks for one rank, of the endpoint that answered last and the next ones until one has begun it, and hands it over. Of the context's deadline each
// gets an equal part of what is left with those behind it. It tells whether the rank was begun; if none has it, there is no error. The errors
// are as of Lookup, or the sink's.
func (x *Index) SnapshotOf(ctx context.Context, w Wanted, into Sink) (begun bool, err error) {
	r := &indexpb.SnapshotRequest{Model: w.Model, Engine: w.URL, Ranks: []int32{w.Rank}}
	n, first := len(x.c.endpoints), int(x.c.preferred.Load())
	for i := range n {
		e := x.c.endpoints[(first+i)%n]
		ctx, cancel := part(ctx, n-i)
		s := snapshot{into: only{into, w.Rank}, engines: map[string]uint32{w.URL: w.Engine}}
		this := classify(s.from(ctx, e, r))
		cancel()
		if s.any {
			x.c.preferred.Store(uint32((first + i) % n))
			return true, this
		}
		if this != nil {
			err = this
		}
	}
	return false, err
}

// part is a context for one of so many that share what is left of a deadline.
func part(ctx context.Context, many int) (context.Context, context.CancelFunc) {
	at, bounded := ctx.Deadline()
	if !bounded || many == 1 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(at)/time.Duration(many))
}

// only wants one rank.
type only struct {
	Sink
	rank int32
}

func (o only) Begin(r Rank) bool { return r.Rank == o.rank && o.Sink.Begin(r) }

// snapshot reads one.
type snapshot struct {
	into    Sink
	engines map[string]uint32
	any     bool // a rank was handed over

	inRank, wanted bool
	next           int64
	claims         []index.Claim
}

// sinkError is an error of the sink, which says nothing of the service.
type sinkError struct{ error }

func (s sinkError) Unwrap() error { return s.error }

func (s *snapshot) from(ctx context.Context, e *endpoint, r *indexpb.SnapshotRequest) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	parts, err := indexpb.NewPrefixIndexClient(e.conn).Snapshot(ctx, r)
	if err != nil {
		return err
	}
	defer func() {
		if s.inRank && s.wanted {
			s.into.Void()
		}
	}()
	for {
		p, err := parts.Recv()
		switch {
		case err == io.EOF && s.inRank:
			return contradiction("it ends within a rank")
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		if err := s.part(p); err != nil {
			return err
		}
	}
}

func (s *snapshot) part(p *indexpb.SnapshotPart) error {
	switch p := p.Part.(type) {
	case *indexpb.SnapshotPart_Rank:
		return s.begin(p.Rank)
	case *indexpb.SnapshotPart_Claims:
		if !s.inRank {
			return contradiction("claims of no rank")
		}
		return s.read(p.Claims)
	case *indexpb.SnapshotPart_End:
		if !s.inRank {
			return contradiction("the end of no rank")
		}
		return s.end(p.End)
	}
	return nil // of a later version
}

// maxGroup is what an index can count; see index.Groups.
const maxGroup = 1 << 30

func (s *snapshot) begin(r *indexpb.Rank) error {
	size := r.GetDomain().GetBlockSize()
	switch {
	case s.inRank:
		return contradiction("a rank within a rank")
	case r.Rank < 0 || r.Next < 0 || size == 0 || size > maxBlockSize:
		return contradiction("a rank that cannot be")
	case max(r.FullGroup, r.WindowGroup, r.RecurrentGroup, r.Window) > maxGroup:
		return contradiction("a KV cache group that cannot be")
	}
	no, there := s.engines[r.Engine]
	s.inRank, s.next = true, r.Next
	s.wanted = there && s.into.Begin(Rank{
		Engine: no, Rank: r.Rank, Base: r.Domain.Base, BlockSize: int(size), Next: r.Next, Print: r.Print, Printed: r.HasPrint, Whole: r.Whole,
		Groups: index.Groups{Full: int32(r.FullGroup), Sliding: int32(r.WindowGroup), Recurrent: int32(r.RecurrentGroup), Window: int(r.Window)},
	})
	s.any = s.any || s.wanted
	return nil
}

func (s *snapshot) end(e *indexpb.RankEnd) error {
	if !e.Void && e.Through < s.next {
		return contradiction("a rank that ends before it begins")
	}
	s.inRank = false
	switch {
	case !s.wanted:
	case e.Void:
		s.into.Void()
	default:
		s.into.End(e.Through)
	}
	return nil
}

// claimBits are those that a claim may have.
const claimBits = 0x3f

// read hands claims over.
func (s *snapshot) read(c *indexpb.Claims) error {
	n := len(c.Tiers)
	if len(c.Names) != n*chain.Size || len(c.Parents) != n*8 || len(c.Hashes) != n*8 {
		return contradiction("its columns differ in length")
	}
	if !s.wanted {
		return nil
	}
	s.claims = s.claims[:0]
	for i, bits := range c.Tiers {
		if bits == 0 || bits&^claimBits != 0 {
			return contradiction("a claim of no tier")
		}
		s.claims = append(s.claims, index.Claim{
			Name:   chain.FromBytes([chain.Size]byte(c.Names[i*chain.Size:])),
			Before: binary.LittleEndian.Uint64(c.Parents[i*8:]),
			Hash:   prefix.Hash(binary.LittleEndian.Uint64(c.Hashes[i*8:])),
			Bits:   bits,
		})
	}
	if err := s.into.Claims(s.claims); err != nil {
		return sinkError{err}
	}
	return nil
}
