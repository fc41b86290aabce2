package indexer

import (
	"encoding/binary"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/indexer/indexpb"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
)

// MaxClaims is the most claims in one part of a snapshot: 135 KB, which is a quarter of a millisecond of the index and a few of a network.
const MaxClaims = 4096

var errNoSnapshots = status.Error(codes.Unimplemented, "this service gives no snapshots")

// Snapshot implements indexpb.PrefixIndexServer.
//
// A rank's position is read before its claims, so that what is applied in between is sent twice rather than not at all: as a claim, and as an
// event of the batches that the reader applies from there on. Applying an event again changes nothing, since a claim is what the last
// event said of its block. So it is with the engine's groups, which have to be those of that position at least.
func (s *Server) Snapshot(r *indexpb.SnapshotRequest, out grpc.ServerStreamingServer[indexpb.SnapshotPart]) error {
	if s.o.Position == nil {
		return errNoSnapshots
	}
	if err := out.Context().Err(); err != nil {
		return errLate
	}
	claims := make([]index.Claim, MaxClaims)
	for _, c := range s.o.Store.Copyings(r.Model) {
		url, there := s.o.URL(c.Engine)
		if !there || r.Engine != "" && r.Engine != url || len(r.Ranks) > 0 && !slices.Contains(r.Ranks, c.Rank) {
			continue
		}
		if err := s.sendRank(c, url, claims, out); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) sendRank(c *local.Copying, url string, claims []index.Claim, out grpc.ServerStreamingServer[indexpb.SnapshotPart]) error {
	at, known := s.o.Position(c.Engine, c.Rank)
	if !known {
		return nil
	}
	groups := c.Groups()
	begin := &indexpb.Rank{
		Engine: url, Rank: c.Rank, Domain: &indexpb.Domain{Base: c.Domain.Base, BlockSize: uint32(c.Domain.BlockSize)},
		Next: at.Next, Print: at.Print, HasPrint: at.Printed, Whole: at.Whole,
		FullGroup: uint32(groups.Full), WindowGroup: uint32(groups.Sliding), RecurrentGroup: uint32(groups.Recurrent), Window: uint32(groups.Window),
	}
	if err := out.Send(&indexpb.SnapshotPart{Part: &indexpb.SnapshotPart_Rank{Rank: begin}}); err != nil {
		return err
	}
	done, void := false, false
	for !done && !void {
		if err := out.Context().Err(); err != nil {
			return status.FromContextError(err).Err()
		}
		var n int
		n, done, void = c.Next(claims)
		if n == 0 {
			continue
		}
		if err := out.Send(&indexpb.SnapshotPart{Part: &indexpb.SnapshotPart_Claims{Claims: columns(claims[:n])}}); err != nil {
			return err
		}
	}
	now, known := s.o.Position(c.Engine, c.Rank)
	end := &indexpb.RankEnd{Through: now.Next, Void: void || !known || now.Next < at.Next}
	return out.Send(&indexpb.SnapshotPart{Part: &indexpb.SnapshotPart_End{End: end}})
}

// columns writes claims down.
func columns(claims []index.Claim) *indexpb.Claims {
	n := len(claims)
	w := &indexpb.Claims{Names: make([]byte, 0, n*chain.Size), Parents: make([]byte, 0, n*8), Hashes: make([]byte, 0, n*8), Tiers: make([]byte, 0, n)}
	for i := range claims {
		c := &claims[i]
		name := c.Name.Bytes()
		w.Names = append(w.Names, name[:]...)
		w.Parents = binary.LittleEndian.AppendUint64(w.Parents, c.Before)
		w.Hashes = binary.LittleEndian.AppendUint64(w.Hashes, uint64(c.Hash))
		w.Tiers = append(w.Tiers, c.Bits)
	}
	return w
}
