package load

import (
	"math"
	"strconv"
)

// Count is a measured number (requests, tokens, microseconds: the field says which), or unknown. The zero value is unknown.
type Count struct {
	n     int64
	known bool
}

// Known returns the measured number n.
func Known(n int64) Count { return Count{n: n, known: true} }

// Get returns the number, and false where it is unknown.
func (c Count) Get() (int64, bool) { return c.n, c.known }

// IsKnown tells whether the number was measured.
func (c Count) IsKnown() bool { return c.known }

// Plus returns the sum, saturating at the ends of int64. It is unknown if either part is: half a sum is no measurement.
func (c Count) Plus(d Count) Count {
	if !c.known || !d.known {
		return Count{}
	}
	return Known(Add(c.n, d.n))
}

// String returns the number in decimal, or "unknown".
func (c Count) String() string {
	if !c.known {
		return "unknown"
	}
	return strconv.FormatInt(c.n, 10)
}

// MarshalJSON writes the number, or null where it is unknown.
func (c Count) MarshalJSON() ([]byte, error) {
	if !c.known {
		return []byte("null"), nil
	}
	return strconv.AppendInt(nil, c.n, 10), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (c *Count) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*c = Count{}
		return nil
	}
	n, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil {
		return err
	}
	*c = Known(n)
	return nil
}

// Add returns the sum, saturating at the ends of int64.
func Add(a, b int64) int64 {
	s := a + b
	switch {
	case a > 0 && b > 0 && s < 0:
		return math.MaxInt64
	case a < 0 && b < 0 && s >= 0:
		return math.MinInt64
	}
	return s
}
