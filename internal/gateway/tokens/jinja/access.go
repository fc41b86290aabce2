package jinja

import "strings"

// List returns the items of a list, nil for any other value. They are the list's own: do not change them.
func (v Value) List() []Value {
	if v.k != kList {
		return nil
	}
	return v.items()
}

// Text returns the text of a string; not ok for any other value.
func (v Value) Text() (s string, ok bool) { return v.s, v.isString() }

// IsDict tells whether the value is a dict.
func (v Value) IsDict() bool { return v.k == kDict }

// True is Python's bool() of the value.
func (v Value) True() bool { return v.truth() }

// Get returns what a dict holds under the key; not ok if there is none, or no dict.
func (v Value) Get(key string) (Value, bool) {
	if v.k != kDict {
		return Value{}, false
	}
	return v.dict().get(key)
}

// Set sets a key of a dict, which keeps its place if it is there. Any other value is left as it is. Only the owner of a
// value may change it, and not while a render uses it.
func (v Value) Set(key string, val Value) {
	if v.k == kDict {
		v.dict().setText(key, val)
	}
}

// Keys returns the text keys of a dict in their order.
func (v Value) Keys() (keys []string) {
	if v.k != kDict {
		return nil
	}
	for _, e := range v.dict().entries {
		if e.key.isString() {
			keys = append(keys, e.key.s)
		}
	}
	return keys
}

// Dict makes an empty dict.
func Dict() Value { return dictOf(&dict{}) }

// Strings makes a list of texts.
func Strings(texts ...string) Value {
	items := make([]Value, len(texts))
	for i, s := range texts {
		items[i] = text(s)
	}
	return listOf(items)
}

// IsNone tells whether the value is Python's None.
func (v Value) IsNone() bool { return v.k == kNone }

// IsList tells whether the value is a list.
func (v Value) IsList() bool { return v.k == kList }

// Is tells whether the value is this text.
func (v Value) Is(s string) bool { return v.isString() && v.s == s }

// TrimSpace is Python's str.strip().
func TrimSpace(s string) string { return strings.TrimFunc(s, isSpace) }

// TrimRight is Python's str.rstrip().
func TrimRight(s string) string { return strings.TrimRightFunc(s, isSpace) }
