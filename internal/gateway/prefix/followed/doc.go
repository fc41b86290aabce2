// Package followed says how far what engines and Cache Managers publish has been followed: in metrics, and as GET /debug/prefixes answers. A gateway
// that keeps an index and the index as a service say it in the same words.
package followed

import (
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/managers"
)

// Followed is what is asked: all of it is the caller's, and needed. All methods may be called at once.
type Followed struct {
	Events   *events.Follower
	Managers *managers.Follower
	Store    *local.Store
}

// Answer is what GET /debug/prefixes says, as JSON.
type Answer struct {
	Streams  []Stream  `json:"streams"`
	Managers []Manager `json:"managers,omitempty"`
}

// Answer returns how everything is now: which engines are exact, which are not, why and since when.
func (f Followed) Answer() Answer {
	a := Answer{Streams: []Stream{}}
	for _, s := range f.Events.Status() {
		a.Streams = append(a.Streams, f.describe(&s))
	}
	for _, s := range f.Managers.Status() {
		a.Managers = append(a.Managers, describeManager(&s))
	}
	return a
}
