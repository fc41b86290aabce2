package lex

import (
	"bytes"
	"strconv"
	"testing"
)

// BenchmarkString reads strings that are plain for so many bytes at a time, with an escape behind each such run, 32 KiB in all.
func BenchmarkString(b *testing.B) {
	for _, run := range []int{4, 8, 9, 12, 16, 20, 24, 30, 60, 100, 200, 500, 2000, 32 << 10} {
		text := append(bytes.Repeat([]byte{'x'}, run), `\n`...)
		text = append(append([]byte{'"'}, bytes.Repeat(text, (32<<10)/len(text)+1)...), '"')
		b.Run(strconv.Itoa(run), func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				s := Of(text)
				if s.String(0) != len(text) {
					b.Fatal("it ends elsewhere")
				}
			}
		})
	}
}
