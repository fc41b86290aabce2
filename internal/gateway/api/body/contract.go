package body

import (
	"math/bits"
	"strconv"

	"github.com/perigee-llm/perigee/internal/gateway/api/body/lex"
)

// Mode says what happens when a client's value differs from a contract's exact value.
type Mode uint8

// The modes.
const (
	Reject Mode = iota // the request is refused
	Allow              // the client's value passes; the contract only fills in what is absent
)

// domain is what a contract may say of a field (sgl-router's start-up rules).
type domain struct {
	low, high float64
	openLow   bool // low itself is outside
	whole     bool // whole numbers only
}

var domains = map[Key]domain{
	Temperature:       {low: 0, high: 2},
	TopP:              {low: 0, high: 1, openLow: true},
	TopK:              {low: 1, high: 1<<31 - 1, whole: true}, // also -1, which is "all", and cannot bound a band
	MinP:              {low: 0, high: 1},
	RepetitionPenalty: {low: 0, high: 2, openLow: true},
	FrequencyPenalty:  {low: -2, high: 2},
	PresencePenalty:   {low: -2, high: 2},
	N:                 {low: 1, high: 128, whole: true},
}

func (d domain) has(v float64) bool {
	return v >= d.low && v <= d.high && !(d.openLow && v == d.low) && !(d.whole && v != float64(int64(v)))
}

// ContractError says what is wrong with the text of a contract. It names no more than the field.
type ContractError struct {
	Field string // empty when the fault is the whole text's
	What  string
}

func (e *ContractError) Error() string {
	if e.Field == "" {
		return "sampling contract: " + e.What
	}
	return "sampling contract: " + e.Field + ": " + e.What
}

// rule is what a contract says of one field: exactly min (which is max then), or a band.
type rule struct {
	set      bool
	band     bool
	min, max float64
	raw      []byte // the exact value as the operator wrote it
}

// Contract holds the operator's sampling rules. It never changes after ParseContract, so any number of
// requests may use it at once. A nil Contract has no rules.
type Contract struct {
	mode  Mode
	rules [numSampling]rule
}

const numSampling = KVTransferParams - Temperature

