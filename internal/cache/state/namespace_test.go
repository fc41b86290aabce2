package state

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/internal/script"
)

// encodeAny encodes without validating: what decides here is the list of fields alone.
func encodeAny(n *Namespace) string {
	var w writer
	n.fields(&w)
	return string(w.buf)
}

// TestEveryFieldIsIdentity changes each field of the type, found by reflection, one at a time. A field that is forgotten in fields.go
// leaves the encoding as it was, and is named.
func TestEveryFieldIsIdentity(t *testing.T) {
	base, n := example(), 0
	if id, err := base.ID(); err != nil || id.IsZero() {
		t.Fatalf("the example is no namespace: %v", err)
	}
	seen := map[string]string{encodeAny(&base): "the example"}
	for path, changed := range variants(t, base) {
		n++
		enc := encodeAny(&changed)
		if other, ok := seen[enc]; ok {
			t.Errorf("%s changed, and the encoding is that of %s: add the field to fields.go, with a new version", path, other)
		}
		seen[enc] = path
		if d := Differences(&base, &changed); len(d) == 0 {
			t.Errorf("%s: Differences sees none", path)
		}
	}
	if n < 60 { // the example has about as many; fewer means that the walk has lost its way
		t.Errorf("only %d fields were changed", n)
	}
}

// TestForgottenFieldIsNoticed shows that the walk of TestEveryFieldIsIdentity reaches fields of any depth.
func TestForgottenFieldIsNoticed(t *testing.T) {
	paths := map[string]bool{}
	for path := range variants(t, example()) {
		paths[path] = true
	}
	for _, want := range []string{
		".Scope", ".Engine.Version", ".Model.Content[31]", ".Compute.Options[1].Value", ".Compute.Options(longer)", ".Compute.Options(shorter)",
		".Hash.Seed", ".Shard.Tensor.Index", ".Shard.Heads.Size", ".Layout.CrossLayer", ".Layout.Groups[1].Rule", ".Layout.Groups[0].Segments[1].Strides[2]",
		".Layout.Groups[1].Segments[0].Bytes",
	} {
		if !paths[want] {
			t.Errorf("%s was never changed", want)
		}
	}
}

// variants yields copies of base that differ in one leaf each, with its path. Lists are made shorter and longer as well.
func variants(t *testing.T, base Namespace) func(func(string, Namespace) bool) {
	return func(yield func(string, Namespace) bool) {
		var walk func(path string, at func(*Namespace) reflect.Value)
		change := func(path string, at func(*Namespace) reflect.Value, to func(reflect.Value)) {
			n := clone(base)
			to(at(&n))
			yield(path, n)
		}
		walk = func(path string, at func(*Namespace) reflect.Value) {
			b := clone(base)
			v := at(&b)
			switch v.Kind() {
			case reflect.Struct:
				for i := range v.NumField() {
					walk(path+"."+v.Type().Field(i).Name, func(n *Namespace) reflect.Value { return at(n).Field(i) })
				}
			case reflect.Slice:
				change(path+"(shorter)", at, func(v reflect.Value) { v.Set(v.Slice(0, v.Len()-1)) })
				change(path+"(longer)", at, func(v reflect.Value) { v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem()))) })
				fallthrough
			case reflect.Array:
				for i := range v.Len() {
					walk(path+"["+strconv.Itoa(i)+"]", func(n *Namespace) reflect.Value { return at(n).Index(i) })
				}
			case reflect.String:
				change(path, at, func(v reflect.Value) { v.SetString(v.String() + "x") })
			case reflect.Bool:
				change(path, at, func(v reflect.Value) { v.SetBool(!v.Bool()) })
			case reflect.Uint8, reflect.Uint32, reflect.Uint64:
				change(path, at, func(v reflect.Value) { v.SetUint(v.Uint() + 1) })
			default:
				t.Fatalf("%s is a %s: teach this test, the encoding and the documents about it", path, v.Kind())
			}
		}
		walk("", func(n *Namespace) reflect.Value { return reflect.ValueOf(n).Elem() })
	}
}

func clone(n Namespace) Namespace {
	n.Compute.Options = append([]Option(nil), n.Compute.Options...)
	n.Layout.Groups = append([]Group(nil), n.Layout.Groups...)
	for i := range n.Layout.Groups {
		g := &n.Layout.Groups[i]
		g.Segments = append([]Segment(nil), g.Segments...)
		for j := range g.Segments {
			s := &g.Segments[j]
			s.Shape, s.Strides = append([]uint32(nil), s.Shape...), append([]uint64(nil), s.Strides...)
		}
	}
	return n
}

