package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Change is one difference between two configurations.
type Change struct {
	Path     string // as in the file: models[0].buckets[1].rank; a list's items are counted as in the configuration that has them
	Old, New string // as written in a file; empty: not there
	// NeedsRestart means that a running gateway cannot take the change.
	NeedsRestart bool
}

// String writes the change on one line: path: old → new.
func (c Change) String() string {
	side := func(s string) string {
		if s == "" {
			return "none"
		}
		return cut(s)
	}
	return c.Path + ": " + side(c.Old) + " → " + side(c.New)
}

// Diff returns what is different in next. Models, buckets and engines are told apart by their ids, so that one which moves in its list
// has not changed, and one that comes or goes is one change. Both configurations are complete, as Parse returns them: a value
// that a group takes over from its model is a change of both.
func Diff(old, next *Config) []Change {
	before, after := listed(old), listed(next)
	changes := onlyThere(after, before, func(e entry, was *entry) Change {
		c := Change{Path: e.at.show, New: e.text, NeedsRestart: e.fixed}
		if was != nil {
			c.Old = was.text
		}
		return c
	})
	return append(changes, onlyThere(before, after, func(e entry, is *entry) Change {
		if is != nil {
			return Change{} // told above
		}
		return Change{Path: e.at.show, Old: e.text, NeedsRestart: e.fixed}
	})...)
}

// place is where a value stands: by the ids of list items, to find it again, and by their numbers, to show it.
type place struct{ id, show string }

func (p place) key(k string) place { return place{join(p.id, k), join(p.show, k)} }

func (p place) item(name string, i int) place {
	return place{p.id + "[" + strconv.Quote(name) + "]", index(p.show, i)}
}

// entry is one value that is in force.
type entry struct {
	at    place
	text  string // never empty
	fixed bool
	// whole means that what follows below the same place comes and goes with it.
	whole bool
}

func listed(c *Config) []entry {
	var out []entry
	listFields(c.fields(), place{}, func(e entry) { out = append(out, e) })
	return out
}

func listFields(fields []field, at place, put func(entry)) {
	for _, f := range fields {
		own := at.key(f.key)
		f.val.entries(own, func(e entry) {
			e.fixed = e.fixed || f.fixed && e.at == own
			put(e)
		})
	}
}

// onlyThere tells each entry of list that other lacks or has differently, less those that go with one told before.
func onlyThere(list, other []entry, tell func(e entry, inOther *entry) Change) []Change {
	by := make(map[string]*entry, len(other))
	for i := range other {
		by[other[i].at.id] = &other[i]
	}
	var out []Change
	within := "" // the place whose inside is told already
	for _, e := range list {
		if within != "" && strings.HasPrefix(e.at.id, within) && strings.IndexByte(".[", e.at.id[len(within)]) >= 0 {
			continue
		}
		was := by[e.at.id]
		if was != nil && was.text == e.text {
			continue
		}
		if c := tell(e, was); c.Path != "" {
			out = append(out, c)
		}
		if within = ""; e.whole && was == nil {
			within = e.at.id
		}
	}
	return out
}

// shown writes a value as a file would have it; empty for one that is not given.
func shown(x any) string {
	switch x := x.(type) {
	case nil:
		return ""
	case time.Duration:
		return spanText(x)
	case float64:
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	return fmt.Sprint(x)
}

func (v scalarValue[T]) entries(at place, put func(entry)) {
	x := v.get()
	if n, ok := x.(int64); ok && v.kindText == "size" {
		x = sizeText(n)
	}
	if s := shown(x); s != "" {
		put(entry{at: at, text: s})
	}
}

func (v wordsValue) entries(at place, put func(entry)) {
	if *v.p != nil {
		put(entry{at: at, text: "[" + strings.Join(*v.p, ", ") + "]"})
	}
}

func (v recordValue) entries(at place, put func(entry)) { listFields(v.r.fields(), at, put) }

func (v optionalValue[T]) entries(at place, put func(entry)) {
	if *v.p != nil {
		put(entry{at: at, text: "given", whole: true})
		listFields(v.as(*v.p).fields(), at, put)
	}
}

func (v recordsValue[T]) entries(at place, put func(entry)) {
	for i := range *v.p {
		r := v.as(&(*v.p)[i])
		item := at.item(r.(interface{ called() string }).called(), i)
		put(entry{at: item, text: r.(interface{ called() string }).called(), whole: true})
		listFields(r.fields(), item, put)
	}
}

func (m *Model) called() string  { return m.ID }
func (b *Bucket) called() string { return b.ID }
func (w *Worker) called() string { return w.id() }

func (v policyValue) entries(at place, put func(entry)) {
	if v.p.Name == "" {
		return
	}
	put(entry{at: at, text: string(v.p.Name)})
	switch {
	case v.p.CacheAware != nil:
		listFields(v.p.CacheAware.fields(), at, put)
	case v.p.Cost != nil:
		listFields(v.p.Cost.fields(), at, put)
	case v.p.SessionAware != nil:
		listFields(v.p.SessionAware.fields(), at, put)
	case v.p.Sticky != nil:
		listFields(v.p.Sticky.fields(), at, put)
	}
}

func (taken) entries(place, func(entry)) {}

func (v overrides) entries(at place, put func(entry)) {
	for _, r := range *v.p {
		text := r.Exact
		if text == "" {
			text = fmt.Sprintf("{min: %s, max: %s}", shown(r.Min), shown(r.Max))
		}
		put(entry{at: at.key(r.Param), text: text})
	}
}

// entries tells nothing: overrides tells all of them.
func (ruleValue) entries(place, func(entry)) {}
