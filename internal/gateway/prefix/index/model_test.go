package index

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// model is the index as it should be, in maps, with nothing clever: a block is named by all that is in it, and each look-up asks each
// engine about each block.
type model struct {
	blockSize, limit int
	recall           int // of how many hashes that a holder has let go of it is remembered what they meant
	holders          map[Holder]*modelHolder
	parents          map[string]string // of all blocks that ever were; "" for the first of a prompt
}

type modelHolder struct {
	store    bool
	engine   uint32
	rank     int32
	state    State
	limit    int
	cur, old map[prefix.Hash]*modelClaim
	attached map[Holder]bool

	kinds           map[int]int // of groups: full attention, window, recurrent
	first           [3]int      // the first group of each kind, -1: none seen
	tokens          int         // the widest window
	uneven, missed  bool        // there are different ones; something of a group could not be followed
	loose, oldLoose bool        // cur or old may have a block on the device without the one before it
	offloads        bool        // it has stored on a slower tier without tokens
	gone            []modelGone // what it has let go of since
}

type modelGone struct {
	hash prefix.Hash
	name string
}

type modelClaim struct {
	name string
	bits uint8
}

func newModel(c Config) *model {
	return &model{blockSize: c.BlockSize, limit: c.Limit, recall: mostForgotten, holders: map[Holder]*modelHolder{}, parents: map[string]string{}}
}

func (m *model) open(h Holder, store bool, engine uint32, rank int32) {
	m.holders[h] = &modelHolder{store: store, engine: engine, rank: rank, cur: map[prefix.Hash]*modelClaim{}, attached: map[Holder]bool{}}
	m.holders[h].forgetGroups()
}

func (m *model) close(h Holder) {
	delete(m.holders, h)
	for _, x := range m.holders {
		delete(x.attached, h)
	}
}

func (m *model) mark(h Holder, s State) {
	if x := m.holders[h]; x != nil && x.state != CutOff && s != CutOff {
		x.state = s
	}
}

func (m *model) attach(store, engine Holder) {
	if s, e := m.holders[store], m.holders[engine]; s != nil && e != nil && s.store && !e.store {
		s.attached[engine] = true
	}
}

func (m *model) detach(store, engine Holder) {
	if s := m.holders[store]; s != nil {
		delete(s.attached, engine)
	}
}

func (m *model) withdraw(h Holder) {
	if x := m.holders[h]; x != nil {
		x.clear()
		x.forgetGroups()
		x.state = Hidden
	}
}

func (x *modelHolder) forgetGroups() {
	x.kinds, x.first, x.tokens, x.uneven, x.missed = map[int]int{}, [...]int{-1, -1, -1}, 0, false, false
}

func (m *model) doubt(h Holder) {
	if x := m.holders[h]; x != nil {
		x.old, x.cur = x.cur, map[prefix.Hash]*modelClaim{}
		x.oldLoose, x.loose = x.loose, false
		if x.state != CutOff {
			x.state = Partial
		}
	}
}

func (m *model) settle(h Holder) {
	if x := m.holders[h]; x != nil {
		x.old = nil
	}
}

func (x *modelHolder) clear() {
	x.cur, x.old, x.loose, x.offloads, x.gone = map[prefix.Hash]*modelClaim{}, nil, false, false, nil
}

// held returns what a set of claims says of a block.
func held(claims map[prefix.Hash]*modelClaim, name string) (bits uint8) {
	for _, c := range claims {
		if c.name == name {
			bits |= c.bits
		}
	}
	return bits
}

func (m *model) apply(h Holder, e *prefix.Event) (out Outcome) {
	x := m.holders[h]
	if x == nil || x.state == CutOff {
		return Outcome{Result: Refused}
	}
	switch e.Kind {
	case prefix.Cleared:
		names := map[string]bool{}
		for _, c := range x.cur {
			names[c.name] = true
		}
		x.clear()
		x.missed = false
		return Outcome{Blocks: len(names)}
	case prefix.Removed:
		bits, result := x.about(e)
		if result != Applied {
			return Outcome{Result: result}
		}
		for _, hash := range e.Hashes {
			if c := x.cur[hash]; c != nil && c.bits&^bits == 0 && x.offloads {
				x.gone = append(x.gone, modelGone{hash, c.name})
				x.gone = x.gone[max(0, len(x.gone)-m.recall):]
			}
			known, news := m.forget(x.cur, hash, bits)
			k, n := m.forget(x.old, hash, bits)
			if news || n {
				out.Blocks++
			}
			if !known && !k {
				out.Unknown++
			}
		}
		return out
	}
	return m.stored(x, e)
}

// forget tells whether the hash is known, and whether what its block is held by changed.
func (m *model) forget(claims map[prefix.Hash]*modelClaim, hash prefix.Hash, bits uint8) (known, news bool) {
	c := claims[hash]
	if c == nil {
		return false, false
	}
	before := held(claims, c.name)
	if c.bits &^= bits; c.bits == 0 {
		delete(claims, hash)
	}
	return true, held(claims, c.name) != before
}

