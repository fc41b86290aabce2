package config

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
)

// groups yields the bucket's groups and their paths below at.
func (b *Bucket) groups(at string) iter.Seq2[string, *Group] {
	return func(yield func(string, *Group) bool) {
		if b.Plain != nil && !yield(at+".plain", b.Plain) {
			return
		}
		if b.PD != nil && yield(at+".pd.prefill", &b.PD.Prefill) {
			yield(at+".pd.decode", &b.PD.Decode)
		}
	}
}

// roleOf is the role that a group's path asks of its engines.
func roleOf(path string) Role { return Role(path[strings.LastIndex(path, ".")+1:]) }

// compareMembership holds groups against the static list: a name that the list lacks, an engine whose role the group's stage cannot
// use, and an engine that no group can reach are each a mistake that would otherwise show as missing capacity.
func (d *decoder) compareMembership(c *Config) {
	r := newRoster(c.Discovery.Static.Workers)
	trusted := d.clean("discovery") // else a name may be missing because its engine's own entry is wrong
	for i := range c.Models {
		m := &c.Models[i]
		if len(m.Buckets) == 0 { // the default buckets take every engine in every role
			for id := range r.byID {
				r.reached[id] = true
			}
		}
		for j := range m.Buckets {
			for path, g := range m.Buckets[j].groups(index(index("models", i)+".buckets", j)) {
				d.compareGroup(path, g, r, trusted)
			}
		}
	}
	if !d.clean("models") || !trusted {
		return // a mistake in between may be why an engine is not reached
	}
	for i := range c.Discovery.Static.Workers {
		if w := &c.Discovery.Static.Workers[i]; !r.reached[w.id()] {
			d.faultAt(index("discovery.static.workers", i), classValue, quote(w.id())+" is reached by no group", "add it to a group's workers, or remove it")
		}
	}
}

// roster is the engines of a static list as groups see them.
type roster struct {
	byID    map[string]*Worker
	byURL   map[string]string // sameURL → id, for a reference with a slash more or less
	ids     []string          // sorted
	roles   map[Role]bool     // roles that a group without a list of its own has taken all engines of
	reached map[string]bool
}

func newRoster(ws []Worker) *roster {
	r := &roster{byID: map[string]*Worker{}, byURL: map[string]string{}, roles: map[Role]bool{}, reached: map[string]bool{}}
	for i := range ws {
		r.byID[ws[i].id()] = &ws[i]
		r.byURL[sameURL(ws[i].URL)] = ws[i].id()
	}
	r.ids = slices.Sorted(maps.Keys(r.byID))
	return r
}

// fits tells whether the engine can serve the role; an engine that is still to be asked may.
func (w *Worker) fits(role Role) bool { return w.Role == "" || w.Role == role }

func (d *decoder) compareGroup(path string, g *Group, r *roster, trusted bool) {
	role := roleOf(path)
	if g.Workers == nil {
		if r.roles[role] {
			return
		}
		r.roles[role] = true
		for id, w := range r.byID {
			if w.fits(role) {
				r.reached[id] = true
			}
		}
		return
	}
	for k, id := range g.Workers {
		at := d.item(path+".workers", k)
		w := r.byID[id]
		switch {
		case w == nil && trusted:
			d.faultAt(at, classValue, quote(id)+" is not an engine of discovery", r.nearest(id))
		case w != nil && !w.fits(role):
			d.faultAt(at, classValue, fmt.Sprintf("%s has the role %s and cannot serve a %s group", quote(id), w.Role, role), "move it, or change its role")
		case w != nil:
			r.reached[id] = true
		}
	}
}

// nearest proposes the id that was meant: often the URL with a slash more or less.
func (r *roster) nearest(id string) string {
	if w, ok := r.byURL[sameURL(id)]; ok {
		return "did you mean " + w + "?"
	}
	const shown = 5
	if len(r.ids) > shown {
		return fmt.Sprintf("choose from %s and %d more", strings.Join(r.ids[:shown], ", "), len(r.ids)-shown)
	}
	return "choose from " + strings.Join(r.ids, ", ")
}

// capacity is the longest input that a bucket takes; 0 is unbounded, because no bucket takes none.
func (b *Bucket) capacity() int {
	switch in, all := b.MaxInputTokens, b.MaxContextTokens; {
	case in == nil && all == nil:
		return 0
	case in == nil:
		return *all
	case all == nil:
		return *in
	default:
		return min(*in, *all)
	}
}

// compareCoverage warns about input lengths that fall between the buckets, and about an order that only the ids decide. Lengths
// above the largest bucket are the operator's limit and no mistake.
func (d *decoder) compareCoverage(at string, buckets []Bucket) {
	type key struct{ capacity, rank int }
	first := map[key]string{}
	order := make([]int, len(buckets))
	for i := range buckets {
		b := &buckets[i]
		order[i] = i
		k := key{b.capacity(), b.Rank}
		if other, twice := first[k]; twice {
			d.warnAt(index(at, i), fmt.Sprintf("has the same capacity and rank as bucket %s, so that their ids decide which is tried first", quote(other)), "give them different ranks")
		} else {
			first[k] = b.ID
		}
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(buckets[i].MinInputTokens, buckets[j].MinInputTokens) })
	covered := 0 // the longest input up to which there is no gap
	for _, i := range order {
		b := &buckets[i]
		if lo := b.MinInputTokens; lo > covered+1 {
			d.warnAt(index(at, i)+".min_input_tokens", fmt.Sprintf("inputs of %d to %d tokens fit no bucket and are refused", covered+1, lo-1), "close the gap")
		}
		if b.capacity() == 0 {
			return
		}
		covered = max(covered, b.capacity())
	}
}
