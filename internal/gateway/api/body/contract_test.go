package body

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestParseContract(t *testing.T) {
	cases := []struct {
		text string
		mode Mode
		want string // part of the error; empty: accepted
	}{
		{`{}`, Reject, ""},
		{` {"temperature":0,"top_p":1,"top_k":-1,"min_p":0,"repetition_penalty":2,"frequency_penalty":-2,"presence_penalty":2,"n":128} `, Allow, ""},
		{`{"temperature":{"min":0.5,"max":0.5}}`, Reject, ""},
		{`{"top_k":{"min":1,"max":100}}`, Reject, ""},
		{`{"top_k":5.0}`, Reject, ""},
		{``, Reject, "one JSON object"},
		{`null`, Reject, "one JSON object"},
		{`[]`, Reject, "one JSON object"},
		{`{"n":1} {}`, Reject, "one JSON object"},
		{`{"n":1`, Reject, "one JSON object"},
		{`{"model":"m"}`, Reject, `unknown field "model"`},
		{`{"Temperature":1}`, Reject, `unknown field "Temperature"`},
		{`{"n":1,"\u006e":1}`, Reject, "n: given twice"},
		{`{"n":{"min":1,"max":2},"n":1}`, Reject, "n: given twice"},
		{`{"temperature":2.01}`, Reject, "temperature: outside of [0, 2]"},
		{`{"temperature":-0.1}`, Reject, "temperature: outside"},
		{`{"temperature":1e400}`, Reject, "temperature: must be a number"},
		{`{"temperature":"1"}`, Reject, "temperature: must be a number"},
		{`{"temperature":true}`, Reject, "temperature: must be a number"},
		{`{"temperature":null}`, Reject, "temperature: must be a number"},
		{`{"top_p":0}`, Reject, "top_p: outside of (0, 1]"},
		{`{"repetition_penalty":0}`, Reject, "repetition_penalty: outside of (0, 2]"},
		{`{"top_k":0}`, Reject, "top_k: outside"},
		{`{"top_k":-2}`, Reject, "top_k: outside"},
		{`{"top_k":1.5}`, Reject, "whole numbers"},
		{`{"n":0}`, Reject, "n: outside"},
		{`{"n":129}`, Reject, "n: outside"},
		{`{"n":1.5}`, Reject, "n: outside"},
		{`{"top_k":{"min":-1,"max":5}}`, Reject, "top_k: min outside"},
		{`{"top_k":{"min":1,"max":-1}}`, Reject, "top_k: max outside"},
		{`{"n":{"min":2,"max":1}}`, Reject, "n: min is above max"},
		{`{"n":{"min":1}}`, Reject, "needs min and max"},
		{`{"n":{}}`, Reject, "needs min and max"},
		{`{"n":{"min":1,"min":1,"max":2}}`, Reject, "min given twice"},
		{`{"n":{"min":1,"max":2,"mid":1}}`, Reject, `unknown key "mid"`},
		{`{"n":{"min":1,"max":2}}`, Allow, "a band needs"},
	}
	for _, c := range cases {
		got, err := ParseContract([]byte(c.text), c.mode)
		if c.want == "" {
			if err != nil || got == nil {
				t.Errorf("%s: %v", c.text, err)
			}
			continue
		}
		var e *ContractError
		if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.text, err, c.want)
		}
	}
}

func TestContractApply(t *testing.T) {
	const exact = `{"temperature":0.70,"top_k":-1,"n":1}`
	const band = `{"temperature":{"min":0.1,"max":1}}`
	cases := []struct {
		contract   string
		mode       Mode
		fields     string
		violations Keys
		injections Keys
	}{
		{exact, Reject, ``, 0, KeysOf(Temperature, TopK, N)},
		{exact, Reject, `,"temperature":null,"n":1.0,"top_k":-1e0`, 0, KeysOf(Temperature)},
		{exact, Reject, `,"temperature":0.7,"top_k":"-1","n":true`, 0, 0},
		{exact, Reject, `,"temperature":7e-1,"top_k":" -1 ","n":"1"`, 0, 0},
		{exact, Reject, `,"temperature":0.71,"top_k":"1","n":2`, KeysOf(Temperature, TopK, N), 0},
		{exact, Reject, `,"temperature":[0.7],"top_k":{},"n":"one"`, KeysOf(Temperature, TopK, N), 0},
		{exact, Reject, `,"temperature":1e400,"top_k":1e-400`, KeysOf(Temperature, TopK), KeysOf(N)},
		{exact, Allow, `,"temperature":1e400,"top_k":[],"n":null`, 0, KeysOf(N)},
		{band, Reject, ``, 0, 0},
		{band, Reject, `,"temperature":null`, 0, 0},
		{band, Reject, `,"temperature":0.1`, 0, 0},
		{band, Reject, `,"temperature":1`, 0, 0},
		{band, Reject, `,"temperature":true`, 0, 0},
		{band, Reject, `,"temperature":false`, KeysOf(Temperature), 0},
		{band, Reject, `,"temperature":1.0000001`, KeysOf(Temperature), 0},
		{band, Reject, `,"temperature":"nan"`, KeysOf(Temperature), 0},
		{`{}`, Reject, `,"temperature":[]`, 0, 0},
	}
	for _, c := range cases {
		contract, err := ParseContract([]byte(c.contract), c.mode)
		if err != nil {
			t.Fatal(err)
		}
		b := []byte(`{"model":"m"` + c.fields + `}`)
		f, err := Scan(b, Chat)
		if err != nil {
			t.Fatal(err)
		}
		got := contract.Apply(b, &f)
		if got.Violations != c.violations || got.Injections != c.injections {
			t.Errorf("%s over %s: violations %v, injections %v", c.contract, b,
				slices.Collect(got.Violations.All()), slices.Collect(got.Injections.All()))
		}
	}
	var none *Contract
	if got := none.Apply(nil, &Facts{}); got != (Verdict{}) {
		t.Errorf("no contract says %v", got)
	}
}

