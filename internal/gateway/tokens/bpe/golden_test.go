package bpe

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
)

// The golden files are the reference implementation's answers; scripts/tokenizer-golden.sh writes them.

func unzip(tb testing.TB, name string) []byte {
	tb.Helper()
	f, err := os.Open(filepath.Join("testdata", name))
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		tb.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func texts(tb testing.TB) (list []string) {
	tb.Helper()
	if err := json.Unmarshal(unzip(tb, "texts.json.gz"), &list); err != nil {
		tb.Fatal(err)
	}
	return list
}

// everyCharacter is as in cases.js: each scalar value between letters and after a space.
func everyCharacter() (list []string) {
	for low := rune(0); low < 0x110000; low += 2048 {
		var b strings.Builder
		for c := low; c < low+2048; c++ {
			if c < 0xd800 || c > 0xdfff {
				b.WriteString("a" + string(c) + "A " + string(c))
			}
		}
		list = append(list, b.String())
	}
	return list
}

// names are the families whose real files the golden ids are of; the files are not ours to keep.
var names = []string{"llama3_1", "qwen3", "deepseek_v3", "gptoss", "gemma3"}

// ofModel opens a model's own tokenizer.json. Without it the small tokenizers still hold each path of the code, so that a
// developer without the registry can work; CI has to have it.
func ofModel(tb testing.TB, name string) *Tokenizer {
	tb.Helper()
	path := filepath.Join("../../../../.cache/tokenizers", name+".json")
	if _, err := os.Stat(path); err != nil {
		if os.Getenv("CI") != "" {
			tb.Fatalf("%v; run scripts/tokenizers.sh first", err)
		}
		tb.Skipf("NOT TESTED: %s of the model itself; run scripts/tokenizers.sh once to fetch it", name)
	}
	t, err := Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

func tiny(tb testing.TB, name string) *Tokenizer {
	tb.Helper()
	t, err := Parse(unzip(tb, "tiny-"+name+".json.gz"))
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

func tinyNames(tb testing.TB) (list []string) {
	tb.Helper()
	files, err := filepath.Glob("testdata/tiny-*.json.gz")
	if err != nil || len(files) == 0 {
		tb.Fatal("no small tokenizers under testdata", err)
	}
	for _, f := range files {
		list = append(list, strings.TrimSuffix(strings.TrimPrefix(filepath.Base(f), "tiny-"), ".json.gz"))
	}
	return list
}

// A goldenLine is one answer: of a text from texts.json.gz, of the text T, or of the ids L.
type goldenLine struct {
	T *string
	I json.RawMessage // the ids with the tokens around the text; few in full, else how many and a digest
	N json.RawMessage // without
	D string          // decoded; without special tokens if it is a text's, with them if it is that of ids
	L []uint32
	S string // the ids decoded without special tokens
}

func brief(ids []uint32) string {
	if len(ids) <= 16 {
		b, _ := json.Marshal(ids)
		if ids == nil {
			return "[]"
		}
		return string(b)
	}
	var b []byte
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	return fmt.Sprintf(`"%d:%x"`, len(ids), sha256.Sum256(b))[:1+len(fmt.Sprint(len(ids)))+1+8] + `"`
}

// sameText compares with a golden text, which is in full if it is short in JavaScript's count.
func sameText(got, want string) bool {
	if strings.HasPrefix(want, ":") && len(want) == 9 && got != want {
		return fmt.Sprintf(":%x", sha256.Sum256([]byte(got)))[:9] == want
	}
	return got == want
}

func TestGoldenTiny(t *testing.T) {
	all := texts(t)
	var some []string
	for i, s := range all {
		if i%3 == 0 && utf16Len(s) < 5000 {
			some = append(some, s)
		}
	}
	for _, name := range tinyNames(t) {
		t.Run(name, func(t *testing.T) { checkGolden(t, tiny(t, name), "tiny-"+name, some) })
	}
}

func TestGolden(t *testing.T) {
	all := append(texts(t), string(unzip(t, "code.txt.gz")), string(unzip(t, "prose.txt.gz")))
	all = append(all, everyCharacter()...)
	for _, name := range names {
		t.Run(name, func(t *testing.T) { checkGolden(t, ofModel(t, name), name, all) })
	}
}

func checkGolden(t *testing.T, tok *Tokenizer, name string, texts []string) {
	lines := bufio.NewScanner(bytes.NewReader(unzip(t, name+".jsonl.gz")))
	lines.Buffer(nil, 1<<20)
	n, wrong := 0, 0
	bad := func(format string, args ...any) {
		if wrong++; wrong <= 5 {
			t.Errorf(format, args...)
		}
	}
	for ; lines.Scan(); n++ {
		var g goldenLine
		if err := json.Unmarshal(lines.Bytes(), &g); err != nil {
			t.Fatal(err)
		}
		if g.L != nil {
			if got := tok.Decode(g.L, false); got != g.D {
				bad("decode %v: %q, want %q", g.L, got, g.D)
			}
			if got := tok.Decode(g.L, true); got != g.S {
				bad("decode %v without special tokens: %q, want %q", g.L, got, g.S)
			}
			continue
		}
		text := ""
		switch {
		case g.T != nil:
			text = *g.T
			if got := tok.Encode(nil, text, Options{}); brief(got) != string(g.N) {
				bad("%s: without special tokens %s, want %s (%d %v)", short(text), brief(got), g.N, len(got), got[:min(len(got), 40)])
			}
		case n < len(texts):
			text = texts[n]
		default:
			t.Fatal("more golden lines than texts")
		}
		if raceEnabled && (n%16 != 0 || len(text) > 1<<15) {
			continue
		}
		got := tok.Encode(nil, text, Options{AddSpecial: true})
		if brief(got) != string(g.I) {
			bad("text %d, %s: %s, want %s (%v)", n, short(text), brief(got), g.I, got[:min(len(got), 40)])
			continue
		}
		if g.T == nil {
			if back := tok.Decode(got, true); !sameText(back, g.D) {
				bad("text %d, %s: decodes to %s, want %q", n, short(text), short(back), g.D)
			}
		}
	}
	if n < len(texts)+200 {
		t.Errorf("%d golden lines for %d texts", n, len(texts))
	}
	if wrong > 0 {
		t.Errorf("%d of %d wrong", wrong, n)
	}
}

func short(s string) string {
	if len(s) > 120 {
		return fmt.Sprintf("%q... (%d bytes)", s[:120], len(s))
	}
	return fmt.Sprintf("%q", s)
}

// TestSpecialTokensAround: without AddSpecial the ids are the same less those around the text.
func TestSpecialTokensAround(t *testing.T) {
	for _, name := range tinyNames(t) {
		tok := tiny(t, name)
		for _, s := range []string{"", "Hello, world!", "<|begin|>x<bos>"} {
			with, without := tok.Encode(nil, s, Options{AddSpecial: true}), tok.Encode(nil, s, Options{})
			if want := slices.Concat(tok.prefix, without, tok.suffix); !slices.Equal(with, want) {
				t.Errorf("%s: %q: %v, want %v", name, s, with, want)
			}
		}
	}
}

// TestGoldenSplits holds the words of each pattern.
func TestGoldenSplits(t *testing.T) {
	var some []string
	for _, s := range texts(t) {
		if utf16Len(s) < 5000 {
			some = append(some, s)
		}
	}
	for _, name := range []string{"llama3", "qwen3", "deepseek", "o200k", "gpt2"} {
		tok := tiny(t, name)
		lines := bytes.Split(bytes.TrimSpace(unzip(t, "split-"+name+".jsonl.gz")), []byte("\n"))
		if len(lines) != len(some) {
			t.Fatalf("%s: %d golden lines for %d texts", name, len(lines), len(some))
		}
		for i, s := range some {
			var lengths []uint32
			last := 0
			for _, e := range ends(tok, s, 0) {
				lengths = append(lengths, uint32(e-last))
				last = e
			}
			if brief(lengths) != string(lines[i]) {
				t.Errorf("%s: %s: words of %v bytes, want %s", name, short(s), lengths[:min(len(lengths), 40)], lines[i])
			}
		}
	}
}

// utf16Len is the length of a string in JavaScript.
func utf16Len(s string) int { return len(utf16.Encode([]rune(s))) }

func TestDecodeSteps(t *testing.T) {
	for _, c := range []struct {
		st   decodeStep
		in   string // tokens by |
		want string
	}{
		{decodeStep{kind: decodeByteFallback}, "<0xC3>|<0xA9>|x|<0xC3>|y", "é|x|\ufffd|y"},
		{decodeStep{kind: decodeByteFallback}, "<0x+F>|<0xZZ>|<0x0A", "\x0f|<0xZZ>|<0x0A"},
		{decodeStep{kind: decodeByteFallback}, "<0xE3>|<0x81>", "\ufffd\ufffd"},
		{decodeStep{kind: decodeStrip, from: " ", stripLeft: 1, stripRight: 2}, "  a   |b", " a |b"},
		{decodeStep{kind: decodeReplace, from: "▁", to: " "}, "▁a▁|b", " a |b"},
		{decodeStep{kind: decodeFuse}, "a|b", "ab"},
		{decodeStep{kind: decodeByteLevel}, "Ġa|日", " a日"},
	} {
		got := strings.Join(c.st.apply(strings.Split(c.in, "|")), "|")
		if got != c.want {
			t.Errorf("%q: %q, want %q", c.in, got, c.want)
		}
	}
}

// TestHanEnds: the first and last characters of the ranges in DeepSeek's second pattern, and their neighbours.
func TestHanEnds(t *testing.T) {
	for r, want := range map[rune]bool{0x303f: false, 0x3040: true, 0x309f: true, 0x30a0: true, 0x30ff: true, 0x3100: false, 0x4dff: false, 0x4e00: true, 0x9fa5: true, 0x9fa6: false, 0xac00: false} {
		if han(string(r), 0) != want {
			t.Errorf("%U: %v", r, !want)
		}
	}
}
