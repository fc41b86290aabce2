package config

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// leaf is the part that values without keys below them share.
type leaf struct{ kindText, initialText, limitText string }

func (l leaf) kind() string    { return l.kindText }
func (l leaf) initial() string { return l.initialText }
func (l leaf) limits() string  { return l.limitText }
func (l leaf) nested() []field { return nil }

// scalarValue is a value that is written as one word or number.
type scalarValue[T any] struct {
	leaf
	get  func() any // nil when not given
	put  func(T)
	def  func()
	read func(d *decoder, path string, n *node) (T, bool)
}

func (v scalarValue[T]) reset() { v.def() }
func (v scalarValue[T]) decode(d *decoder, path string, n *node) {
	if x, ok := v.read(d, path, n); ok {
		v.put(x)
	}
}

// bind makes a value with a default.
func bind[T any](p *T, def T, l leaf, read func(*decoder, string, *node) (T, bool)) value {
	return scalarValue[T]{leaf: l, get: func() any { return *p }, put: func(x T) { *p = x }, def: func() { *p = def }, read: read}
}

// bindOpt makes a value that is nil when not given.
func bindOpt[T any](p **T, l leaf, read func(*decoder, string, *node) (T, bool)) value {
	get := func() any {
		if *p == nil {
			return nil
		}
		return **p
	}
	return scalarValue[T]{leaf: l, get: get, put: func(x T) { *p = &x }, def: func() { *p = nil }, read: read}
}

func text(p *string, def string) value {
	return bind(p, def, leaf{kindText: "text", initialText: def}, readText(nil))
}

func textIn(p *string, def string, check checker) value {
	return bind(p, def, leaf{kindText: "text", initialText: def}, readText(check))
}

func optText(p **string) value { return bindOpt(p, leaf{kindText: "text"}, readText(nil)) }

func readText(check checker) func(*decoder, string, *node) (string, bool) {
	return func(d *decoder, path string, n *node) (string, bool) {
		s, ok := d.scalar(path, n, "text", "!!str")
		if !ok {
			return "", false
		}
		if check != nil {
			if what, cure := check(s); what != "" {
				d.fault(path, n, classValue, what, cure)
				return "", false
			}
		}
		return s, true
	}
}

func flag(p *bool, def bool) value {
	return bind(p, def, leaf{kindText: "true or false", initialText: strconv.FormatBool(def)},
		func(d *decoder, path string, n *node) (bool, bool) {
			s, ok := d.scalar(path, n, "true or false", "!!bool")
			if ok && s != "true" && s != "false" {
				d.fault(path, n, classValue, quote(s)+" is not true or false", "write true or false")
				return false, false
			}
			return s == "true", ok
		})
}

func enum[T ~string](p *T, def T, options ...T) value {
	var names []string
	for _, o := range options {
		names = append(names, string(o))
	}
	return bind(p, def, leaf{kindText: "text", initialText: string(def), limitText: "one of " + strings.Join(names, ", ")},
		func(d *decoder, path string, n *node) (T, bool) {
			s, ok := d.scalar(path, n, "text", "!!str")
			if ok && !slices.Contains(names, s) {
				d.fault(path, n, classValue, quote(s)+" is not known", meant(s, names))
				return "", false
			}
			return T(s), ok
		})
}

// integer is what a whole number is stored in.
type integer interface{ ~int | ~int64 }

func rangeText(lo, hi int64) string {
	if hi == noMax {
		return itoa(lo) + " or more"
	}
	return itoa(lo) + " to " + itoa(hi)
}

func whole[T integer](p *T, def T, lo, hi int64) value {
	return bind(p, def, leaf{"whole number", itoa(int64(def)), rangeText(lo, hi)}, readWhole[T](lo, hi))
}

func optWhole[T integer](p **T, lo, hi int64) value {
	return bindOpt(p, leaf{"whole number", "", rangeText(lo, hi)}, readWhole[T](lo, hi))
}

func readWhole[T integer](lo, hi int64) func(*decoder, string, *node) (T, bool) {
	return func(d *decoder, path string, n *node) (T, bool) {
		s, ok := d.scalar(path, n, "a whole number", "!!int")
		if !ok {
			return 0, false
		}
		x, ok := parseWhole(s)
		if !ok {
			d.fault(path, n, classValue, quote(s)+" is not a plain whole number", "write it in decimal digits, without a leading zero or separators, "+rangeText(lo, hi))
			return 0, false
		}
		if x < lo || x > hi {
			d.fault(path, n, classValue, cut(s)+" is out of range", "choose "+rangeText(lo, hi))
			return 0, false
		}
		return T(x), true
	}
}

