package events

import (
	"bytes"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"
)

// doubts counts what costs as much as the fleet is large.
type doubts struct {
	nobody
	n *int
}

func (d doubts) Doubt() { *d.n++ }

// TestLossesOfABatch: each byte of a batch may be an event that cannot be read.
func TestLossesOfABatch(t *testing.T) {
	header := []byte{0x92, 0xc0, 0xdd, 0, 0, 0, 0} // [nil, [event, …]], with room for how many
	stored := append([]byte{0x95, 0xab}, "BlockStored"...)
	stored = append(stored, 0x91, 1, 0xc0, 0x91, 7, 1) // one block of one token
	for name, c := range map[string]struct {
		event   []byte
		doubts  int
		applied uint64
		bad     uint64
	}{
		"losses alone":            {[]byte{1}, 1, 0, 0},
		"stores between":          {append(bytes.Clone(stored), 1), maxLosses, maxLosses, 1},
		"stores and many a loss":  {append(bytes.Clone(stored), 1, 1, 1), maxLosses, maxLosses, 1},
		"nothing but good events": {stored, 0, 1000, 0},
	} {
		_, feeds := idle(t, Options{}, 1)
		f, n := feeds[0], 0
		f.claims = doubts{n: &n}
		events := 1000 * bytes.Count(c.event, []byte{0x95})
		events += 1000 * (bytes.Count(c.event, []byte{1}) - 2*bytes.Count(c.event, []byte{0x95}))
		payload := append(bytes.Clone(header), bytes.Repeat(c.event, 1000)...)
		payload[5], payload[6] = byte(events>>8), byte(events)
		f.todo = []stream.Action{{Kind: stream.Apply, Batch: stream.Batch{Payload: payload}}}
		f.goOn(f.loggedFrom)
		lossy := f.m.Status().Losses > 0
		if want := c.doubts > 0; lossy != want || n != c.doubts || f.counts.Stored != c.applied || f.counts.BadBatches != c.bad {
			t.Errorf("%s: lossy %v, %d doubts, %d stores, %d bad batches; want %d, %d, %d", name, lossy, n, f.counts.Stored, f.counts.BadBatches, c.doubts, c.applied, c.bad)
		}
	}
}
