package wire

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/internal/cache/core"
)

// tracer is a coder that writes down the types of the fields it is shown, the first element of each list included.
type tracer struct{ types []string }

func (t *tracer) say(s string)                { t.types = append(t.types, s) }
func (t *tracer) u8(*uint8)                   { t.say("u8") }
func (t *tracer) u16(*uint16)                 { t.say("u16") }
func (t *tracer) u32(*uint32)                 { t.say("u32") }
func (t *tracer) u64(*uint64)                 { t.say("u64") }
func (t *tracer) raw(b []byte)                { t.say("[" + strconv.Itoa(len(b)) + "]") }
func (t *tracer) blob(*[]byte, int)           { t.say("bytes") }
func (t *tracer) text(*string, int)           { t.say("text") }
func (t *tracer) u32s(*[]uint32, int)         { t.say("u32s") }
func (t *tracer) hashes(*[]core.Hash, int)    { t.say("hashes") }
func (t *tracer) pieces(*[]core.Piece, int)   { t.types = append(t.types, "list", "u32", "u64", "u32") }
func (t *tracer) count(_, _, _ int) (one int) { t.say("list"); return 1 }

// TestDocs holds the tables of docs/cache-channel.md against the fields of the messages.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/cache-channel.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile(`(?m)^\| (\d+) \| ([A-Z]\w+) \| ([^|]*)\|`)
	word := regexp.MustCompile(`(?:^|, |; |: | of )(u8|u16|u32s|u32|u64|text|bytes|hashes|list|flag|\[\d+\])(?: |,|;|$)`)
	seen := map[Kind]bool{}
	for _, m := range row.FindAllStringSubmatch(string(page), -1) {
		k, _ := strconv.Atoi(m[1])
		msg := newMessage(Kind(k))
		if msg == nil {
			t.Errorf("%s: no message has kind %d", m[2], k)
			continue
		}
		seen[Kind(k)] = true
		var tr tracer
		msg.fields(&tr)
		var want []string
		for rest := strings.TrimSpace(m[3]); ; {
			at := word.FindStringSubmatchIndex(rest)
			if at == nil {
				break
			}
			w := rest[at[2]:at[3]]
			if w == "flag" {
				w = "u8"
			}
			want = append(want, w)
			rest = rest[at[3]:]
		}
		if !slices.Equal(tr.types, want) {
			t.Errorf("%s\n code %v\n page %v", m[2], tr.types, want)
		}
	}
	for k, make := range makers {
		if make != nil && !seen[Kind(k)] {
			t.Errorf("kind %d is not on the page", k)
		}
	}
	for c, name := range classNames {
		if !strings.Contains(string(page), "| "+strconv.Itoa(int(c))+" | `"+name+"` |") {
			t.Errorf("class %d %s is not on the page", c, name)
		}
	}
}
