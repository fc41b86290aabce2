package config

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// overrides is the sampling parameters that an operator fixes.
type overrides struct{ p *[]SamplingRule }

func (v overrides) kind() string    { return "mapping" }
func (v overrides) initial() string { return "" }
func (v overrides) limits() string  { return "" }
func (v overrides) nested() []field { return nil }
func (v overrides) reset()          { *v.p = nil }
func (v overrides) decode(d *decoder, path string, n *node) {
	var fields []field
	for i := range samplingParams {
		fields = append(fields, field{key: samplingParams[i].name, val: ruleValue{v.p, &samplingParams[i]}})
	}
	d.mapping(path, n, fields, nil)
	slices.SortFunc(*v.p, func(a, b SamplingRule) int { return cmp.Compare(a.Param, b.Param) })
}

// samplingParam is the domain of one sampling parameter.
type samplingParam struct {
	name  string
	dom   bound
	whole bool
	off   *float64 // a value outside the domain that turns the parameter off; it cannot bound a band
}

var noTopK = -1.0

// samplingParams are the parameters that engines agree on, with the domains that engines check.
var samplingParams = []samplingParam{
	{name: "temperature", dom: bound{0, 2, false}},
	{name: "top_p", dom: bound{0, 1, true}},
	{name: "top_k", dom: bound{1, math.MaxInt32, false}, whole: true, off: &noTopK},
	{name: "min_p", dom: bound{0, 1, false}},
	{name: "repetition_penalty", dom: bound{0, 2, true}},
	{name: "frequency_penalty", dom: bound{-2, 2, false}},
	{name: "presence_penalty", dom: bound{-2, 2, false}},
	{name: "n", dom: bound{1, 128, false}, whole: true},
}

func samplingList() string {
	var out []string
	for _, p := range samplingParams {
		s := p.name + " (" + p.dom.String()
		if p.off != nil {
			s += ", or " + strconv.FormatFloat(*p.off, 'f', -1, 64) + " for off"
		}
		out = append(out, s+")")
	}
	return strings.Join(out, ", ")
}

// ruleValue is one sampling parameter: a number or a band.
type ruleValue struct {
	p     *[]SamplingRule
	param *samplingParam
}

func (v ruleValue) kind() string    { return "number or band" }
func (v ruleValue) initial() string { return "" }
func (v ruleValue) limits() string  { return v.param.dom.String() }
func (v ruleValue) nested() []field { return nil }
func (v ruleValue) reset()          {}
func (v ruleValue) decode(d *decoder, path string, n *node) {
	if n.Kind != mappingNode {
		if x, ok := v.number(d, path, n, true); ok {
			*v.p = append(*v.p, SamplingRule{Param: v.param.name, Exact: strconv.FormatFloat(x, 'f', -1, 64), Min: x, Max: x})
		}
		return
	}
	var lo, hi float64
	limit := func(p *float64) value {
		return bind(p, 0, leaf{kindText: "number"}, func(d *decoder, path string, n *node) (float64, bool) { return v.number(d, path, n, false) })
	}
	if !d.mapping(path, n, []field{{key: "min", required: true, val: limit(&lo)}, {key: "max", required: true, val: limit(&hi)}}, nil) {
		return
	}
	if lo > hi {
		d.fault(path, n, classValue, fmt.Sprintf("min %v is above max %v", lo, hi), "swap them")
		return
	}
	*v.p = append(*v.p, SamplingRule{Param: v.param.name, Min: lo, Max: hi})
}

func (v ruleValue) number(d *decoder, path string, n *node, offAllowed bool) (float64, bool) {
	want := v.param.dom
	s, ok := d.scalar(path, n, "a number or a band", "!!int", "!!float")
	if !ok {
		return 0, false
	}
	x, ok := parseReal(s)
	isOff := ok && v.param.off != nil && x == *v.param.off
	switch {
	case isOff && offAllowed:
		return x, true
	case isOff:
		d.fault(path, n, classValue, cut(s)+" turns "+v.param.name+" off and cannot bound a band", "choose "+want.String())
	case !ok, !want.has(x):
		d.fault(path, n, classValue, cut(s)+" is out of range", "choose "+want.String())
	case v.param.whole && x != math.Trunc(x):
		d.fault(path, n, classValue, cut(s)+" is not a whole number", "choose "+want.String())
	default:
		return x, true
	}
	return 0, false
}
