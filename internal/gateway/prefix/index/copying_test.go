package index

import (
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// TestPastedClaimsAreProven: what was copied knows what was before it.
func TestPastedClaimsAreProven(t *testing.T) {
	from, to := newFleet(t, 1, Config{}), newFleet(t, 1, Config{})
	from.apply(0, event(1, 0, 100), Applied)
	copyAll(t, from, to)
	to.want(1, 100, 0, 100)
	to.ix.Doubt(to.engines[0])
	to.want(1, 100, 0, 0)
	if out := to.ix.Apply(to.engines[0], event(1, 100, 101)); out.Proven != 100 {
		t.Errorf("%+v", out)
	}
	to.want(1, 101, 0, 101)
}

func copyAll(t *testing.T, from, to *fleet) {
	t.Helper()
	var at Cursor
	var claims [16]Claim
	for !at.Done && !at.Void {
		n := from.ix.Copy(from.engines[0], &at, claims[:])
		if out := to.ix.Paste(to.engines[0], claims[:n]); out.Result != Applied || out.Blocks != n {
			t.Fatalf("%+v", out)
		}
	}
}

// TestCopyIsVoid when the holder begins anew, or is gone.
func TestCopyIsVoid(t *testing.T) {
	f := newFleet(t, 1, Config{})
	f.apply(0, event(1, 0, 100), Applied)
	for name, begin := range map[string]func(){
		"cleared":   func() { f.apply(0, &prefix.Event{Kind: prefix.Cleared}, Applied) },
		"withdrawn": func() { f.ix.Withdraw(f.engines[0]) },
		"doubted":   func() { f.ix.Doubt(f.engines[0]) },
		"closed":    func() { f.ix.Close(f.engines[0]) },
	} {
		f.engines[0] = f.ix.Open(0, 0)
		f.apply(0, event(1, 0, 100), Applied)
		var at Cursor
		var claims [16]Claim
		if n := f.ix.Copy(f.engines[0], &at, claims[:]); n != 16 || at.Done || at.Void {
			t.Errorf("%s: %d, %+v", name, n, at)
		}
		begin()
		if n := f.ix.Copy(f.engines[0], &at, claims[:]); n != 0 || !at.Void {
			t.Errorf("%s: %d, %+v", name, n, at)
		}
	}
}

// TestPasteRefuses what no index copies, and leaves alone what the holder has said itself.
func TestPasteRefuses(t *testing.T) {
	f := newFleet(t, 1, Config{Limit: 2})
	f.apply(0, event(1, 0, 1), Applied)
	own := named(1, 0, 1)[0]
	store := f.ix.OpenStore()
	for name, c := range map[string]struct {
		h     Holder
		claim Claim
		want  Outcome
	}{
		"no bits":            {f.engines[0], Claim{Hash: 7}, Outcome{Result: Malformed}},
		"unknown bits":       {f.engines[0], Claim{Hash: 7, Bits: aliased | 1}, Outcome{Result: Malformed}},
		"a store's device":   {store, Claim{Hash: 7, Bits: 1}, Outcome{Result: Malformed}},
		"another's meaning":  {f.engines[0], Claim{Hash: own, Bits: 1}, Outcome{}},
		"a holder not there": {99, Claim{Hash: 7, Bits: 1}, Outcome{Result: Refused}},
	} {
		if got := f.ix.Paste(c.h, []Claim{c.claim}); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	f.want(1, 1, 0, 1)
	claims := []Claim{{Hash: 7, Bits: 1}, {Hash: 8, Bits: 1}}
	claims[0].Name.Lo, claims[1].Name.Lo = 1, 2
	if got := f.ix.Paste(f.engines[0], claims); got.Result != Exceeded {
		t.Errorf("%+v", got)
	}
}

// TestCopyOfABlockThatGetsASecondHash has its first.
func TestCopyOfABlockThatGetsASecondHash(t *testing.T) {
	f, to := newFleet(t, 1, Config{}), newFleet(t, 1, Config{})
	second := func(block int) *prefix.Event {
		e := event(1, block, block+1)
		e.Hashes[0] += 1 << 32
		return e
	}
	f.apply(0, event(1, 0, 8), Applied)
	f.apply(0, second(0), Applied)
	var at Cursor
	var claims [16]Claim
	n := f.ix.Copy(f.engines[0], &at, claims[:2]) // both of the first block, by a list of all such
	f.apply(0, second(4), Applied)
	for !at.Done {
		n += f.ix.Copy(f.engines[0], &at, claims[n:])
	}
	to.ix.Paste(to.engines[0], claims[:n])
	to.want(1, 8, 0, 8)
}