// ParseContract reads the value of --override-sampling-params: one object whose members are sampling fields
// with a number (exact) or {"min":…,"max":…} (a band, both ends inside it). text is copied. The error is a
// *ContractError: not an object, a field that is unknown or repeated, a value outside of its domain, an
// empty band, or a band in mode Allow, where it would have no effect.
func ParseContract(text []byte, mode Mode) (*Contract, error) {
	p := contractParser{Scanner: lex.Of(text), b: text}
	c := &Contract{mode: mode}
	i := p.Space(0)
	if end := p.Value(i); end < 0 || p.Space(end) != len(text) || text[i] != '{' {
		return nil, &ContractError{What: "must be one JSON object"}
	}
	err := p.each(i, func(name string, value []byte) *ContractError {
		k, ok := KeyNamed(name)
		if !ok || !SamplingKeys.Has(k) {
			return &ContractError{What: "unknown field " + strconv.Quote(name)}
		}
		r := &c.rules[k-Temperature]
		if r.set {
			return &ContractError{name, "given twice"}
		}
		return r.parse(k, value, mode)
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (r *rule) parse(k Key, value []byte, mode Mode) *ContractError {
	r.set = true
	if value[0] == '{' {
		return r.parseBand(k, value, mode)
	}
	v, ok := contractNumber(value)
	if !ok {
		return &ContractError{k.String(), `must be a number or {"min":…,"max":…}`}
	}
	if !domains[k].has(v) && !(k == TopK && v == -1) {
		return &ContractError{k.String(), "outside of " + domainText(k)}
	}
	r.min, r.max, r.raw = v, v, append([]byte(nil), value...)
	return nil
}

func (r *rule) parseBand(k Key, value []byte, mode Mode) *ContractError {
	if mode == Allow {
		return &ContractError{k.String(), `a band needs --sampling-param-conflict reject`}
	}
	r.band = true
	var hasMin, hasMax bool
	p := contractParser{Scanner: lex.Of(value), b: value}
	err := p.each(0, func(name string, value []byte) *ContractError {
		end, has := &r.min, &hasMin
		switch name {
		case "min":
		case "max":
			end, has = &r.max, &hasMax
		default:
			return &ContractError{k.String(), "unknown key " + strconv.Quote(name) + " in a band"}
		}
		if *has {
			return &ContractError{k.String(), name + " given twice"}
		}
		v, ok := contractNumber(value)
		if !ok || !domains[k].has(v) {
			return &ContractError{k.String(), name + " outside of " + domainText(k)}
		}
		*end, *has = v, true
		return nil
	})
	switch {
	case err != nil:
		return err
	case !hasMin || !hasMax:
		return &ContractError{k.String(), "a band needs min and max"}
	case r.min > r.max:
		return &ContractError{k.String(), "min is above max"}
	}
	return nil
}

// contractNumber reads a JSON number and nothing else: the lax reading is for clients.
func contractNumber(value []byte) (float64, bool) {
	if value[0] != '-' && !digit(value[0]) {
		return 0, false
	}
	return ReadNumber(value)
}

func domainText(k Key) string {
	d := domains[k]
	open := "["
	if d.openLow {
		open = "("
	}
	text := open + strconv.FormatFloat(d.low, 'g', -1, 64) + ", " + strconv.FormatFloat(d.high, 'f', -1, 64) + "]"
	if d.whole {
		text += ", whole numbers"
	}
	if k == TopK {
		text += ", or -1 as an exact value"
	}
	return text
}

// contractParser walks the members of a small object that is known to be valid.
type contractParser struct {
	lex.Scanner
	b []byte
}

func (p *contractParser) each(i int, f func(name string, value []byte) *ContractError) *ContractError {
	if i = p.Enter(i); p.Byte(i) == '}' {
		return nil
	}
	for more := true; more; {
		end, value := p.Key(i)
		name := string(lex.AppendDecoded(nil, p.b[i+1:end-1]))
		i = p.Value(value)
		if err := f(name, p.b[value:i]); err != nil {
			return err
		}
		i, more = p.Next(i)
	}
	return nil
}

// Verdict is what a contract says of one request. The zero value has nothing to say.
type Verdict struct {
	// Violations are the fields whose values are refused: not the exact one, outside of the band, or not to
	// be read as a number. A request with any of them is refused as a whole.
	Violations Keys
	// Injections are the fields that are absent or null and have an exact value.
	Injections Keys
}

// Apply compares a request with the contract. It allocates nothing for values of ordinary length.
func (c *Contract) Apply(b []byte, f *Facts) Verdict {
	var v Verdict
	if c == nil {
		return v
	}
	for i := range c.rules {
		r, k := &c.rules[i], Temperature+Key(i)
		if !r.set {
			continue
		}
		raw := f.Value(k).Of(b)
		switch {
		case len(raw) == 0 || raw[0] == 'n':
			if !r.band {
				v.Injections |= 1 << k
			}
		case c.mode == Reject:
			if got, ok := ReadNumber(raw); !ok || got < r.min || got > r.max {
				v.Violations |= 1 << k
			}
		}
	}
	return v
}

// Inject sets the fields of v.Injections in p to the contract's values, spelled as the operator did.
func (c *Contract) Inject(p *Patch, v Verdict) {
	for ks := v.Injections; ks != 0; {
		k := ks.take()
		p.Set(k, c.rules[k-Temperature].raw)
	}
}

// First returns the first key of the set in the order of the constants, which is the one to report; ok is
// false when the set is empty.
func (s Keys) First() (k Key, ok bool) {
	return Key(bits.TrailingZeros64(uint64(s))), s != 0
}
