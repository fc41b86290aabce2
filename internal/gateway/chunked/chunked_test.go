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
