package config

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v4"
)

// node is one value of a tree that was parsed from a file or made from flags.
type node = yaml.Node

const (
	scalarNode  = yaml.ScalarNode
	mappingNode = yaml.MappingNode
	listNode    = yaml.SequenceNode
	aliasNode   = yaml.AliasNode
)

// decoder fills a Config from a tree and remembers where each path was written, so that what is found later, when values are
// compared with each other, has a place too.
type decoder struct {
	file   string
	flags  map[*node]string  // the flag that a node was made from
	flagOf map[string]string // the flag that would set a path, when there is no file
	at     map[string]*node  // path → the node that was written for it
	items  map[string][]int  // list path → the place in the list of each item that was kept
	bad    map[string]bool   // paths that already have a fault: what depends on them is not judged again
	// above holds every path that has a fault somewhere below it.
	above  map[string]bool
	faults Faults
}

func newDecoder(file string) *decoder {
	return &decoder{file: file, flags: map[*node]string{}, at: map[string]*node{}, items: map[string][]int{}, bad: map[string]bool{}, above: map[string]bool{}}
}

func index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// cut shortens what was written: a fault is one line that a person reads, however long the value is.
func cut(s string) string {
	const most = 60 // bytes, enough to recognise what was written
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

func quote(s string) string { return strconv.Quote(cut(s)) }

// tagText is a node's tag as it can stand in a message: the escapes of YAML can put anything into one, a line feed too.
func tagText(n *node) string {
	tag := n.ShortTag()
	if strings.ContainsFunc(tag, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return quote(tag)
	}
	return cut(tag)
}

// step is a key as a step of a path; an odd key is quoted so that the path stays one readable word.
func step(key string) string {
	odd := func(r rune) bool { return r != '-' && r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }
	if key != "" && len(key) == len(cut(key)) && (key == "<<" || !strings.ContainsFunc(key, odd)) {
		return key
	}
	return quote(key)
}

// mark notes that path was written at n, and returns path.
func (d *decoder) mark(path string, n *node) string {
	d.at[path] = n
	return path
}

// has tells whether path was written, rather than left to its default.
func (d *decoder) has(path string) bool { return d.at[path] != nil }

// ok tells whether none of the paths, nor anything above them, has a fault.
func (d *decoder) ok(paths ...string) bool {
	for _, path := range paths {
		for p := path; p != ""; p = parent(p) {
			if d.bad[p] {
				return false
			}
		}
	}
	return !d.bad[""]
}

// clean tells whether nothing at, above or below path has a fault.
func (d *decoder) clean(path string) bool { return d.ok(path) && !d.above[path] }

// spoil notes that path has a fault.
func (d *decoder) spoil(path string) {
	d.bad[path] = true
	for p := parent(path); p != "" && !d.above[p]; p = parent(p) {
		d.above[p] = true
	}
}

// item is the path of the k-th item that was kept of the list at path.
func (d *decoder) item(path string, k int) string { return index(path, d.items[path][k]) }

// parent cuts the last step off a path.
func parent(path string) string {
	return path[:max(strings.LastIndexAny(path, ".["), 0)]
}

// name is how a person calls path: by its flag when it came from one, else by its key.
func (d *decoder) name(path string) string {
	if n := d.at[path]; n != nil && d.flags[n] != "" {
		return "--" + d.flags[n]
	}
	if flag := d.flagOf[path]; flag != "" {
		return "--" + flag
	}
	return path[strings.LastIndex(path, ".")+1:]
}

func (d *decoder) fault(path string, n *node, c class, what, cure string) {
	d.spoil(path)
	d.add(path, n, c, what, cure, false)
}

// faultAt is fault for a path that was read before; its place is that of the nearest path above it that was written.
func (d *decoder) faultAt(path string, c class, what, cure string) {
	d.fault(path, d.nearest(path), c, what, cure)
}

func (d *decoder) warnAt(path string, what, cure string) {
	d.add(path, d.nearest(path), classValue, what, cure, true)
}

func (d *decoder) nearest(path string) *node {
	for {
		if n := d.at[path]; n != nil || path == "" {
			return n
		}
		path = parent(path)
	}
}

func (d *decoder) add(path string, n *node, c class, what, cure string, warning bool) {
	f := Fault{File: d.file, Path: path, What: what, Cure: cure, Warning: warning, class: c}
	if n != nil {
		if flag := d.flags[n]; flag != "" {
			f.File, f.Flag = "", flag
			// One flag holds several parameters; the fault says which of them is meant.
			if param, ok := strings.CutPrefix(path, "models[0].sampling.override."); ok {
				f.What = param + " " + what
			}
		} else {
			f.Line, f.Column = n.Line, n.Column
		}
	}
	d.faults = append(d.faults, f)
}

// describe says in a person's words what was written instead of what is wanted.
func describe(n *node) string {
	switch n.Kind {
	case aliasNode:
		return "is an alias"
	case mappingNode:
		return "is a mapping"
	case listNode:
		return "is a list"
	}
	switch n.ShortTag() {
	case "!!null":
		return "has no value"
	case "!!bool":
		return cut(n.Value) + " is true or false"
	case "!!int", "!!float":
		if _, err := strconv.ParseInt(n.Value, 10, 64); errors.Is(err, strconv.ErrRange) {
			return cut(n.Value) + " is too large"
		}
		return cut(n.Value) + " is a number"
	case "!!timestamp":
		return cut(n.Value) + " is a date"
	case "!!str":
		if _, err := strconv.ParseFloat(n.Value, 64); errors.Is(err, strconv.ErrRange) && n.Style == 0 {
			return cut(n.Value) + " is too large"
		}
		return quote(n.Value) + " is text"
	}
	return "has the tag " + tagText(n)
}

// plain refuses what no value of this schema may be, whatever it should have been.
func (d *decoder) plain(path string, n *node) bool {
	switch {
	case n.Kind == aliasNode:
		d.fault(path, n, classValue, "is an alias", "write the value out: anchors and aliases are not supported")
	case n.Anchor != "":
		d.fault(path, n, classValue, "has the anchor "+quote(n.Anchor), "remove it and write values out: anchors and aliases are not supported")
	case n.Kind == scalarNode && n.ShortTag() == "!!null":
		d.fault(path, n, classValue, "has no value", "give it one, or remove the key")
	case n.Kind == mappingNode && n.ShortTag() != "!!map", n.Kind == listNode && n.ShortTag() != "!!seq":
		d.fault(path, n, classValue, "has the tag "+tagText(n), "remove the tag")
	default:
		return true
	}
	return false
}

// scalar returns the text of n when it is a scalar with one of the tags.
func (d *decoder) scalar(path string, n *node, want string, tags ...string) (string, bool) {
	if !d.plain(path, n) {
		return "", false
	}
	if n.Kind == scalarNode && slices.Contains(tags, n.ShortTag()) {
		return n.Value, true
	}
	cure := "write " + want
	if n.Kind == scalarNode && want == "text" {
		cure = "put it in quotes to make it text"
	}
	d.fault(path, n, classValue, describe(n), cure)
	return "", false
}

func (d *decoder) list(path string, n *node) ([]*node, bool) {
	if !d.plain(path, n) {
		return nil, false
	}
	if n.Kind != listNode {
		d.fault(path, n, classValue, describe(n), "write a list: [a, b], or one \"- \" a line")
		return nil, false
	}
	return n.Content, true
}

// mapping fills fields from n and tells whether that was possible without a fault in n itself. other may explain a key that fields
// does not have; it returns what and cure, or empty text.
func (d *decoder) mapping(path string, n *node, fields []field, other func(key string) (what, cure string)) bool {
	if !d.plain(path, n) {
		return false
	}
	if n.Kind != mappingNode {
		d.fault(path, n, classValue, describe(n), "write a mapping with the keys "+keyList(fields))
		return false
	}
	ok := true
	seen := map[string]*node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		if !d.key(path, key) {
			ok = false
			continue
		}
		at := join(path, step(key.Value))
		if first := seen[key.Value]; first != nil {
			d.fault(at, key, classValue, "is written twice, first in line "+strconv.Itoa(first.Line), "remove one of them")
			ok = false
			continue
		}
		seen[key.Value] = key
		j := slices.IndexFunc(fields, func(f field) bool { return f.key == key.Value })
		if j < 0 {
			d.unknown(at, key, fields, other)
			ok = false
			continue
		}
		d.mark(at, val)
		fields[j].val.decode(d, at, val)
		ok = ok && !d.bad[at]
	}
	for _, f := range fields {
		if f.required && seen[f.key] == nil {
			d.fault(join(path, f.key), n, classValue, "is missing", "add "+f.key+" ("+f.val.kind()+")")
			ok = false
		}
	}
	return ok
}

