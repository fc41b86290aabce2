package planning

import (
	"cmp"
	"slices"

	"github.com/perigee-llm/perigee/internal/cache/state"
)

// MaxPeers bounds the peers that a set keeps for a page. A directory knows as many rows a page; a page that four have is popular enough
// for one of them to answer.
const MaxPeers = 4

// Set is the evidence of one page: at most one replica in our memory, one on our disk, and MaxPeers at peers, one an owner. Make it with
// NewSet.
type Set struct {
	key       state.StateKey
	self      state.Incarnation
	dram, ssd state.Replica   // Version 0: none
	peers     []state.Replica // the one last heard of first: the newest evidence is the last to be wrong
}

// NewSet makes the empty set of a page, for a Manager that is self.
func NewSet(key state.StateKey, self state.Incarnation) Set { return Set{key: key, self: self} }

// Key is the page that the set is of.
func (s *Set) Key() state.StateKey { return s.key }

// Add takes evidence in and returns Chosen, or leaves it out and says why: it is of another page, has no version or covers no tokens
// (NotEvidence), is in a device's memory (NeedsGrant), or is of a peer for whom there is no place (Crowded). Of one resource the later
// evidence replaces the earlier, local and peers alike.
func (s *Set) Add(r state.Replica) Reason {
	switch {
	case r.Key != s.key || r.Version == 0 || r.Coverage.IsEmpty() || r.Coverage.Start > r.Coverage.End:
		return NotEvidence
	case r.Endpoint.Medium == state.HBM:
		return NeedsGrant
	case r.Endpoint.Medium != state.DRAM && r.Endpoint.Medium != state.SSD:
		return NotEvidence
	case r.Endpoint.Owner != s.self:
		return s.addPeer(r)
	case r.Endpoint.Medium == state.DRAM:
		s.dram = r
	default:
		s.ssd = r
	}
	return Chosen
}

// addPeer keeps one replica an owner, memory before disk: it is the owner who decides what it reads from.
func (s *Set) addPeer(r state.Replica) Reason {
	i := slices.IndexFunc(s.peers, func(p state.Replica) bool { return p.Endpoint.Owner == r.Endpoint.Owner })
	switch {
	case i >= 0 && s.peers[i].Endpoint.Medium < r.Endpoint.Medium:
		return Crowded
	case i >= 0:
		s.peers[i] = r
	default:
		s.peers = append(s.peers, r)
	}
	slices.SortFunc(s.peers, func(a, b state.Replica) int {
		return cmp.Or(cmp.Compare(b.Seen, a.Seen), slices.Compare(a.Endpoint.Owner[:], b.Endpoint.Owner[:]))
	})
	if len(s.peers) <= MaxPeers {
		return Chosen
	}
	out := s.peers[MaxPeers]
	s.peers = s.peers[:MaxPeers]
	if out.Endpoint.Owner == r.Endpoint.Owner {
		return Crowded
	}
	return Chosen
}

// Refresh replaces all evidence of peers by what a directory has just said, and leaves our own as it is.
func (s *Set) Refresh(peers []state.Replica) {
	s.peers = nil
	for _, r := range peers {
		if r.Endpoint.Owner != s.self { // a directory knows less of us than we do
			s.Add(r)
		}
	}
}

// Reject drops what one owner was said to have, after it refused: other replicas stay, and may still be tried.
func (s *Set) Reject(owner state.Incarnation) {
	s.peers = slices.DeleteFunc(s.peers, func(r state.Replica) bool { return r.Endpoint.Owner == owner })
}

// Lost drops what we were said to have in a medium, when it was not there any more.
func (s *Set) Lost(medium state.Medium) {
	switch medium {
	case state.DRAM:
		s.dram = state.Replica{}
	case state.SSD:
		s.ssd = state.Replica{}
	}
}

// Replicas returns all evidence, ours first, memory before disk, then peers' by age.
func (s *Set) Replicas() []state.Replica {
	var out []state.Replica
	for _, r := range []state.Replica{s.dram, s.ssd} {
		if r.Version != 0 {
			out = append(out, r)
		}
	}
	return append(out, s.peers...)
}
