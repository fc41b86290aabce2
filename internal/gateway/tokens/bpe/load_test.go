package bpe

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// small is a whole file that a test changes in one place.
const small = `{
  "version": "1.0", "truncation": null, "padding": null,
  "added_tokens": [{"id": 5, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
  "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
  "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}]},
  "post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
    {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
     "special_tokens": {"<s>": {"id": "<s>", "ids": [5], "tokens": ["<s>"]}}}]},
  "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
  "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "", "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
    "ignore_merges": false, "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4}, "merges": ["a b", "ab c"]}
}`

func TestParse(t *testing.T) {
	tok, err := Parse([]byte(small))
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Encode(nil, "abcab<s>", Options{AddSpecial: true}); brief(got) != "[5,4,3,5]" {
		t.Errorf("ids %v", got)
	}
	if tok.VocabSize() != 6 {
		t.Errorf("%d tokens", tok.VocabSize())
	}
	for token, want := range map[string]uint32{"<s>": 5, "abc": 4} {
		id, ok := tok.TokenToID(token)
		back, ok2 := tok.IDToToken(id)
		if !ok || !ok2 || id != want || back != token {
			t.Errorf("%s has id %d, %v, which is %s, %v", token, id, ok, back, ok2)
		}
	}
	if _, ok := tok.TokenToID("zz"); ok {
		t.Error("zz has an id")
	}
	if _, ok := tok.IDToToken(6); ok || tok.SpecialID(6) || !tok.SpecialID(5) || tok.SpecialID(0) {
		t.Error("id 6 has a token, or the special ids are wrong")
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		old, new string // the change to small
		part     string // what the error names
		format   bool   // a *FormatError; else an *UnsupportedError
	}{
		{`"truncation": null`, `"truncation": {"max_length": 512}`, "truncation", false},
		{`"padding": null`, `"padding": {"pad_id": 0}`, "padding", false},
		{`"version": "1.0"`, `"version": "2.0"`, "version", false},
		{`"version": "1.0"`, `"version": "1.0", "novel": 1`, "novel", false},
		{`{"type": "NFC"}`, `{"type": "NFKC"}`, "normalizer.normalizers[0].type", false},
		{`{"type": "NFC"}`, `{"type": "Lowercase"}`, "normalizer.normalizers[0].type", false},
		{`{"type": "NFC"}`, `{"type": "Prepend", "prepend": "▁"}`, "normalizer.normalizers[0].type", false},
		{`{"type": "NFC"}`, `{"type": "NFC", "novel": true}`, "normalizer.normalizers[0].novel", false},
		{`{"type": "NFC"}`, `{"type": "Replace", "pattern": {"Regex": " +"}, "content": "▁"}`, "normalizer.normalizers[0].pattern.Regex", false},
		{`{"type": "NFC"}`, `{"type": "Replace", "pattern": {"String": ""}, "content": "▁"}`, "normalizer.normalizers[0].pattern", false},
		{`{"type": "NFC"}`, `{"type": "Replace", "pattern": {"String": "a"}, "content": "▁▁▁▁▁▁"}`, "normalizer.normalizers[0].content", false},
		{`{"type": "NFC"}`, `{"type": "Replace", "pattern": {"String": "a"}, "content": "b"}, {"type": "Replace", "pattern": {"String": "b"}, "content": "c"}`, "normalizer.normalizers[1].type", false},
		{`{"type": "NFC"}`, `"NFC"`, "normalizer.normalizers[0]", true},
		{`{"type": "ByteLevel", "add_prefix_space": false,`, `{"type": "ByteLevel", "add_prefix_space": true,`, "pre_tokenizer.pretokenizers[0].add_prefix_space", false},
		{`{"type": "ByteLevel", "add_prefix_space": false,`, `{"type": "Digits", "individual_digits": true}, {"type": "ByteLevel", "add_prefix_space": false,`, "pre_tokenizer.pretokenizers[0].type", false},
		{`{"type": "ByteLevel", "add_prefix_space": false,`, `{"type": "Split", "pattern": {"Regex": "\\p{L}+"}, "behavior": "Isolated", "invert": false}, {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}, {"type": "ByteLevel", "add_prefix_space": false,`, "pre_tokenizer.pretokenizers[2].type", false},
		{`"trim_offsets": true, "use_regex": true}]},` + "\n" + `  "post`, `"use_regex": false}, {"type": "Split", "pattern": {"Regex": "\\p{N}"}, "behavior": "Isolated", "invert": false}]},` + "\n" + `  "post`, "pre_tokenizer.pretokenizers[1].type", false},
		{`{"type": "ByteLevel", "add_prefix_space": false,`, `{"type": "Split", "pattern": {"Regex": "\\p{L}+"}, "behavior": "Isolated", "invert": false}, {"type": "ByteLevel", "add_prefix_space": false,`, "pre_tokenizer.pretokenizers[1].use_regex", false},
		{`{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}`, `{"type": "Split", "pattern": {"Regex": "\\p{L}+"}, "behavior": "Isolated", "invert": false}`, "pre_tokenizer.pretokenizers[0].pattern", false},
		{`{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}`, `{"type": "Split", "pattern": {"Regex": "\\p{L}+"}, "behavior": "Removed", "invert": false}`, "pre_tokenizer.pretokenizers[0].behavior", false},
		{`{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}`, `{"type": "Split", "pattern": {"Regex": "\\p{L}+"}, "behavior": "Isolated", "invert": true}`, "pre_tokenizer.pretokenizers[0].invert", false},
		{`{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}`, `{"type": "Split", "pattern": {"String": " "}, "behavior": "Isolated", "invert": false}`, "pre_tokenizer.pretokenizers[0].pattern", false},
		{`{"type": "TemplateProcessing"`, `{"type": "BertProcessing"`, "post_processor.processors[1].type", false},
		{`{"Sequence": {"id": "A", "type_id": 0}}]`, `{"Sequence": {"id": "B", "type_id": 0}}]`, "post_processor.processors[1].single[1].Sequence.id", false},
		{`{"Sequence": {"id": "A", "type_id": 0}}]`, `{"SpecialToken": {"id": "<s>", "type_id": 0}}]`, "post_processor.processors[1].single", false},
		{`{"SpecialToken": {"id": "<s>"`, `{"SpecialToken": {"id": "<t>"`, "post_processor.processors[1].special_tokens.<t>", true},
		{`"decoder": {"type": "ByteLevel"`, `"decoder": {"type": "WordPiece"`, "decoder.type", false},
		{`"type": "BPE"`, `"type": "Unigram"`, "model.type", false},
		{`"dropout": null`, `"dropout": 0.1`, "model.dropout", false},
		{`"continuing_subword_prefix": ""`, `"continuing_subword_prefix": "##"`, "model.continuing_subword_prefix", false},
		{`"end_of_word_suffix": null`, `"end_of_word_suffix": "</w>"`, "model.end_of_word_suffix", false},
		{`"fuse_unk": false`, `"fuse_unk": 0`, "model.fuse_unk", true},
		{`"fuse_unk": false`, `"fuse_unk": false, "novel": 0`, "model.novel", false},
		{`"unk_token": null`, `"unk_token": "?"`, "model.unk_token", true},
		{`"merges": ["a b"`, `"merges": ["b a", "a b"`, "model.merges[0]", true},
		{`"merges": ["a b"`, `"merges": ["a z", "a b"`, "model.merges[0]", true},
		{`"merges": ["a b"`, `"merges": ["a b c", "a b"`, "model.merges[0]", true},
		{`"merges": ["a b"`, `"merges": [["a", "b", "c"], "a b"`, "model.merges[0]", true},
		{`"merges": ["a b"`, `"merges": [["a", "b"], "a b"`, "model.merges", true},
		{`"merges": ["a b"`, `"merges": [["", "a"], "a b"`, "model.merges[0]", true},
		{`"c": 2`, `"c": 2, "a": 5`, "model.vocab", true},
		{`"c": 2`, `"c": 1`, "model.vocab", true},
		{`"c": 2`, `"c": -1`, "model.vocab", true},
		{`"c": 2`, `"c": 2.5`, "model.vocab", true},
		{`"c": 2`, `"c": 1048575`, "model.vocab", true},
		{`"c": 2`, `"c": 99999`, "model.vocab", false},
		{`"c": 2`, `"": 2`, "model.vocab", false},
		{`"id": 5, "content": "<s>"`, `"id": 6, "content": "<s>"`, "added_tokens[0].id", false},
		{`"id": 5, "content": "<s>"`, `"id": 5, "content": ""`, "added_tokens[0].content", false},
		{`"id": 5, "content": "<s>"`, `"id": 5, "content": "<s>", "novel": 1`, "added_tokens[0].novel", false},
		{`"lstrip": false, `, ``, "added_tokens[0].lstrip", true},
		{`"vocab": {`, `"vocab": {}, "vocab": {`, "model.vocab", true},
		{`"version"`, `"model": {}, "version"`, "model", true},
		{`"vocab": {`, `"other": {`, "model.vocab", true},
	} {
		if !strings.Contains(small, c.old) {
			t.Fatalf("%q is not in the file", c.old)
		}
		_, err := Parse([]byte(strings.Replace(small, c.old, c.new, 1)))
		var unsupported *UnsupportedError
		var format *FormatError
		part := ""
		switch {
		case errors.As(err, &unsupported) && !c.format:
			part = unsupported.Part
		case errors.As(err, &format) && c.format:
			part = format.Part
		}
		if part != c.part {
			t.Errorf("%s: %v, want an error of %s", c.new, err, c.part)
		}
	}
}