func TestContractInjects(t *testing.T) {
	contract, err := ParseContract([]byte(`{"temperature":0.70,"n":1,"top_p":0.9}`), Reject)
	if err != nil {
		t.Fatal(err)
	}
	b := []byte(`{"temperature": null ,"model":"m", "n":1}`)
	f, err := Scan(b, Chat)
	if err != nil {
		t.Fatal(err)
	}
	p := NewPatch(b, &f)
	contract.Inject(&p, contract.Apply(b, &f))
	if got, want := string(p.AppendTo(nil)), `{"temperature": 0.70 ,"model":"m", "n":1,"top_p":0.9}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if k, ok := KeysOf(N, TopP).First(); k != TopP || !ok {
		t.Errorf("the first is %v, %v", k, ok)
	}
}

func TestReadNumber(t *testing.T) {
	cases := []struct {
		raw  string
		want float64
		ok   bool
	}{
		{`1`, 1, true}, {`-0.5e1`, -5, true}, {`true`, 1, true}, {`false`, 0, true}, {`null`, 0, false}, {`[]`, 0, false}, {`{}`, 0, false},
		{`1e400`, 0, false}, {`1e-400`, 0, true}, {`9007199254740993`, 9007199254740992, true},
		{`"1.5"`, 1.5, true}, {`" 1.5\n"`, 1.5, true}, {`"+1"`, 1, true}, {`".5"`, .5, true}, {`"5."`, 5, true}, {`"."`, 0, false}, {`""`, 0, false},
		{`"1_000.2_5"`, 1000.25, true}, {`"1__0"`, 0, false}, {`"_1"`, 0, false}, {`"1_"`, 0, false}, {`"1_.5"`, 0, false}, {`" 1_0"`, 0, false},
		{`"0x10"`, 0, false}, {`"inf"`, 0, false}, {`"NaN"`, 0, false}, {`"1e5"`, 1e5, true}, {`"1e"`, 0, false}, {`"1 2"`, 0, false},
		{`"\u0031"`, 1, true}, {`"１"`, 0, false}, {`"1e400"`, 0, false},
		{`"` + strings.Repeat("0", 63) + `1"`, 1, true}, {`"` + strings.Repeat("0", 64) + `1"`, 0, false},
		{`"` + strings.Repeat(`\u0030`, 63) + `1"`, 1, true}, {strings.Repeat("9", 257), 0, false},
	}
	for _, c := range cases {
		if got, ok := ReadNumber([]byte(c.raw)); got != c.want || ok != c.ok {
			if c.ok || ok {
				t.Errorf("%s reads as %v, %v", c.raw, got, ok)
			}
		}
		if got, ok := modelNumber(c.raw); ok != c.ok || ok && got != c.want {
			t.Errorf("the naive model reads %s as %v, %v", c.raw, got, ok)
		}
	}
}

// FuzzContract feeds both sides: the text must never panic, and a value is read as the naive model reads it.
func FuzzContract(f *testing.F) {
	f.Add([]byte(`{"temperature":0.7,"n":{"min":1,"max":2}}`), []byte(`"1_0.5"`))
	f.Add([]byte(`{"top_k":-1}`), []byte(` 1e400`))
	f.Add([]byte(`{`), []byte(`"\u0031_0"`))
	f.Fuzz(func(t *testing.T, contract, value []byte) {
		b := append(append([]byte(`{"model":"m","temperature":`), value...), '}')
		facts, err := Scan(b, Chat)
		if err != nil {
			return
		}
		if raw := facts.Value(Temperature).Of(b); facts.Has(Temperature) {
			got, ok := ReadNumber(raw)
			want, wantOK := modelNumber(string(raw))
			if ok != wantOK || ok && got != want {
				t.Fatalf("%q reads as %v, %v; the model says %v, %v", raw, got, ok, want, wantOK)
			}
		}
		for _, mode := range []Mode{Reject, Allow} {
			c, err := ParseContract(contract, mode)
			if err != nil {
				continue
			}
			v := c.Apply(b, &facts)
			if v.Violations&v.Injections != 0 || mode == Allow && v.Violations != 0 {
				t.Fatalf("%q over %q: %v", contract, b, v)
			}
			if v.Violations != 0 {
				continue
			}
			// What is injected satisfies the contract.
			p := NewPatch(b, &facts)
			c.Inject(&p, v)
			after := p.AppendTo(nil)
			facts, err := Scan(after, Chat)
			if err != nil {
				t.Fatalf("%q: %v", after, err)
			}
			if again := c.Apply(after, &facts); again != (Verdict{}) {
				t.Fatalf("%q over %q, injected: %v", contract, after, again)
			}
		}
	})
}