// parseWhole reads decimal digits only: 010 is eight to one reader of YAML and ten to the next.
func parseWhole(s string) (int64, bool) {
	digits := strings.TrimPrefix(s, "-")
	if len(digits) > 1 && digits[0] == '0' || strings.HasPrefix(digits, "+") {
		return 0, false
	}
	x, err := strconv.ParseInt(s, 10, 64)
	return x, err == nil
}

// bound is the range of a real number; lo itself is excluded when open is set.
type bound struct {
	lo, hi float64
	open   bool
}

func (b bound) String() string {
	lo, hi := strconv.FormatFloat(b.lo, 'f', -1, 64), strconv.FormatFloat(b.hi, 'f', -1, 64)
	switch {
	case math.IsInf(b.hi, 1):
		return "above " + lo
	case b.open:
		return "above " + lo + ", up to " + hi
	}
	return lo + " to " + hi
}

func (b bound) has(x float64) bool { return x <= b.hi && (x > b.lo || !b.open && x == b.lo) }

func share(p *float64, def float64) value {
	b := bound{0, 1, false}
	return bind(p, def, leaf{"number", strconv.FormatFloat(def, 'f', -1, 64), b.String()}, readReal(b))
}

func optShare(p **float64) value {
	b := bound{0, 1, false}
	return bindOpt(p, leaf{"number", "", b.String()}, readReal(b))
}

func above(p *float64, def, lo float64) value {
	b := bound{lo, math.Inf(1), true}
	return bind(p, def, leaf{"number", strconv.FormatFloat(def, 'f', -1, 64), b.String()}, readReal(b))
}

func readReal(b bound) func(*decoder, string, *node) (float64, bool) {
	return func(d *decoder, path string, n *node) (float64, bool) {
		s, ok := d.scalar(path, n, "a number", "!!int", "!!float")
		if !ok {
			return 0, false
		}
		x, ok := parseReal(s)
		if !ok {
			d.fault(path, n, classValue, quote(s)+" is not a finite decimal number", "choose "+b.String())
			return 0, false
		}
		if !b.has(x) {
			d.fault(path, n, classValue, cut(s)+" is out of range", "choose "+b.String())
			return 0, false
		}
		return x, true
	}
}

// parseReal reads finite decimal numbers; the other spellings of YAML (.inf, 0x1p4, 1_000) are refused.
func parseReal(s string) (float64, bool) {
	if strings.Trim(s, "+-.0123456789eE") != "" {
		return 0, false
	}
	x, err := strconv.ParseFloat(s, 64)
	return x, err == nil && !math.IsInf(x, 0)
}

func spanRange(lo, hi time.Duration) string {
	switch {
	case hi > 0:
		return spanText(lo) + " to " + spanText(hi)
	case lo == time.Nanosecond:
		return "more than 0s"
	default:
		return spanText(lo) + " or more"
	}
}

