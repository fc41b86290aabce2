//go:build !race

package lex

// run reads plain bytes and escapes that are simple, n bytes from p on at most: how many bytes, and how many escapes among them. It stops at what is neither, or
// less than 65 bytes before the end.
//
//go:noescape
func run(p *byte, n int) (end, escapes int)

// text reads plain text with simple escapes in it from i on, and returns where it stopped, which may be anywhere in it, and how many escapes it has read.
func text(b []byte, i int) (end, escapes int) {
	if len(b)-i <= 64 {
		return i, 0
	}
	end, escapes = run(&b[i], len(b)-i)
	return i + end, escapes
}