// TestGoldenID pins version 1: other programs compute it, and pages on disks have it.
func TestGoldenID(t *testing.T) {
	n := example()
	b, err := n.Encode()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := n.ID()
	if got, want := id.String(), "22fbaddc8c5dd0620a82758738e6022400118b08df23885bf87628c61d7bfbf6"; got != want {
		t.Errorf("the id of %d bytes is %s, want %s: a change of the encoding needs a new version", len(b), got, want)
	}
	if got := string(b[:19]); got != "perigee/namespace\x00\x01" {
		t.Errorf("it begins with %q", got)
	}
}

// TestRoundTrip fills namespaces with random values: two encode alike only if they are alike, and what decodes is what was encoded.
func TestRoundTrip(t *testing.T) {
	rng := script.Rand(t)
	valid := 0
	seen := map[string]Namespace{}
	for range 3000 {
		n := randomNamespace(rng)
		enc := encodeAny(&n)
		if other, ok := seen[enc]; ok && !reflect.DeepEqual(other, n) {
			t.Fatalf("two namespaces have one encoding:\n%+v\n%+v", other, n)
		}
		seen[enc] = n
		b, err := n.Encode()
		if err != nil {
			if !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrContract) {
				t.Fatalf("unexpected class: %v", err)
			}
			continue
		}
		valid++
		got, err := DecodeNamespace(b)
		if err != nil || !reflect.DeepEqual(got, n) {
			t.Fatalf("decoded %+v, %v; want %+v", got, err, n)
		}
	}
	if valid < 300 {
		t.Errorf("only %d were valid: the test does not test much", valid)
	}
}

func randomNamespace(rng *rand.Rand) Namespace {
	words := []string{"", "a", "b", "ab", "aa", "sm_90", "größe"}
	n := example()
	for range 1 + rng.IntN(4) {
		all := []*string{&n.Scope, &n.Engine.Name, &n.Engine.Version, &n.Model.Quantization, &n.Compute.ISA, &n.Compute.Prefill, &n.Hash.Seed, &n.Layout.Order}
		*all[rng.IntN(len(all))] = words[rng.IntN(len(words))]
	}
	n.Hash.Tokens = uint32(rng.IntN(4))
	n.Shard.Tensor = Rank{rng.Uint32N(3), 1 + rng.Uint32N(3)}
	n.Layout.BlockTokens = 12 * rng.Uint32N(3)
	n.Compute.Options = n.Compute.Options[:rng.IntN(3)]
	if len(n.Compute.Options) == 0 {
		n.Compute.Options = nil
	}
	n.Layout.Groups = n.Layout.Groups[:1+rng.IntN(2)]
	g := &n.Layout.Groups[len(n.Layout.Groups)-1]
	g.Segments = g.Segments[:1+rng.IntN(2)]
	g.Segments[0].Bytes = rng.Uint64N(3)
	if rng.IntN(2) == 0 {
		g.Segments[0].Shape, g.Segments[0].Strides = nil, nil
	}
	return n
}

// TestHostileEncodings cuts and flips an encoding at every byte.
func TestHostileEncodings(t *testing.T) {
	n := example()
	good, err := n.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for i := range good {
		if _, err := DecodeNamespace(good[:i]); !errors.Is(err, ErrEncoding) {
			t.Fatalf("cut at %d: %v", i, err)
		}
		for _, flip := range []byte{1, 0x80, 0xff} {
			bad := bytes.Clone(good)
			bad[i] ^= flip
			checkDecode(t, bad)
		}
	}
	if _, err := DecodeNamespace(append(bytes.Clone(good), 0)); !errors.Is(err, ErrEncoding) {
		t.Errorf("a byte too many: %v", err)
	}
	later := bytes.Clone(good)
	later[18] = 2
	if _, err := DecodeNamespace(later); !errors.Is(err, ErrVersion) {
		t.Errorf("another version: %v", err)
	}
	if _, err := DecodeNamespace(make([]byte, MaxEncoding+1)); !errors.Is(err, ErrEncoding) {
		t.Errorf("too long: %v", err)
	}
}

// checkDecode wants bytes to be refused, or to be the one encoding of what they decode to.
func checkDecode(t *testing.T, b []byte) {
	t.Helper()
	n, err := DecodeNamespace(b)
	if err != nil {
		if !errors.Is(err, ErrEncoding) && !errors.Is(err, ErrVersion) {
			t.Fatalf("unexpected class: %v", err)
		}
		return
	}
	again, err := n.Encode()
	if err != nil || !bytes.Equal(again, b) {
		t.Fatalf("accepted, and encoded again it is other bytes (%v)", err)
	}
}

func FuzzDecodeNamespace(f *testing.F) {
	n := example()
	good, err := n.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:40])
	n.Layout.Groups, n.Compute.Options, n.Scope = n.Layout.Groups[:1], nil, ""
	short, _ := n.Encode()
	f.Add(short)
	f.Fuzz(checkDecode)
}

