//go:build linux

package manager

import (
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
)

// TestStoryMissing: of an answered query one name is kept, that of the first block it did not get.
func TestStoryMissing(t *testing.T) {
	names := make([]core.Hash, storyNames+10)
	for i := range names {
		names[i] = core.Hash{1: byte(i + 1)}
	}
	for _, tt := range []struct {
		hits []uint32
		want int // -1: none
	}{{nil, 0}, {[]uint32{0, 3}, 0}, {[]uint32{7}, 7}, {[]uint32{storyNames - 1}, storyNames - 1}, {[]uint32{storyNames}, -1}, {[]uint32{storyNames + 10}, -1}} {
		var s story
		who := &session{id: core.SessionID{Epoch: 1, Number: 1}}
		ticket := core.Ticket{Op: 1, Revision: 1}
		s.asked(0, who, &wire.Query{Ticket: ticket, Wants: []core.Want{{Hashes: names}}})
		a := s.query(1, 1)
		if got := a.missing(); got == nil || *got != names[0] {
			t.Errorf("before it is answered: %v", got)
		}
		s.answered(time.Second, who.id, ticket, "found", tt.hits)
		got := a.missing()
		if tt.want < 0 && got != nil || tt.want >= 0 && (got == nil || *got != names[tt.want]) {
			t.Errorf("%v hits: %v, want block %d", tt.hits, got, tt.want)
		}
		if len(a.names) > 1 {
			t.Errorf("%v hits: %d names are kept", tt.hits, len(a.names))
		}
	}
}
