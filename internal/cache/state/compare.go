package state

import "strconv"

// Field is one field of a namespace, as people read it.
type Field struct{ Name, Value string }

// Fields lists every field in the order of the encoding, lists with their lengths. It works for invalid namespaces too.
func (n *Namespace) Fields() []Field {
	var l lister
	n.fields(&l)
	return l.fields
}

// Difference is a field that two namespaces have different values of. A value is "" where one of them has no such field, because its
// list is shorter.
type Difference struct{ Name, A, B string }

// Differences tells why two namespaces share no pages: each field that differs, in the order of the encoding. It is empty if and only
// if their ids are equal.
func Differences(a, b *Namespace) []Difference {
	var out []Difference
	ours, theirs := a.Fields(), b.Fields()
	other := make(map[string]string, len(theirs))
	for _, f := range theirs {
		other[f.Name] = f.Value
	}
	seen := make(map[string]bool, len(ours))
	for _, f := range ours {
		seen[f.Name] = true
		if v, ok := other[f.Name]; !ok || v != f.Value {
			out = append(out, Difference{f.Name, f.Value, v})
		}
	}
	for _, f := range theirs {
		if !seen[f.Name] {
			out = append(out, Difference{Name: f.Name, B: f.Value})
		}
	}
	return out
}

// lister is the coder that writes fields down.
type lister struct{ fields []Field }

func (l *lister) add(name, value string)          { l.fields = append(l.fields, Field{name, value}) }
func (l *lister) text(name string, v *string)     { l.add(name, strconv.Quote(*v)) }
func (l *lister) digest(name string, v *Digest)   { l.add(name, v.String()) }
func (l *lister) flag(name string, v *bool)       { l.add(name, strconv.FormatBool(*v)) }
func (l *lister) u8(name string, v *uint8)        { l.u64(name, ptr(uint64(*v))) }
func (l *lister) u32(name string, v *uint32)      { l.u64(name, ptr(uint64(*v))) }
func (l *lister) u64(name string, v *uint64)      { l.add(name, strconv.FormatUint(*v, 10)) }
func (l *lister) count(name string, n, _ int) int { l.add(name, strconv.Itoa(n)); return n }

func ptr[T any](v T) *T { return &v }
