package lex

import (
	"bytes"
	"strconv"
	"strings"
	"testing"
)

// BenchmarkLanguages reads strings of 32 KiB in which what ends a plain run comes soon, as it does in most languages.
func BenchmarkLanguages(b *testing.B) {
	for _, c := range [...]struct{ name, text string }{
		{"english", strings.Repeat("All of it is English, and has nothing else. ", 20) + `\n`},
		{"french", "L'été dernier nous étions allés à la mer près de Genève, "},
		{"german", "Über die Straße läuft ein Mädchen mit größeren Füßen nach Köln, "},
		{"russian", "привет как твои дела сегодня, "},
		{"chinese", "今天天气很好 我们去公园 AI 模型, "},
		{"code", `if (x == 1) {\n\t\treturn \"abc\";\n}\n`},
		{"escaped", `abc \u00e9 def ghi \u4e00 jkl `},
	} {
		text := []byte(`"` + strings.Repeat(c.text, (32<<10)/len(c.text)+1) + `"`)
		b.Run(c.name, func(b *testing.B) {
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
