package state

import (
	"crypto/sha256"
	"strings"
	"unicode/utf8"
)

// Request is what a request adds to the identity of its pages. The zero value adds nothing.
//
// Engines put some of it into their block hashes, but not all of them all of it, and a LoRA adapter by its name alone: the same name with
// other weights would find the old pages. So it is in our key as well.
type Request struct {
	// LoRA is the fingerprint of the adapter's files. An adapter that is known by name only is none that pages can be kept for.
	LoRA Digest
	// Salt is the cache salt; ExtraKey is SGLang's extra_key. They keep tenants apart, and hold at most MaxSalt bytes of UTF-8.
	Salt, ExtraKey string
	// Media and Embeds are SHA-256 over what stands for tokens up to the end of the page: the media items' and the prompt embeddings'
	// digests, in the prompt's order, 32 bytes each. Zero: there are none so far.
	Media, Embeds Digest
}

// MaxSalt bounds salts in bytes. Those in use are ids and digests.
const MaxSalt = 1024

// RequestID stands for a Request in a key: the first 16 bytes of a SHA-256. Zero stands for the zero Request and for no other.
//
// 16 bytes are enough, where a namespace has 32: who looks for two requests with one id needs 2^64 trials and can choose only values
// of his own, which he could share anyway; to hit another's salt takes 2^128. Keys are what a Manager has most of.
type RequestID [16]byte

// requestMagic begins what is digested. Version history: 1 is the first.
const requestMagic = "perigee/request\x00\x01"

// ID digests the request: magic, LoRA, salt and extra key each as u16 length and bytes, media, embeds. It returns ErrInvalid if a text is too
// long or not UTF-8.
func (r *Request) ID() (RequestID, error) {
	if *r == (Request{}) {
		return RequestID{}, nil
	}
	for _, s := range [...]string{r.Salt, r.ExtraKey} {
		if len(s) > MaxSalt || !utf8.ValidString(s) {
			return RequestID{}, fail(ErrInvalid, "a salt or extra key that is too long or not UTF-8")
		}
	}
	w := &writer{buf: append(make([]byte, 0, 256), requestMagic...)}
	r.fields(w)
	d := sha256.Sum256(w.buf)
	id := RequestID(d[:16])
	if id == (RequestID{}) {
		id[15] = 1 // once in 2^128; zero is taken
	}
	return id, nil
}

func (r *Request) fields(c coder) {
	c.digest("lora", &r.LoRA)
	c.text("salt", &r.Salt)
	c.text("extra_key", &r.ExtraKey)
	c.digest("media", &r.Media)
	c.digest("embeds", &r.Embeds)
}

// String names what the request adds, without giving a salt away: whoever knows a tenant's salt can look for its pages.
func (r *Request) String() string {
	var words []string
	for _, part := range []struct {
		name string
		set  bool
	}{
		{"lora", !r.LoRA.IsZero()}, {"salt", r.Salt != ""}, {"extra key", r.ExtraKey != ""},
		{"media", !r.Media.IsZero()}, {"prompt embeds", !r.Embeds.IsZero()},
	} {
		if part.set {
			words = append(words, part.name)
		}
	}
	return strings.Join(words, ", ")
}
