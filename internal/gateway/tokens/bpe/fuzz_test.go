package bpe

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzParse: a file is refused by one of our two errors, or can be used.
func FuzzParse(f *testing.F) {
	f.Add([]byte(small))
	f.Add([]byte(`{"version":"1.0","model":{"type":"BPE","unk_token":"?","fuse_unk":true,"byte_fallback":true,"ignore_merges":true,"vocab":{"?":0,"▁":1,"<0xC3>":2,"é":3,"▁é":4},"merges":[["▁","é"]]},` +
		`"normalizer":{"type":"Replace","pattern":{"String":" "},"content":"▁"},"pre_tokenizer":{"type":"Split","pattern":{"String":" "},"behavior":"MergedWithPrevious","invert":false},` +
		`"decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]}}`))
	f.Add([]byte(`{"added_tokens":[{"id":1,"content":"ab","single_word":true,"lstrip":true,"rstrip":true,"normalized":true,"special":false}],"model":{"type":"BPE","vocab":{"\u00e9":0},"merges":[]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		tok, err := Parse(data)
		if err != nil {
			var unsupported *UnsupportedError
			var format *FormatError
			if !errors.As(err, &unsupported) && !errors.As(err, &format) {
				t.Fatalf("an error of another kind: %v", err)
			}
			return
		}
		ids := tok.Encode(nil, "abc é<s> 日本 \x80<0xC3>  "+strings.Repeat("abc", 30), Options{AddSpecial: true})
		tok.Decode(ids, false)
		for _, id := range ids {
			if name, ok := tok.IDToToken(id); ok && len(tok.prefix)+len(tok.suffix) == 0 {
				if back, ok := tok.TokenToID(name); !ok || back != id {
					t.Errorf("id %d is %q, which is id %d, %v", id, name, back, ok)
				}
			}
		}
	})
}

// FuzzEncode holds what is true of any text: the caches change nothing, bytes that are not UTF-8 are as their
// replacement, and where nothing is normalized away the text comes back.
func FuzzEncode(f *testing.F) {
	for i, s := range texts(f) {
		if i%40 == 0 && len(s) < 2000 {
			f.Add(s)
		}
	}
	f.Add("\xff\xfe\xe3\x81 \xf0\x9f\x99")
	var toks []*Tokenizer
	for _, name := range []string{"llama3", "qwen3", "deepseek", "o200k", "gpt2", "added", "gemma"} {
		toks = append(toks, tiny(f, name))
	}
	cache := NewCache(1 << 20)
	f.Fuzz(func(t *testing.T, s string) {
		long := strings.Repeat(s, chunkBytes/(len(s)+1)+2)
		for i, tok := range toks {
			ids := tok.Encode(nil, s, Options{})
			if again := tok.Encode(nil, strings.ToValidUTF8(s, "\xff"), Options{}); utf8.ValidString(s) && !slices.Equal(again, ids) {
				t.Errorf("%d: the second time %v, not %v", i, again, ids)
			}
			if clean := tok.Encode(nil, lossy([]byte(s)), Options{}); !slices.Equal(clean, ids) {
				t.Errorf("%d: replaced by hand %v, not %v", i, clean, ids)
			}
			if i != 1 && i != 5 {
				if back := tok.Decode(ids, false); back != lossy([]byte(s)) && !strings.Contains(s, "▁") && i != 6 {
					t.Errorf("%d: came back as %q", i, back)
				}
			}
			if cached, plain := tok.Encode(nil, long, Options{Cache: cache}), tok.Encode(nil, long, Options{}); !slices.Equal(cached, plain) {
				t.Errorf("%d: through the cache %v, not %v", i, cached, plain)
			}
		}
	})
}