// about returns the bits that an event is about.
func (x *modelHolder) about(e *prefix.Event) (uint8, Result) {
	if e.Tier >= prefix.Tiers {
		return 0, Malformed
	}
	tier := uint8(1) << e.Tier
	if e.AnyTier {
		tier = 15
	}
	kind, known := x.kinds[e.Group]
	if e.Kind == prefix.Removed {
		switch {
		case !known && x.first[0] >= 0: // it may be of any kind
			kind = -1
			x.missed = true
		case !known:
			kind = 0
		}
	} else {
		is := 0
		switch {
		case e.Recurrent:
			is = 2
		case e.Window > 0:
			is = 1
		}
		if is > 0 && e.Tier != prefix.Device {
			return x.none()
		}
		if !known {
			kind, x.kinds[e.Group] = is, is
			if x.first[is] < 0 {
				x.first[is] = e.Group
			}
		}
		if kind != is {
			return x.none()
		}
		if is == 1 {
			x.uneven = x.uneven || x.tokens != 0 && x.tokens != e.Window
			x.tokens = max(x.tokens, e.Window)
		}
		if x.first[kind] != e.Group {
			return x.none()
		}
	}
	bits := tier
	if kind != 0 {
		bits = 0
	}
	if e.AnyTier || e.Tier == prefix.Device {
		bits |= [...]uint8{0, window, recurrent, tier | window | recurrent}[(kind+4)%4]
	}
	if kind < 0 {
		bits |= tier
	}
	if x.store {
		if bits &= 14; bits == 0 {
			return 0, Malformed
		}
	}
	if bits == 0 {
		return x.none()
	}
	return bits, Applied
}

func (x *modelHolder) none() (uint8, Result) {
	if x.store {
		return 0, Malformed
	}
	return 0, OtherGroup
}

func (m *model) stored(x *modelHolder, e *prefix.Event) (out Outcome) {
	if e.AnyTier || e.Tier >= prefix.Tiers {
		return Outcome{Result: Malformed}
	}
	bits, result := x.about(e)
	if result != Applied {
		return Outcome{Result: result}
	}
	if side := bits > 15; len(e.Tokens) > 0 {
		switch {
		case e.BlockSize != m.blockSize && side:
			x.missed = true
			return Outcome{Result: OtherGroup}
		case len(e.Hashes) == 1 && e.BlockSize < m.blockSize && m.blockSize%e.BlockSize == 0:
			return Outcome{Result: PartialBlock}
		case e.BlockSize != m.blockSize:
			return Outcome{Result: OtherSize}
		case len(e.Tokens) != len(e.Hashes)*m.blockSize || e.Extras != nil && len(e.Extras) != len(e.Hashes):
			x.missed = x.missed || side
			return Outcome{Result: Malformed}
		}
	}
	if len(e.Tokens) == 0 {
		slower := e.Tier != prefix.Device && !x.store
		x.offloads = x.offloads || slower
		for _, hash := range e.Hashes {
			c := x.cur[hash]
			if c == nil && slower {
				for _, g := range x.gone { // the last one counts
					if g.hash == hash {
						c = &modelClaim{name: g.name}
					}
				}
				if c != nil && len(x.cur) >= m.limitOf(x) {
					x.clear()
					x.state, out.Result = CutOff, Exceeded
					return out
				}
				if c != nil {
					before := held(x.cur, c.name)
					x.cur[hash] = c
					if c.bits |= bits; held(x.cur, c.name) != before {
						out.Blocks++
					}
					continue
				}
			}
			switch {
			case c == nil:
				out.Unknown++
			default:
				x.loose = x.loose || bits&^c.bits&1 != 0
				before := held(x.cur, c.name)
				if c.bits |= bits; held(x.cur, c.name) != before {
					out.Blocks++
				}
			}
		}
		return out
	}
	name, parent := root(e.LoRA, e.Salt), ""
	if e.HasParent {
		c := x.cur[e.Parent]
		if (c == nil || c.bits&1 == 0) && e.Tier == prefix.Device && x.first[1] < 0 && x.first[2] < 0 {
			if proven := m.prove(x, e.Parent, &out); proven != nil {
				c = proven
			} else if c != nil {
				x.loose = true
			}
		}
		if c == nil {
			out.Result = Orphan
			return out
		}
		name, parent = c.name, c.name
	}
	for i, hash := range e.Hashes {
		var extra []byte
		if e.Extras != nil {
			extra = e.Extras[i]
		}
		name = next(name, e.Tokens[i*m.blockSize:(i+1)*m.blockSize], extra)
		if c := x.cur[hash]; c != nil && c.name != name {
			delete(x.cur, hash)
			out.Moved++
		}
		if x.cur[hash] == nil && len(x.cur) >= m.limitOf(x) {
			x.clear()
			x.state = CutOff
			out.Result = Exceeded
			return out
		}
		before := held(x.cur, name)
		if x.cur[hash] == nil {
			x.cur[hash] = &modelClaim{name: name}
		}
		if x.cur[hash].bits |= bits; held(x.cur, name) != before {
			out.Blocks++
		}
		m.parents[name] = parent
		parent = name
	}
	return out
}

