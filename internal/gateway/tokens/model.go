package tokens

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/tokens/bpe"
	"github.com/perigee-llm/perigee/internal/gateway/tokens/template"
)

// maxTemplateFile bounds tokenizer_config.json and chat_template.jinja, in bytes: the largest known, with hundreds of added tokens
// spelled out, have some 200 KB.
const maxTemplateFile = 8 << 20

// Model is one model's tokenizer, and its chat template where it has one that can be rendered.
type Model struct {
	tok   *bpe.Tokenizer
	tmpl  *template.Template // nil: conversations are measured by their bare text
	why   error              // why there is no template
	cache *bpe.Cache
}

// Open reads a model's files: path is its directory, or its tokenizer.json with the others beside it. cache may be nil.
//
// A tokenizer that cannot be followed exactly is an error, a *bpe.UnsupportedError that names the part; a chat template that
// cannot is not, since requests can be routed without it: [Model.TemplateError] has it.
func Open(path string, cache *bpe.Cache) (*Model, error) {
	file := path
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if info.IsDir() {
		file = filepath.Join(path, "tokenizer.json")
	}
	if _, err := regular(file); err != nil {
		return nil, err
	}
	tok, err := bpe.Open(file)
	if err != nil {
		return nil, err // names the file
	}
	dir := filepath.Dir(file)
	config, err := readIfThere(filepath.Join(dir, "tokenizer_config.json"))
	if err != nil {
		return nil, err
	}
	text, err := readIfThere(filepath.Join(dir, "chat_template.jinja"))
	if err != nil {
		return nil, err
	}
	tmpl, why := compile(filepath.Base(dir), config, text)
	return New(tok, tmpl, why, cache), nil
}

// New makes a model of its parts. tmpl may be nil, with the reason in why.
func New(tok *bpe.Tokenizer, tmpl *template.Template, why error, cache *bpe.Cache) *Model {
	return &Model{tok: tok, tmpl: tmpl, why: why, cache: cache}
}

// WithCache returns the same model with another memory of prefixes, or with none. The model itself does not change.
func (m *Model) WithCache(cache *bpe.Cache) *Model {
	other := *m
	other.cache = cache
	return &other
}

// regular refuses what is no file, as a pipe, whose writer a read would wait for. there is false for nothing at all.
func regular(name string) (there bool, err error) {
	info, err := os.Stat(name)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: not a file", name)
	}
	return !errors.Is(err, fs.ErrNotExist), err
}

// readIfThere returns a file's text, or nil where there is none.
func readIfThere(name string) ([]byte, error) {
	if there, err := regular(name); !there {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxTemplateFile+1)) // its size may change meanwhile
	if err != nil {
		return nil, err
	}
	if len(text) > maxTemplateFile {
		return nil, fmt.Errorf("%s: more than %d bytes, which no template's file has", name, maxTemplateFile)
	}
	return text, nil
}

func compile(name string, config, text []byte) (*template.Template, error) {
	if config == nil && text == nil {
		return nil, errors.New("there is neither tokenizer_config.json nor chat_template.jinja beside the tokenizer")
	}
	if config == nil {
		config = []byte("{}")
	}
	cfg, err := template.ParseConfig(name, config, text)
	if err != nil {
		return nil, err
	}
	cfg.Now = time.Now
	return template.Compile(cfg)
}

// TemplateError says why conversations are measured by their bare text; nil: they are rendered.
func (m *Model) TemplateError() error { return m.why }

// MaxWord is the longest word that is encoded, in bytes. What a tokenizer takes for a word is a stretch of letters, of signs or of white space, in some models
// everything between two spaces; merging one takes forty times its length in memory. The longest that text has are rules of some hundred signs.
const MaxWord = 256 << 10

// ErrLongWord is why an input with a longer one was not encoded.
var ErrLongWord = errors.New("a word is too long to be encoded")

// Encode returns the ids of a text, with the special tokens that the tokenizer puts around a text if special. It is nil for a text with a word of more
// than [MaxWord] bytes, and only then.
func (m *Model) Encode(text string, special bool) []uint32 {
	ids := make([]uint32, 0, len(text)/3+8) // enough for text in most languages
	return m.tok.Encode(ids, text, bpe.Options{AddSpecial: special, Cache: m.cache, MaxWord: MaxWord})
}

// TokenBytes returns how many bytes the tokens of ids have together, as the tokenizer's file writes them.
func (m *Model) TokenBytes(ids []uint32) (n int64) {
	for _, id := range ids {
		token, _ := m.tok.IDToToken(id)
		n += int64(len(token))
	}
	return n
}

// Decode returns the text of ids, without special tokens if skipSpecial. It returns false for ids whose tokens, as the
// tokenizer's file writes them, have more than limit bytes together: a short id can stand for a long token. The text is at
// most three times as long, where each byte is one that is no UTF-8.
func (m *Model) Decode(ids []uint32, skipSpecial bool, limit int) (string, bool) {
	for _, id := range ids {
		token, _ := m.tok.IDToToken(id)
		if limit -= len(token); limit < 0 {
			return "", false
		}
	}
	return m.tok.Decode(ids, skipSpecial), true
}
