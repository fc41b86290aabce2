package bpe

import (
	"slices"
	"strconv"
)

// fields are the members of a JSON object that is read by name. Each getter takes one; done complains about what nobody
// took, so that a setting that we do not know is never passed over. The first error stays.
type fields struct {
	path string
	keys []string
	vals map[string]any
	err  error
}

func (f *fields) fail(err error) {
	if f.err == nil {
		f.err = err
	}
}

func (f *fields) bad(key, problem string) {
	f.fail(&FormatError{Part: join(f.path, key), Problem: problem})
}

func (f *fields) unsupported(key, why string) {
	f.fail(&UnsupportedError{Part: join(f.path, key), Why: why})
}

// take returns the member and strikes it off; ok is false where the file does not have it.
func (f *fields) take(key string) (v any, ok bool) {
	v, ok = f.vals[key]
	if ok {
		delete(f.vals, key)
		f.keys = slices.DeleteFunc(f.keys, func(k string) bool { return k == key })
	}
	return v, ok
}

func (f *fields) text(key string) string {
	v, _ := f.take(key)
	s, ok := v.(string)
	if !ok {
		f.bad(key, "a string is needed")
	}
	return s
}

// optionalText is "" where the member is missing or null.
func (f *fields) optionalText(key string) string {
	v, _ := f.take(key)
	s, ok := v.(string)
	if !ok && v != nil {
		f.bad(key, "a string or null is needed")
	}
	return s
}

// flag needs the member: the reference implementation has different defaults for the same name in different places.
func (f *fields) flag(key string) bool {
	v, _ := f.take(key)
	b, ok := v.(bool)
	if !ok {
		f.bad(key, "true or false is needed")
	}
	return b
}

func (f *fields) optionalFlag(key string, missing bool) bool {
	if v, ok := f.vals[key]; !ok || v == nil {
		f.take(key)
		return missing
	}
	return f.flag(key)
}

func (f *fields) count(key string) uint32 {
	v, _ := f.take(key)
	n, ok := v.(number)
	u, err := strconv.ParseUint(string(n), 10, 32)
	if !ok || err != nil || u > maxID {
		f.bad(key, "an integer from 0 to "+strconv.Itoa(maxID)+" is needed")
		return 0
	}
	return uint32(u)
}

func (f *fields) list(key string) []any {
	v, _ := f.take(key)
	l, ok := v.([]any)
	if !ok {
		f.bad(key, "a list is needed")
	}
	return l
}

func (f *fields) object(key string) *fields {
	v, _ := f.take(key)
	o, ok := v.(*fields)
	if !ok {
		f.bad(key, "an object is needed")
		return &fields{path: join(f.path, key), err: f.err}
	}
	return o
}

// done returns the first error, or that a member is left.
func (f *fields) done() error {
	if len(f.keys) > 0 {
		f.unsupported(f.keys[0], "an unknown setting")
	}
	return f.err
}

// asObject is for an element of a list.
func asObject(v any, path string) (*fields, error) {
	if o, ok := v.(*fields); ok {
		return o, nil
	}
	return nil, &FormatError{Part: path, Problem: "an object is needed"}
}
