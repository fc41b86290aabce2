package planning

import (
	"time"

	"github.com/perigee-llm/perigee/internal/cache/state"
)

// Target is what a plan ends with. Two plans compare only if they have the same: a page in memory is not yet one that an engine can use.
type Target uint8

// The targets.
const (
	// EngineRestore ends with the page in the engine's own memory.
	EngineRestore Target = iota
	// HostReady ends with the page in our pool, for a request that is still waiting.
	HostReady
)

// Route is the template by which a page is read.
type Route uint8

// The routes. What none of them names is not enumerated: no peer is asked to fetch from another peer, and no disk is read over a network.
const (
	// FromMemory reads our pool: the engine copies, under a lease.
	FromMemory Route = iota
	// FromDisk reads our store into our pool, and goes on as FromMemory.
	FromDisk
	// FromPeer asks a peer to pin its page, reads it into our pool, and goes on as FromMemory.
	FromPeer
	// FromPeerDisk asks a peer to read its store into its pool under its own credits, and goes on as FromPeer.
	FromPeerDisk

	routeCount
)

// Routes is a set of routes. The zero value is the empty set.
type Routes uint8

// Only makes a set of routes.
func Only(routes ...Route) (s Routes) {
	for _, r := range routes {
		s |= 1 << r
	}
	return s
}

// Has says whether r is in the set.
func (s Routes) Has(r Route) bool { return s&(1<<r) != 0 }

// Built is the routes that this binary can carry out.
func Built() Routes { return Only(FromMemory) }

// Question is what a plan is made for: one group's range of a demand, or the tail of a dense prompt.
type Question struct {
	Target Target
	// Span is what the sets cover: set i is of page i. PageTokens is not 0.
	Span       state.Span
	PageTokens uint64
	// Format is the representation that the registered layout wants.
	Format string
	// Required is how many pages have to be had for it to be worth while: all of them for a boundary, 1 where any prefix helps.
	Required int
	// Routes is what may be used: Built, or less.
	Routes Routes
	// Now and MaxAge decide which evidence of peers is too old, by our own clock. A MaxAge of 0 takes any age.
	Now, MaxAge time.Duration
}

// Plan is what to read. A plan without steps reads nothing: the group is a miss.
type Plan struct {
	Target Target
	// Steps are the pages from the first on, without a gap.
	Steps []Step
	// Refused is why the page behind the last step could not be read: all of its replicas, or NotFound alone if it has none. It is
	// empty if all pages are read. When Steps would have been fewer than required, they are empty, and Found says how many there were.
	Refused []Refusal
	Found   int
}

// Step is one page to be read.
type Step struct {
	Replica state.Replica
	Route   Route
}

// Refusal is a replica that is not read.
type Refusal struct {
	// Page is its number in the question's span.
	Page    int
	Replica state.Replica // the zero value for NotFound
	Reason  Reason
}

// Choose makes the plan for a group. The order of preference is fixed: our memory, our disk, a peer's memory, a peer's disk; among peers
// the one last heard of. Measured costs do not enter: until they are qualified, a route that was never taken has no estimate, and an
// unknown cost is not a low one.
//
// It panics if the sets are not the pages of the span, which is the caller's mistake and not the evidence's.
func Choose(q Question, sets []Set) Plan {
	if q.Span.Len() != uint64(len(sets))*q.PageTokens {
		panic("planning: as many sets as pages, please")
	}
	p := Plan{Target: q.Target}
	for i := range sets {
		step, refused := q.page(i, &sets[i])
		if refused != nil {
			p.Refused = refused
			break
		}
		p.Steps = append(p.Steps, step)
	}
	if p.Found = len(p.Steps); p.Found < q.Required {
		p.Steps = nil
	}
	return p
}

// AllOrNone says whether every group of a boundary has a plan that can be carried out. If one has none, all are given up: what was
// restored of the others would be a prefix that no engine can resume at.
func AllOrNone(groups []Plan) bool {
	for i := range groups {
		if len(groups[i].Steps) == 0 {
			return false
		}
	}
	return len(groups) > 0
}

// page chooses among one page's replicas, or returns why it takes none of them.
func (q *Question) page(i int, s *Set) (Step, []Refusal) {
	want := state.Span{Start: q.Span.Start + uint64(i)*q.PageTokens, End: q.Span.Start + uint64(i+1)*q.PageTokens}
	var refused []Refusal
	best, bestRoute := state.Replica{}, routeCount
	for _, r := range s.Replicas() {
		route := s.route(&r)
		if why := q.eligible(&r, route, want, r.Endpoint.Owner == s.self); why != Chosen {
			refused = append(refused, Refusal{i, r, why})
		} else if route < bestRoute {
			best, bestRoute = r, route
		}
	}
	switch {
	case bestRoute != routeCount:
		return Step{best, bestRoute}, nil
	case refused == nil:
		return Step{}, []Refusal{{Page: i, Reason: NotFound}}
	default:
		return Step{}, refused
	}
}

// route is the template that reads a replica.
func (s *Set) route(r *state.Replica) Route {
	local, memory := r.Endpoint.Owner == s.self, r.Endpoint.Medium == state.DRAM
	switch {
	case local && memory:
		return FromMemory
	case local:
		return FromDisk
	case memory:
		return FromPeer
	default:
		return FromPeerDisk
	}
}

// eligible says whether a replica may be read for the page, or why not. What is wrong with the replica goes before what is wrong with
// us: whoever asks why a page was missed wants to know that it would not have helped to build the route.
func (q *Question) eligible(r *state.Replica, route Route, want state.Span, local bool) Reason {
	switch {
	case r.Coverage != want:
		return OtherTokens
	case r.Format != q.Format && (local || r.Format != ""):
		return OtherFormat
	case !local && q.MaxAge > 0 && q.Now-r.Seen > q.MaxAge:
		return TooOld
	case !q.Routes.Has(route):
		return NoRoute
	default:
		return Chosen
	}
}