// key tells whether n can be a key at all.
func (d *decoder) key(path string, n *node) bool {
	switch {
	case n.Kind == scalarNode && n.ShortTag() == "!!merge":
		d.fault(join(path, "<<"), n, classValue, "merge keys are not supported", "write the keys out")
		return false
	case n.Kind == scalarNode && n.ShortTag() == "!!str" && n.Anchor == "":
		return true
	case n.Kind == scalarNode && n.Anchor == "":
		d.fault(join(path, step(n.Value)), n, classValue, "is not a key", "keys are words")
		return false
	}
	d.fault(path, n, classValue, "has a key that is not a word", "write one plain word before the colon")
	return false
}

func (d *decoder) unknown(at string, key *node, fields []field, other func(string) (string, string)) {
	what, cure := "", ""
	if other != nil {
		what, cure = other(key.Value)
	}
	if what == "" {
		var keys []string
		for _, f := range fields {
			keys = append(keys, f.key)
		}
		what, cure = "is not a known key", meant(key.Value, keys)
		if now := renamed[key.Value]; now != "" && slices.Contains(keys, strings.Fields(now)[0]) {
			cure = "write " + now + " here"
		}
	}
	d.fault(at, key, classValue, what, cure)
}

// renamed leads from the words of the design that the gateway follows to the keys that say the same here. The first word of each is a
// key; where it does not exist, the hint would mislead and is left out.
var renamed = map[string]string{
	"worker_ids": "workers",
	"type":       "name",
	"groups":     "plain or pd",
	"limits":     "min_input_tokens and max_input_tokens",
}

