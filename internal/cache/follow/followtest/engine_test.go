package followtest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestBatch: the decoder of engines' events reads what this engine says.
func TestBatch(t *testing.T) {
	Start(t)
	before := int64(-5)
	var d wire.Decoder
	if err := d.Begin(Batch([]Stored{
		{Names: []int64{-1, 2}, Tokens: []uint32{1, 1<<32 - 1}, Page: 1},
		{Names: []int64{3}, Parent: &before, Tokens: []uint32{9}, Page: 1, Salt: "s", LoRA: "l"},
	}...)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []prefix.Event{
		{Hashes: []prefix.Hash{1<<64 - 1, 2}, Tokens: []uint32{1, 1<<32 - 1}, BlockSize: 1},
		{Hashes: []prefix.Hash{3}, Parent: 1<<64 - 5, HasParent: true, Tokens: []uint32{9}, BlockSize: 1, Salt: "s", LoRA: "l"},
	} {
		if step := d.Next(); step != wire.Event {
			t.Fatal(step)
		}
		if diff := cmp.Diff(want, d.Event); diff != "" {
			t.Error(diff)
		}
	}
	if step := d.Next(); step != wire.End {
		t.Error(step)
	}
}
