package splitmix

import "testing"

// TestPublished compares with the published numbers of the generator started from 1234567 (Vigna's splitmix64.c, as Rosetta Code
// lists them).
func TestPublished(t *testing.T) {
	state, out := uint64(1234567), uint64(0)
	for i, want := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821} {
		if state, out = Step(state); out != want {
			t.Errorf("number %d is %d, want %d", i, out, want)
		}
	}
}
