package chunked

import "testing"

func TestParseSize(t *testing.T) {
	for _, c := range []struct {
		line string
		n    int64
		ok   bool
	}{
		{"0", 0, true}, {"a", 10, true}, {"1F", 31, true}, {"00010", 16, true}, {"fffffffffffffff", 1<<60 - 1, true},
		{"5 ", 5, true}, {"5\t;a=b", 5, true}, {"5;\"x y\"", 5, true}, {"5;", 5, true},
		{"", 0, false}, {" 5", 0, false}, {";a", 0, false}, {"0x5", 0, false}, {"-1", 0, false}, {"+1", 0, false}, {"5 5", 0, false},
		{"5g", 0, false}, {"5\r", 0, false}, {"1000000000000000", 0, false}, {"0000000000000001", 0, false},
	} {
		if n, ok := ParseSize([]byte(c.line)); n != c.n || ok != c.ok {
			t.Errorf("%q: %d, %v", c.line, n, ok)
		}
	}
}

// TestExcess: who sends a byte at a time or a little beside much is let pass for ever, who sends nearly nothing but what is no data is not.
func TestExcess(t *testing.T) {
	for _, c := range []struct {
		name string
		line int   // before each chunk
		n    int64 // of its data
		pass int   // chunks that pass, of a million
	}{
		{"a byte a chunk", 1, 1, 1e6}, {"a byte with a short extension", 14, 1, 1e6}, {"with a longer one", 15, 1, inAll},
		{"long extensions", 250, 1, inAll / (250 + 4 - perChunk - 2)}, {"as much data as half of them", 250, 125, 1e6}, {"one huge chunk after the other", 200, 1<<60 - 1, 1e6},
	} {
		var e Excess
		pass := 0
		for pass < 1e6 && e.Add(c.line, c.n) {
			pass++
		}
		if pass != c.pass {
			t.Errorf("%s: %d pass, want %d", c.name, pass, c.pass)
		}
	}
}