// spanText writes a duration without the zeros that time.Duration appends: 10m, not 10m0s.
func spanText(x time.Duration) string {
	s := x.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// span is a duration of at least lo and at most hi; hi 0 means no upper bound.
func span(p *time.Duration, def, lo, hi time.Duration) value {
	return bind(p, def, leaf{"duration", spanText(def), spanRange(lo, hi)}, readSpan(lo, hi))
}

func optSpan(p **time.Duration, lo, hi time.Duration) value {
	return bindOpt(p, leaf{"duration", "", spanRange(lo, hi)}, readSpan(lo, hi))
}

func readSpan(lo, hi time.Duration) func(*decoder, string, *node) (time.Duration, bool) {
	return func(d *decoder, path string, n *node) (time.Duration, bool) {
		if n.Kind == scalarNode && (n.ShortTag() == "!!int" || n.ShortTag() == "!!float") {
			d.fault(path, n, classValue, cut(n.Value)+" has no unit", "write a unit, such as "+quote(cut(n.Value)+"s"))
			return 0, false
		}
		s, ok := d.scalar(path, n, "a duration", "!!str")
		if !ok {
			return 0, false
		}
		x, err := time.ParseDuration(s)
		if err != nil {
			d.fault(path, n, classValue, quote(s)+" is not a duration", `write a number and a unit (ms, s, m, h), such as "30s"`)
			return 0, false
		}
		if x < lo || hi > 0 && x > hi {
			d.fault(path, n, classValue, cut(s)+" is out of range", "choose "+spanRange(lo, hi))
			return 0, false
		}
		return x, true
	}
}

func sizeText(n int64) string {
	for _, u := range byteUnits {
		if n >= u.bytes && n%u.bytes == 0 {
			return itoa(n/u.bytes) + u.suffix
		}
	}
	return itoa(n)
}

func size(p *int64, def, lo, hi int64) value {
	limits := sizeText(lo) + " to " + sizeText(hi)
	return bind(p, def, leaf{"size", sizeText(def), limits}, func(d *decoder, path string, n *node) (int64, bool) {
		s, ok := d.scalar(path, n, "a size", "!!int", "!!str")
		if !ok {
			return 0, false
		}
		digits, unit := s, int64(1)
		for _, u := range byteUnits {
			if head, ok := strings.CutSuffix(s, u.suffix); ok {
				digits, unit = head, u.bytes
			}
		}
		x, ok := parseWhole(digits)
		switch {
		case !ok:
			d.fault(path, n, classValue, quote(s)+" is not a size", "write bytes, or a whole number with KiB, MiB or GiB, such as 32MiB")
			return 0, false
		case x < 0 || x > hi/unit || x*unit < lo:
			d.fault(path, n, classValue, cut(s)+" is out of range", "choose "+limits)
			return 0, false
		}
		return x * unit, true
	})
}

// wordsValue is a list of text.
type wordsValue struct {
	leaf
	p         *[]string
	check     checker
	keepEmpty bool // an empty list is not the same as none
}

func words(p *[]string, of string, check checker, keepEmpty bool) value {
	return wordsValue{leaf{kindText: "list of " + of}, p, check, keepEmpty}
}

func (v wordsValue) reset() { *v.p = nil }
func (v wordsValue) decode(d *decoder, path string, n *node) {
	items, ok := d.list(path, n)
	if !ok {
		return
	}
	read := readText(v.check)
	seen := map[string]bool{}
	var out []string
	if v.keepEmpty {
		out = []string{}
	}
	for i, item := range items {
		at := d.mark(index(path, i), item)
		s, ok := read(d, at, item)
		if !ok {
			continue
		}
		if seen[s] {
			d.fault(at, item, classValue, quote(s)+" is listed twice", "remove one of them")
			continue
		}
		seen[s] = true
		out = append(out, s)
		d.items[path] = append(d.items[path], i)
	}
	*v.p = out
}

// recordValue is a struct that is always there.
type recordValue struct {
	leaf
	r record
}

func sub(r record) value { return recordValue{leaf{kindText: "mapping"}, r} }

func (v recordValue) nested() []field { return v.r.fields() }
func (v recordValue) reset()          { resetAll(v.r.fields()) }
func (v recordValue) decode(d *decoder, path string, n *node) {
	d.mapping(path, n, v.r.fields(), nil)
}

// optionalValue is a struct that is there only when it is written.
type optionalValue[T any] struct {
	leaf
	p  **T
	as func(*T) record
}

func optional[T any](p **T, as func(*T) record) value {
	return optionalValue[T]{leaf{kindText: "mapping"}, p, as}
}

// itself is for structs that are records.
func itself[T any, R interface {
	*T
	record
}](p R) record {
	return p
}

func (v optionalValue[T]) nested() []field { return v.as(new(T)).fields() }
func (v optionalValue[T]) reset()          { *v.p = nil }
func (v optionalValue[T]) decode(d *decoder, path string, n *node) {
	*v.p = new(T)
	fields := v.as(*v.p).fields()
	resetAll(fields)
	d.mapping(path, n, fields, nil)
}

// recordsValue is a list of structs.
type recordsValue[T any] struct {
	leaf
	p  *[]T
	as func(*T) record
}

func records[T any](p *[]T, as func(*T) record) value {
	return recordsValue[T]{leaf{kindText: "list of mappings"}, p, as}
}

func (v recordsValue[T]) nested() []field { return v.as(new(T)).fields() }
func (v recordsValue[T]) reset()          { *v.p = nil }
func (v recordsValue[T]) decode(d *decoder, path string, n *node) {
	items, ok := d.list(path, n)
	if !ok {
		return
	}
	if len(items) == 0 {
		d.fault(path, n, classValue, "the list is empty", "write at least one")
		return
	}
	out := make([]T, len(items))
	for i, item := range items {
		at := d.mark(index(path, i), item)
		r := v.as(&out[i])
		resetAll(r.fields())
		if s, ok := r.(shorthand); ok && item.Kind == scalarNode {
			s.word(d, at, item)
			continue
		}
		d.mapping(at, item, r.fields(), nil)
	}
	*v.p = out
}