// TestValidate makes one thing wrong at a time, and wants it named.
func TestValidate(t *testing.T) {
	for name, spoil := range map[string]func(*Namespace){
		"engine.name is missing":             func(n *Namespace) { n.Engine.Name = "" },
		"engine.version is missing":          func(n *Namespace) { n.Engine.Version = "" },
		"model.content is missing":           func(n *Namespace) { n.Model.Content = Digest{} },
		"compute.dtype is missing":           func(n *Namespace) { n.Compute.DType = "" },
		"compute.device is missing":          func(n *Namespace) { n.Compute.Device = "" },
		"compute.isa is missing":             func(n *Namespace) { n.Compute.ISA = "" },
		"no attention backend":               func(n *Namespace) { n.Compute.Attention, n.Compute.Prefill, n.Compute.Decode = "", "", "" },
		"not sorted, or moe":                 func(n *Namespace) { n.Compute.Options[0].Name = "moe" },
		"an option has no name":              func(n *Namespace) { n.Compute.Options[0].Name = "" },
		"options has too many elements":      func(n *Namespace) { n.Compute.Options = make([]Option, 65) },
		"hash.algorithm is missing":          func(n *Namespace) { n.Hash.Algorithm = "" },
		"hash.tokens is 0":                   func(n *Namespace) { n.Hash.Tokens = 0 },
		"no multiple of hash.tokens":         func(n *Namespace) { n.Hash.Tokens = 24 },
		"shard.tensor is no rank":            func(n *Namespace) { n.Shard.Tensor.Index = 2 },
		"shard.pipeline is no rank":          func(n *Namespace) { n.Shard.Pipeline.Size = 0 },
		"both split heads":                   func(n *Namespace) { n.Shard.Heads.Size = 2 },
		"layout.order is missing":            func(n *Namespace) { n.Layout.Order = "" },
		"layout.kv_dtype is missing":         func(n *Namespace) { n.Layout.KVDType = "" },
		"layout.format is missing":           func(n *Namespace) { n.Layout.Format = "" },
		"block_tokens is 0":                  func(n *Namespace) { n.Layout.BlockTokens = 0 },
		"groups[1] has no segments":          func(n *Namespace) { n.Layout.Groups[1].Segments = nil },
		"segments[1].bytes is 0":             func(n *Namespace) { n.Layout.Groups[0].Segments[1].Bytes = 0 },
		"page is larger than MaxPageBytes":   func(n *Namespace) { n.Layout.Groups[0].Segments[1].Bytes = MaxPageBytes },
		"segments[0].dtype is missing":       func(n *Namespace) { n.Layout.Groups[0].Segments[0].DType = "" },
		"strides of different lengths":       func(n *Namespace) { n.Layout.Groups[0].Segments[0].Strides = nil },
		"scope has control characters":       func(n *Namespace) { n.Scope = "a\nb" },
		"scope is not UTF-8":                 func(n *Namespace) { n.Scope = "\xff" },
		"hash.seed is too long":              func(n *Namespace) { n.Hash.Seed = strings.Repeat("0", maxText+1) },
		"cannot restore sliding by a prefix": func(n *Namespace) { n.Layout.Groups[0].Components = Of(WindowKV) },
		"group 0 must be a prefix": func(n *Namespace) {
			n.Layout.Groups[0].Components, n.Layout.Groups[0].Rule = Of(ConvState), RuleCheckpoint
		},
		"there are no groups, or too many":    func(n *Namespace) { n.Layout.Groups = nil },
		"layout.groups has too many elements": func(n *Namespace) { n.Layout.Groups = make([]Group, MaxGroups+1) },
	} {
		n := example()
		spoil(&n)
		err := n.Validate()
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("want %q, got %v", name, err)
		}
		if _, err := n.Encode(); err == nil {
			t.Errorf("%q: it was encoded", name)
		}
	}
}

// TestEncodeOnlyReads lets the race detector see that encoding and comparing write nothing.
func TestEncodeOnlyReads(t *testing.T) {
	n, done := example(), make(chan error)
	want := example()
	go func() {
		_, err := n.ID()
		done <- err
	}()
	if _, err := n.ID(); err != nil || len(Differences(&n, &want)) > 0 {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestDifferences(t *testing.T) {
	a, b := example(), example()
	b.Compute.ISA = "avx512_bf16"
	b.Layout.Groups = b.Layout.Groups[:1]
	d := Differences(&a, &b)
	if want := (Difference{"compute.isa", `"avx2"`, `"avx512_bf16"`}); d[0] != want {
		t.Errorf("%+v, want %+v", d[0], want)
	}
	if want := (Difference{"layout.groups", "2", "1"}); d[1] != want {
		t.Errorf("%+v, want %+v", d[1], want)
	}
	if back := Differences(&b, &a); len(back) != len(d) {
		t.Errorf("%d differences, and %d the other way", len(d), len(back))
	}
}

func TestPageBytes(t *testing.T) {
	n := example()
	if got := n.Layout.Groups[0].PageBytes(); got != 2*16384 {
		t.Errorf("%d bytes", got)
	}
}
