package indexer

import (
	"errors"
	"io"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/indexer/indexpb"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
)

// TestSnapshotHasTheGroupsOfItsPosition: to say its position a rank waits for the rest of a batch, in which its engine may show another KV cache
// group and evict what that holds.
func TestSnapshotHasTheGroupsOfItsPosition(t *testing.T) {
	var r *local.Rank
	w := newWorld(t, Options{Position: func(uint32, int32) (Position, bool) {
		hashes := []prefix.Hash{100, 101, 102, 103}
		for _, e := range []*prefix.Event{
			{Group: 1, Window: 8, BlockSize: 4, Tokens: sequence(16), Hashes: hashes},
			{Kind: prefix.Removed, Group: 1, Hashes: hashes},
		} {
			if o := r.Apply(e); o.Result != index.Applied {
				t.Errorf("%+v", o)
			}
		}
		return Position{}, true
	}})
	r = w.open(1, 0, 4, 16)
	s, err := w.client.Snapshot(t.Context(), &indexpb.SnapshotRequest{Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	part, err := s.Recv()
	if is := part.GetRank(); err != nil || is.GetFullGroup() != 1 || is.GetWindowGroup() != 2 || is.GetWindow() != 8 {
		t.Errorf("%v, %v", is, err)
	}
	for err == nil {
		_, err = s.Recv()
	}
	if !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}