func keyList(fields []field) string {
	var keys []string
	for _, f := range fields {
		keys = append(keys, f.key)
	}
	return strings.Join(keys, ", ")
}

// meant proposes the option that was probably meant, or names them all.
func meant(word string, options []string) string {
	const longest = 64 // of a word that is compared: no option is longer, and the comparison is quadratic
	best, at := "", 0
	if len(word) <= longest {
		lower := strings.ReplaceAll(strings.ToLower(word), "-", "_")
		for _, o := range options {
			// A third of the letters may be wrong: more, and short words resemble everything.
			n := distance(lower, o)
			if len(lower) > 2 && strings.HasPrefix(o, lower) {
				n = 1 // the beginning of an option is as good as a slip of the finger
			}
			if n <= max(1, len(o)/3) && (best == "" || n < at) {
				best, at = o, n
			}
		}
	}
	if best != "" {
		return "did you mean " + best + "?"
	}
	return "choose from " + strings.Join(options, ", ")
}

// distance is the number of letters to insert, delete, replace or swap with a neighbour to get from a to b (optimal string
// alignment, a restricted Damerau-Levenshtein distance).
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	rows := [3][]int{make([]int, len(y)+1), make([]int, len(y)+1), make([]int, len(y)+1)}
	for j := range rows[1] {
		rows[1][j] = j
	}
	for i := 1; i <= len(x); i++ {
		before, last, now := rows[0], rows[1], rows[2]
		now[0] = i
		for j := 1; j <= len(y); j++ {
			cost := 1
			if x[i-1] == y[j-1] {
				cost = 0
			}
			now[j] = min(last[j]+1, now[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				now[j] = min(now[j], before[j-2]+1)
			}
		}
		rows = [3][]int{last, now, before}
	}
	return rows[1][len(y)]
}