func TestMalformed(t *testing.T) {
	for _, s := range []string{"", "{", "[]", "null", `{"a":1}x`, `{"model": {"vocab": {"a\ud800": 1}}}`, "{\"model\": \"\xff\"}", `{"model": tru}`, `{"model": 01x}`,
		`{"normalizer": ` + strings.Repeat("[", 100000), `{"model": {"vocab": ` + strings.Repeat("[", 100000), `{"x": "a` + "\n" + `"}`, `{"x": "\q"}`, small + "x", small[:len(small)-1]} {
		_, err := Parse([]byte(s))
		var format *FormatError
		if !errors.As(err, &format) {
			t.Errorf("%.40q: %v, want a FormatError", s, err)
		}
	}
}

// TestValuesAreBounded: 64 MiB of small values would be 1 GB of memory.
func TestValuesAreBounded(t *testing.T) {
	_, err := Parse([]byte(`{"added_tokens": [` + strings.Repeat("[],", maxValues) + `[]]}`))
	if err == nil || !strings.Contains(err.Error(), "too many values") {
		t.Error(err)
	}
}

func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokenizer.json")
	if _, err := Open(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(path, []byte(small), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); err != nil {
		t.Error(err)
	}
	if err := os.Truncate(path, MaxFileBytes+1); err != nil {
		t.Fatal(err)
	}
	var format *FormatError
	if _, err := Open(path); !errors.As(err, &format) || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("a large file: %v", err)
	}
}

// TestJSONStrings compares our strings with encoding/json's.
func TestJSONStrings(t *testing.T) {
	for _, s := range []string{`"a"`, `""`, `"\u0041\n\t\"\\\/\b\f\r"`, `"\ud83d\ude42"`, `"é日🙂"`, `"\u00e9x"`, `"x\u65e5"`} {
		var want string
		if err := json.Unmarshal([]byte(s), &want); err != nil {
			t.Fatal(err)
		}
		got, err := (&cursor{b: []byte(s)}).str()
		if string(got) != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", s, got, err, want)
		}
	}
}
