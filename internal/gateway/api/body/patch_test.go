package body

import (
	"bytes"
	"flag"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPatch(t *testing.T) {
	cases := []struct {
		body   string
		change func(p *Patch)
		want   string
	}{
		{`{"model":"m"}`, func(*Patch) {}, `{"model":"m"}`},
		{` { "model" : "m" , "rid" : 1 } `, func(p *Patch) { p.Remove(RID) }, ` { "model" : "m"  } `},
		{`{"rid":1, "model":"m"}`, func(p *Patch) { p.Remove(RID) }, `{ "model":"m"}`},
		{`{"rid":1,"x":2,"extra_key":3,"model":"m"}`, func(p *Patch) { p.RemoveAll(ProtectedKeys) }, `{"x":2,"model":"m"}`},
		{`{"rid":1,"extra_key":3,"x":2,"model":"m","cache_salt":""}`, func(p *Patch) { p.RemoveAll(ProtectedKeys) }, `{"x":2,"model":"m"}`},
		{`{"model":"m","rid":1,"extra_key":3}`, func(p *Patch) { p.RemoveAll(ProtectedKeys) }, `{"model":"m"}`},
		{`{ "model":"m" }`, func(p *Patch) { p.Remove(Model) }, `{  }`},
		{`{"model":"m","rid":1}`, func(p *Patch) { p.Remove(Model); p.Remove(RID) }, `{}`},
		{`{"model":"m","rid":1}`, func(p *Patch) { p.Remove(Model); p.Remove(RID); p.Set(N, []byte(`1`)); p.Set(TopK, []byte(`2`)) }, `{"top_k":2,"n":1}`},
		{`{"model":"m"}`, func(p *Patch) { p.Remove(RID) }, `{"model":"m"}`},
		{`{"model":"m"}`, func(p *Patch) { p.Set(RID, Quote("a\"\n")) }, `{"model":"m","rid":"a\"\u000a"}`},
		{`{"model":"m" ,"rid":null }`, func(p *Patch) { p.Set(RID, []byte(`"a"`)) }, `{"model":"m" ,"rid":"a" }`},
		{`{"mod\u0065l":"a","x":1.10}`, func(p *Patch) { p.Set(Model, []byte(`"longer"`)) }, `{"mod\u0065l":"longer","x":1.10}`},
		{`{"model":"m","rid":1}`, func(p *Patch) { p.Remove(RID); p.Set(RID, []byte(`2`)) }, `{"model":"m","rid":2}`},
		{`{"model":"m","rid":1}`, func(p *Patch) { p.Set(RID, []byte(`2`)); p.Remove(RID) }, `{"model":"m"}`},
		{`{"model":"m"}`, func(p *Patch) { p.Set(RID, []byte(`2`)); p.Remove(RID) }, `{"model":"m"}`},
	}
	for _, c := range cases {
		b := []byte(c.body)
		f, err := Scan(b, Chat)
		if err != nil {
			t.Fatalf("%s: %v", c.body, err)
		}
		p := NewPatch(b, &f)
		c.change(&p)
		if got := string(p.AppendTo(nil)); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.body, got, c.want)
		}
		if p.Len() != len(c.want) {
			t.Errorf("%s: Len is %d, want %d", c.body, p.Len(), len(c.want))
		}
		if string(b) != c.body {
			t.Errorf("%s: the body was changed", c.body)
		}
	}
}

var seed = flag.Uint64("seed", 0, "seed of the random tests; 0 takes the time")

func testRand(t *testing.T) *rand.Rand {
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("replay with -seed=%d", s)
	return rand.New(rand.NewPCG(s, 0))
}

// TestPatchUsedAgain: a patch that was reset is as a new one, one that is like another says the same, and neither keeps a value that it does not set.
func TestPatchUsedAgain(t *testing.T) {
	text := []byte(`{"model":"m","messages":[],"n":2,"rid":"x"}`)
	f, err := Scan(text, Chat)
	if err != nil {
		t.Fatal(err)
	}
	p := NewPatch(text, &f)
	p.Set(RID, []byte(`"y"`))
	p.Set(N, []byte("1"))
	p.Set(MinTokens, []byte("3"))
	p.Remove(N)
	var again Patch
	again.Like(&p)
	again.Set(RID, []byte(`"z"`))
	if got, want := string(again.AppendTo(nil)), `{"model":"m","messages":[],"rid":"z","min_tokens":3}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := string(p.AppendTo(nil)), `{"model":"m","messages":[],"rid":"y","min_tokens":3}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for k := range p.values {
		if p.values[k] != nil && !p.set.Has(Key(k)) {
			t.Errorf("keeps a value of %v", Key(k))
		}
	}
	p.Reset()
	again.Reset()
	if !reflect.DeepEqual(p, Patch{}) || !reflect.DeepEqual(again, Patch{}) {
		t.Errorf("%+v, %+v", p, again)
	}
}

