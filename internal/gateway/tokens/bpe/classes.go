package bpe

import (
	_ "embed"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// The bits of a character's class. Letters are the first three together. cWord is what \w means to the rule of added
// tokens that are single words.
const (
	cUpper  uint16 = 1 << iota // Lu, Lt
	cLower                     // Ll
	cOther                     // Lm, Lo
	cMark                      // M
	cNumber                    // N
	cPunct                     // P
	cSymbol                    // S
	cSpace                     // \s
	cWord                      // \w

	cLetter = cUpper | cLower | cOther
)

// classText holds the classes that the reference implementation's regular expressions see, as runs of code points: the
// first one in hex, then one letter for each bit. Package unicode would not do: its tables are of Unicode 15.0, those of
// the reference of 16.0, and 5,812 characters differ. Written by scripts/tokenizer-golden.sh.
//
//go:embed unicode.txt
var classText string

// A classTable gives the class of any character with two loads.
type classTable struct {
	ascii [128]uint16
	page  [utf8.MaxRune>>8 + 1]uint8 // which of pages holds the characters with these upper bits
	pages [][256]uint16
}

// theClasses is built on first use, in about 3 ms.
var theClasses = sync.OnceValue(func() *classTable { return buildClasses(classText) })

// buildClasses panics on a text that the script did not write.
func buildClasses(text string) *classTable {
	t := &classTable{}
	var cur [256]uint16
	seen := map[[256]uint16]uint8{}
	put := func(r rune, class uint16) {
		cur[r&0xff] = class
		if r&0xff != 0xff {
			return
		}
		n, ok := seen[cur]
		if !ok {
			n = uint8(len(t.pages))
			seen[cur], t.pages = n, append(t.pages, cur)
		}
		t.page[r>>8] = n
	}
	next, class := rune(0), uint16(0)
	for line := range strings.Lines(text) {
		at, letters, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseUint(at, 16, 32)
		if err != nil || rune(n) < next || n > utf8.MaxRune {
			panic("bpe: unicode.txt: bad line " + strconv.Quote(line))
		}
		for ; next < rune(n); next++ {
			put(next, class)
		}
		class = 0
		for _, l := range letters {
			if l != '-' {
				class |= 1 << strings.IndexRune("ulomnpsw+", l)
			}
		}
	}
	for ; next <= utf8.MaxRune; next++ {
		put(next, class)
	}
	copy(t.ascii[:], t.pages[t.page[0]][:128])
	return t
}

// at returns the class of the character at byte i of s, and its length. s must be valid UTF-8.
func (t *classTable) at(s string, i int) (class uint16, size int) {
	if b := s[i]; b < utf8.RuneSelf {
		return t.ascii[b], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	return t.of(r), n
}

func (t *classTable) of(r rune) uint16 { return t.pages[t.page[r>>8]][r&0xff] }

// run returns the end of the run of characters of the classes in mask that starts at byte i.
func (t *classTable) run(s string, i int, mask uint16) int {
	for i < len(s) {
		if b := s[i]; b < utf8.RuneSelf {
			if t.ascii[b]&mask == 0 {
				return i
			}
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if t.of(r)&mask == 0 {
			return i
		}
		i += n
	}
	return i
}
