package core

import "testing"

// TestSlab: records are zero, rows do not share any, and what a row keeps is bounded.
func TestSlab(t *testing.T) {
	var s slab[[2]int]
	for round := range 40 {
		var all [][][2]int
		for n := range 1 + round*20 {
			row := s.take(1 + n%3)
			for i := range row {
				if row[i] != [2]int{} {
					t.Fatalf("round %d: a record is not empty", round)
				}
				row[i] = [2]int{round + 1, n}
			}
			all = append(all, row)
		}
		for n, row := range all {
			for _, r := range row {
				if r != [2]int{round + 1, n} {
					t.Fatalf("round %d: record %d is another's", round, n)
				}
			}
		}
		if s.recycle(); cap(s.row) > mostRow {
			t.Fatalf("%d records are kept", cap(s.row))
		}
	}
	s.take(10 * mostRow)
	if s.recycle(); cap(s.row) > mostRow {
		t.Errorf("%d records are kept", cap(s.row))
	}
}