// TestPatchAgainstModel patches random bodies: the members that are left are those that the naive model
// leaves, each with the spelling that it had.
func TestPatchAgainstModel(t *testing.T) {
	rng := testRand(t)
	for range 1_000 {
		b := randomBody(rng)
		checkPatch(t, b, rng.Uint64(), rng.Uint64())
		if t.Failed() {
			return
		}
	}
}

// randomBody has some known and some unknown members in any order, with any white space.
func randomBody(rng *rand.Rand) []byte {
	space := func() string { return []string{"", "", "", " ", "\n\t", "  "}[rng.IntN(6)] }
	values := []string{`null`, `1.10`, `1e400`, `"a\"}{,"`, `[1,{"rid":2}]`, `{"a":{},"b":[]}`, `true`, `"é"`}
	var members []string
	for k := range numKeys {
		if k == Model || rng.IntN(4) > 0 {
			continue
		}
		value := values[rng.IntN(len(values))]
		switch k {
		case Stream:
			value = "true"
		case MaxTokens, MaxCompletionTokens:
			value = "7"
		case StreamOptions:
			value = []string{`null`, `{}`, `{ "x":1 }`, `{"include_usage":true}`, `{"y":[],"include_usage" : false}`}[rng.IntN(5)]
		}
		members = append(members, `"`+k.String()+`"`+space()+`:`+space()+value)
	}
	for range rng.IntN(4) {
		members = append(members, `"u":`+values[rng.IntN(len(values))])
	}
	members = append(members, `"model":"m"`)
	rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	var sb strings.Builder
	sb.WriteString(space() + "{" + space())
	for i, m := range members {
		if i > 0 {
			sb.WriteString("," + space())
		}
		sb.WriteString(m + space())
	}
	sb.WriteString("}" + space())
	return []byte(sb.String())
}

// checkPatch removes and sets the keys whose bits are set (removing wins).
func checkPatch(t *testing.T, b []byte, remove, set uint64) {
	t.Helper()
	f, err := Scan(b, Chat)
	if err != nil {
		return
	}
	before, _ := pairsOf(b)
	p := NewPatch(b, &f)
	const value = `"set"`
	var want []pair
	all := KeysOf()
	for k := range numKeys {
		all |= KeysOf(k)
	}
	removed := Keys(remove) & all
	added := Keys(set) & all &^ removed
	for k := range added.All() {
		p.Set(k, []byte(value))
	}
	p.RemoveAll(removed)
	for _, m := range before {
		k, known := KeyNamed(m.key)
		switch {
		case known && removed.Has(k):
		case known && added.Has(k):
			m.value = value
			want = append(want, m)
		default:
			want = append(want, m)
		}
	}
	for k := range (added &^ f.Keys()).All() {
		want = append(want, pair{k.String(), `"` + k.String() + `"`, value})
	}
	after := p.AppendTo(nil)
	got, ok := pairsOf(after)
	if !ok {
		t.Fatalf("no object any more\nfrom %q\nto   %q", b, after)
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(pair{})); d != "" {
		t.Fatalf("%s\nfrom %q\nto   %q", d, b, after)
	}
	if p.Len() != len(after) {
		t.Fatalf("Len is %d, but it has %d bytes", p.Len(), len(after))
	}
	if removed&f.Keys() == 0 && added == 0 && !bytes.Equal(after, b) {
		t.Fatalf("changed without a change: %q to %q", b, after)
	}
}

func FuzzPatch(f *testing.F) {
	f.Add([]byte(full), uint64(1<<RID|1<<Model), uint64(1<<N|1<<Temperature))
	f.Add([]byte(`{"rid":1,"extra_key":2,"model":"m"}`), ^uint64(0), uint64(0))
	f.Add([]byte(` { "model" : "m" , "x":[1.10,1e400] , "stream_options" : { } } `), uint64(0), ^uint64(0))
	f.Add([]byte(`{"mod\u0065l":"m","r\u0069d":2}`), uint64(1<<RID), uint64(1<<Model))
	f.Fuzz(func(t *testing.T, b []byte, remove, set uint64) {
		checkPatch(t, b, remove, set)
	})
}
