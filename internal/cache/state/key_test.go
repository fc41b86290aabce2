package state

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/internal/script"
)

func randomKey(rng *rand.Rand) StateKey {
	// Few values for each byte, so that keys often share beginnings.
	b := make([]byte, 1+rng.IntN(MaxEngineHash))
	for i := range b {
		b[i] = byte(rng.IntN(2))
	}
	h, err := NewEngineHash(b)
	if err != nil {
		panic(err)
	}
	return StateKey{NamespaceID{byte(1 + rng.IntN(2))}, rng.Uint32N(3), RequestID{byte(rng.IntN(2))}, h}
}

// TestKeyOrder wants keys to be ordered as their encodings are, equal exactly if those are, and to come back from them.
func TestKeyOrder(t *testing.T) {
	rng := script.Rand(t)
	for range 20000 {
		a, b := randomKey(rng), randomKey(rng)
		if rng.IntN(4) == 0 {
			b.Hash = a.Hash
		}
		ea, eb := a.AppendTo(nil), b.AppendTo(nil)
		if got, want := cmp.Compare(a.Compare(&b), 0), bytes.Compare(ea, eb); got != want {
			t.Fatalf("%v and %v compare as %d, their bytes as %d", a, b, got, want)
		}
		if (a == b) != bytes.Equal(ea, eb) {
			t.Fatalf("%v == %v is %v", a, b, a == b)
		}
		if back, err := DecodeKey(ea); err != nil || back != a {
			t.Fatalf("%v came back as %v, %v", a, back, err)
		}
		if len(ea) > MaxKey {
			t.Fatalf("%d bytes", len(ea))
		}
	}
}

func TestKeyFieldsAreIdentity(t *testing.T) {
	h, _ := NewEngineHash([]byte{1, 2})
	longer, _ := NewEngineHash([]byte{1, 2, 0})
	base := StateKey{NamespaceID{1}, 1, RequestID{1}, h}
	for name, k := range map[string]StateKey{
		"namespace":         {NamespaceID{2}, 1, RequestID{1}, h},
		"group":             {NamespaceID{1}, 2, RequestID{1}, h},
		"request":           {NamespaceID{1}, 1, RequestID{}, h},
		"a zero at the end": {NamespaceID{1}, 1, RequestID{1}, longer},
	} {
		if k == base || bytes.Equal(k.AppendTo(nil), base.AppendTo(nil)) {
			t.Errorf("%s makes no difference", name)
		}
	}
}

func TestEngineHash(t *testing.T) {
	for _, n := range []int{0, 33, 1000} {
		if _, err := NewEngineHash(make([]byte, n)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	in := []byte{0xab, 0x01}
	h, err := NewEngineHash(in)
	in[0] = 0 // it was copied
	if err != nil || h.String() != "ab01" || h.Len() != 2 || !bytes.Equal(h.AppendTo([]byte{9}), []byte{9, 0xab, 1}) {
		t.Errorf("%v, %v", h, err)
	}
}

func checkDecodeKey(t *testing.T, b []byte) {
	k, err := DecodeKey(b)
	if err != nil {
		if !errors.Is(err, ErrEncoding) && !errors.Is(err, ErrVersion) {
			t.Fatalf("unexpected class: %v", err)
		}
		return
	}
	if again := k.AppendTo(nil); !bytes.Equal(again, b) {
		t.Fatalf("accepted %x, and encoded again it is %x", b, again)
	}
}

func TestHostileKeys(t *testing.T) {
	rng := script.Rand(t)
	for range 200 {
		k := randomKey(rng)
		good := k.AppendTo(nil)
		for i := range good {
			bad := bytes.Clone(good)
			bad[i] ^= byte(1 + rng.IntN(255))
			checkDecodeKey(t, bad)
			if _, err := DecodeKey(good[:i]); !errors.Is(err, ErrEncoding) {
				t.Fatalf("cut at %d: %v", i, err)
			}
		}
		if _, err := DecodeKey(append(good, 0)); !errors.Is(err, ErrEncoding) {
			t.Fatalf("a byte too many: %v", err)
		}
		good[0] = 2
		if _, err := DecodeKey(good); !errors.Is(err, ErrVersion) {
			t.Fatalf("another version: %v", err)
		}
	}
}

func FuzzDecodeKey(f *testing.F) {
	h, _ := NewEngineHash([]byte("0123456789abcdef0123456789abcdef"))
	k := StateKey{NamespaceID{1}, 3, RequestID{4}, h}
	f.Add(k.AppendTo(nil))
	f.Add([]byte{keyVersion})
	f.Fuzz(checkDecodeKey)
}

// TestRequestID changes each field of a request, and wants another id each time; the empty request alone has none.
func TestRequestID(t *testing.T) {
	seen := map[RequestID]string{}
	for name, r := range map[string]Request{
		"nothing":       {},
		"lora":          {LoRA: Digest{1}},
		"salt":          {Salt: "a"},
		"extra key":     {ExtraKey: "a"},
		"media":         {Media: Digest{1}},
		"embeds":        {Embeds: Digest{1}},
		"both":          {Salt: "a", ExtraKey: "a"},
		"one text":      {Salt: "aa"},
		"the other one": {ExtraKey: "aa"},
	} {
		id, err := r.ID()
		if other, ok := seen[id]; ok || err != nil {
			t.Errorf("%s has the id of %s (%v)", name, other, err)
		}
		if seen[id] = name; (id == RequestID{}) != (name == "nothing") {
			t.Errorf("%s: %x", name, id)
		}
	}
	for _, r := range []Request{{Salt: strings.Repeat("a", MaxSalt+1)}, {ExtraKey: "\xff"}} {
		if _, err := r.ID(); !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
	}
	r := Request{LoRA: Digest{1}, Salt: "secret", Media: Digest{1}}
	if got := r.String(); got != "lora, salt, media" {
		t.Errorf("%q", got)
	}
	id, _ := r.ID()
	if got, want := hex.EncodeToString(id[:]), "c70da1847be1daca9002b2b2ac7d66d2"; got != want {
		t.Errorf("version 1 gave %s, this %s", want, got)
	}
}

func TestDigestText(t *testing.T) {
	d := Digest{0x0f, 0xa0, 31: 9}
	if back, err := ParseDigest(d.String()); err != nil || back != d {
		t.Errorf("%v, %v", back, err)
	}
	for _, bad := range []string{"", d.String()[1:], d.String() + "0", strings.ToUpper(d.String()), "g" + d.String()[1:]} {
		if _, err := ParseDigest(bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