// onDevice lists what claims call a block that they have on the device.
func onDevice(claims map[prefix.Hash]*modelClaim, name string) (hashes []prefix.Hash) {
	for hash, c := range claims {
		if c.name == name && c.bits&1 != 0 {
			hashes = append(hashes, hash)
		}
	}
	return hashes
}

// prove moves the doubted claim that was named, and those before it, to those that count. What is behind a block that has several hashes, and that
// block, stays doubted.
func (m *model) prove(x *modelHolder, hash prefix.Hash, out *Outcome) *modelClaim {
	first := x.old[hash]
	if x.oldLoose || first == nil || first.bits&1 == 0 {
		return nil
	}
	if now := x.cur[hash]; now != nil && now.name != first.name {
		return nil
	}
	path := []prefix.Hash{hash}
	for name := m.parents[first.name]; name != ""; name = m.parents[name] {
		was, is := onDevice(x.old, name), onDevice(x.cur, name)
		all := map[prefix.Hash]bool{}
		for _, hash := range append(was, is...) {
			all[hash] = true
		}
		switch {
		case len(all) > 1:
			path = nil
		case len(is) > 0:
		case len(was) == 0:
			return nil
		default:
			if now := x.cur[was[0]]; now != nil && now.name != name {
				return nil
			}
			path = append(path, was[0])
		}
		if len(is) > 0 {
			break
		}
	}
	if len(x.cur)+len(path) > m.limitOf(x) {
		return nil
	}
	for _, hash := range path {
		c := x.old[hash]
		delete(x.old, hash)
		if x.cur[hash] == nil {
			x.cur[hash] = &modelClaim{name: c.name}
		}
		x.cur[hash].bits |= 1
	}
	if out.Proven = len(path); x.old[hash] != nil {
		return nil
	}
	return first
}

func (m *model) limitOf(x *modelHolder) int {
	if x.limit > 0 {
		return x.limit
	}
	return m.limit
}

func root(lora, salt string) string { return "lora " + lora + " salt " + salt + ":" }

func next(name string, tokens []uint32, extra []byte) string {
	var b strings.Builder
	b.WriteString(name)
	for _, t := range tokens {
		b.WriteString(" " + strconv.Itoa(int(t)))
	}
	b.WriteString("+" + string(extra) + "|")
	return b.String()
}

func (m *model) lookup(q *prefix.Query) (match prefix.Match) {
	for h, x := range m.holders {
		if x.store {
			continue
		}
		if x.seen() != Exact {
			match.Blind = append(match.Blind, x.engine)
		}
		if d := m.depth(h, x, q); d.Any() > 0 {
			match.Held = append(match.Held, prefix.Held{Engine: x.engine, Rank: x.rank, Depth: d})
		}
	}
	slices.Sort(match.Blind)
	match.Blind = slices.Compact(match.Blind)
	slices.SortFunc(match.Held, func(a, b prefix.Held) int {
		return cmp.Or(cmp.Compare(a.Engine, b.Engine), cmp.Compare(a.Rank, b.Rank))
	})
	return match
}

func (m *model) depth(h Holder, x *modelHolder, q *prefix.Query) (d prefix.Depth) {
	var bits []uint8 // of each block of the prompt
	name := root(q.LoRA, q.Salt)
	for t := q.Tokens; len(t) >= m.blockSize; t = t[m.blockSize:] {
		name = next(name, t[:m.blockSize], nil)
		b := uint8(0)
		if x.visible() {
			b |= held(x.cur, name)
		}
		for _, s := range m.holders {
			if s.store && s.attached[h] && s.visible() {
				b |= held(s.cur, name)
			}
		}
		bits = append(bits, b)
	}
	for tier := range prefix.Tiers {
		n := 0
		for n < len(bits) && bits[n]&(2<<tier-1) != 0 {
			n++
		}
		for n > 0 && !x.usable(bits[:n], m.blockSize) {
			n--
		}
		d[tier] = int32(n * m.blockSize)
	}
	return d
}

// seen is the state that counts: who may have stored what could not be followed is not exact.
func (x *modelHolder) seen() State {
	if sides := x.first[1] >= 0 || x.first[2] >= 0; x.state == Exact && (x.missed || x.uneven || sides && x.first[0] < 0) {
		return Partial
	}
	return x.state
}

func (x *modelHolder) visible() bool { return x.state == Exact || x.state == Partial }

// usable tells whether the side groups hold what they need for a prefix that ends here.
func (x *modelHolder) usable(bits []uint8, blockSize int) bool {
	if x.first[2] >= 0 && bits[len(bits)-1]&recurrent == 0 {
		return false
	}
	if x.first[1] >= 0 {
		for i := range bits {
			if (len(bits)-i-1)*blockSize < x.tokens-1 && bits[i]&window == 0 {
				return false
			}
		}
	}
	return true
}
