package config

import (
	"encoding/hex"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/perigee-llm/perigee/internal/gateway/keyring"
)

// KeysVersion is the format of the file of API keys that this version reads.
const KeysVersion = 1

// minKeyLength is the shortest API key, in bytes: 16 characters out of 64 hold the 96 bits below which guessing over a
// network is not hopeless.
const minKeyLength = 16

// maxKeyName is the longest name of a key, in bytes: it labels a metric and stands in every line of the access log.
const maxKeyName = 64

// ReadKeys reads the file of API keys at path. The keys are nil when any fault is an error. c tells which models there are; a key for
// one that is not there is only warned of, because gateways that serve different models may share a file.
func ReadKeys(path string, c *Config) ([]keyring.Key, Faults) {
	data, faults := readSecret(path, MaxFileBytes)
	if data == nil {
		return nil, faults
	}
	keys, more := ParseKeys(path, data, c)
	return keys, append(faults, more...)
}

// ReadEngineKey reads the key that the gateway presents to an engine: one line. It is empty when any fault is an error.
func ReadEngineKey(path string) (string, Faults) {
	const most = 4 << 10 // bytes: tokens that carry claims are long
	data, faults := readSecret(path, most)
	if data == nil {
		return "", faults
	}
	key := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	if key != "" && len(data) <= most && visible(key) {
		return key, faults
	}
	return "", append(faults, Fault{File: path, What: "is not one line of printable ASCII without spaces, of at most 4 KiB", Cure: "write the key alone into it"})
}

// readSecret reads a regular file of at most limit bytes, and one byte more to show that there was more. It warns where everybody may
// read it. The data are nil after a fault.
func readSecret(path string, limit int) ([]byte, Faults) {
	var faults Faults
	fault, ok := SecretFile(path)
	if !ok || fault.Warning {
		faults = Faults{fault}
	}
	if !ok {
		return nil, faults
	}
	data, err := readFile(path)
	if err != nil {
		return nil, append(faults, Fault{File: path, What: "cannot be read: " + err.Error()})
	}
	if data == nil {
		data = []byte{}
	}
	return data[:min(len(data), limit+1)], faults
}

// SecretFile looks at a file that is to hold a secret: it tells whether it can be one, and warns where everybody may read it. The Fault
// means something when ok is false or Fault.Warning is set.
func SecretFile(path string) (fault Fault, ok bool) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return Fault{File: path, What: "cannot be read: " + err.Error()}, false
	case !info.Mode().IsRegular(): // a pipe would be waited for
		return Fault{File: path, What: "is not a file", Cure: "name a regular file"}, false
	case info.Mode().Perm()&0o004 != 0:
		return Fault{File: path, What: "everybody on this machine can read it", Cure: "chmod o= " + path, Warning: true}, true
	}
	return Fault{}, true
}

// ParseKeys reads a file of API keys; see [ReadKeys]. No fault quotes anything of the file, since whatever stands in a wrong place may be
// a key.
func ParseKeys(name string, data []byte, c *Config) ([]keyring.Key, Faults) {
	d := newDecoder(name)
	k := keysDecoder{decoder: d, names: map[string]int{}, digests: map[keyring.Digest]int{}, served: map[string]bool{}}
	if c != nil {
		for i := range c.Models {
			k.served[c.Models[i].ID] = true
			for _, alias := range c.Models[i].Aliases {
				k.served[alias] = true
			}
		}
	}
	root := d.parse(data)
	if root != nil {
		k.file(root)
	}
	for i := range d.faults {
		if strings.HasPrefix(d.faults[i].What, "not YAML: ") {
			d.faults[i].What = "not YAML" // the library quotes what it stumbled over
		}
		if d.faults[i].What == "the file is empty" {
			d.faults[i].Cure = "write version and keys"
		}
	}
	d.faults = d.faults.sorted()
	if len(d.faults.Errors()) > 0 {
		return nil, d.faults
	}
	return k.keys, d.faults
}

// keysDecoder reads the file of API keys. It shares places and faults with the other decoder, but not its words, which quote.
type keysDecoder struct {
	*decoder
	keys    []keyring.Key
	names   map[string]int // name → position
	digests map[keyring.Digest]int
	served  map[string]bool
}

func (k *keysDecoder) wrong(path string, n *node, what, cure string) {
	k.fault(path, n, classValue, what, cure)
}

// table returns the values of a mapping by key. Only the known keys are taken; others are faults.
func (k *keysDecoder) table(path string, n *node, known ...string) (map[string]*node, bool) {
	if n.Kind != mappingNode || n.Anchor != "" || n.ShortTag() != "!!map" {
		k.wrong(path, n, "is not a plain mapping", "write a mapping with the keys "+strings.Join(known, ", "))
		return nil, false
	}
	out := map[string]*node{}
	ok := true
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		switch {
		case key.Kind != scalarNode || key.ShortTag() != "!!str" || key.Anchor != "" || !slices.Contains(known, key.Value):
			k.wrong(path, key, "has a key that is not known", "choose from "+strings.Join(known, ", "))
			ok = false
		case out[key.Value] != nil:
			k.wrong(join(path, key.Value), key, "is written twice", "remove one of them")
			ok = false
		default:
			out[key.Value] = n.Content[i+1]
		}
	}
	return out, ok
}

// word returns a scalar's text.
func (k *keysDecoder) word(path string, n *node) (string, bool) {
	if n.Kind == scalarNode && n.Anchor == "" && n.ShortTag() == "!!str" {
		return n.Value, true
	}
	cure := "write text"
	if n.Kind == scalarNode {
		cure = "put it in quotes to make it text"
	}
	k.wrong(path, n, "is not text", cure)
	return "", false
}

func (k *keysDecoder) items(path string, n *node) []*node {
	if n.Kind != listNode || n.Anchor != "" || n.ShortTag() != "!!seq" || len(n.Content) == 0 {
		k.wrong(path, n, "is not a list of at least one", `write one "- " a line`)
		return nil
	}
	return n.Content
}

func (k *keysDecoder) file(root *node) {
	top, ok := k.table("", root, "version", "keys")
	if !ok && top == nil {
		return
	}
	if v := top["version"]; v == nil {
		k.wrong("version", root, "is missing", "add version: "+strconv.Itoa(KeysVersion))
	} else if v.Kind != scalarNode || v.Value != strconv.Itoa(KeysVersion) || v.ShortTag() != "!!int" || v.Anchor != "" {
		k.wrong("version", v, "is not a version that can be read", "write version: "+strconv.Itoa(KeysVersion))
	}
	if top["keys"] == nil {
		k.wrong("keys", root, "is missing", "add keys")
		return
	}
	for i, n := range k.items("keys", top["keys"]) {
		k.key(i, n)
	}
}

// key reads one key and keeps it when it has no fault.
func (k *keysDecoder) key(i int, n *node) {
	at := index("keys", i)
	t, ok := k.table(at, n, "name", "key", "sha256", "models")
	if t == nil {
		return
	}
	name, named := k.name(at, n, t["name"], i)
	digest, known := k.digest(at, n, t["key"], t["sha256"])
	if known {
		if j, twice := k.digests[digest]; twice {
			k.wrong(at, n, "is the same key as keys["+strconv.Itoa(j)+"]", "give each its own, or remove one of them")
			known = false
		} else {
			k.digests[digest] = i
		}
	}
	models, listed := k.models(at, t["models"])
	if ok && named && known && listed {
		k.keys = append(k.keys, keyring.Key{Name: name, Digest: digest, Models: models})
	}
}

func (k *keysDecoder) name(at string, key, n *node, i int) (string, bool) {
	at = join(at, "name")
	if n == nil {
		k.wrong(at, key, "is missing", "add name, by which logs and metrics call the key")
		return "", false
	}
	s, ok := k.word(at, n)
	if !ok {
		return "", false
	}
	if s == "" || len(s) > maxKeyName || strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-@") != "" {
		k.wrong(at, n, "is not a name", "write 1 to "+strconv.Itoa(maxKeyName)+" letters, digits, dots, dashes, underscores and @")
		return "", false
	}
	if j, twice := k.names[s]; twice {
		k.wrong(at, n, "is the name of keys["+strconv.Itoa(j)+"] too", "choose another")
		return "", false
	}
	k.names[s] = i
	return s, true
}

func (k *keysDecoder) digest(at string, entry, key, sum *node) (keyring.Digest, bool) {
	switch {
	case key != nil && sum != nil:
		k.wrong(join(at, "sha256"), sum, "is given beside key", "keep one of them")
	case key != nil:
		at = join(at, "key")
		s, ok := k.word(at, key)
		switch {
		case !ok:
		case len(s) < minKeyLength || len(s) > keyring.MaxLength || !visible(s):
			k.wrong(at, key, "is not a key", "write "+strconv.Itoa(minKeyLength)+" to "+strconv.Itoa(keyring.MaxLength)+" printable ASCII characters without spaces, such as openssl rand -hex 32 makes")
		default:
			return keyring.DigestOf(s), true
		}
	case sum != nil:
		at = join(at, "sha256")
		var out keyring.Digest
		// Sixty-four digits may happen to be a number to YAML; what was written is what counts.
		if sum.Kind == scalarNode && sum.Anchor == "" && len(sum.Value) == hex.EncodedLen(len(out)) {
			if _, err := hex.Decode(out[:], []byte(sum.Value)); err == nil {
				return out, true
			}
		}
		k.wrong(at, sum, "is not a SHA-256", "write 64 hexadecimal digits, such as printf %s KEY | sha256sum makes")
	default:
		k.wrong(at, entry, "has no key", "add key, or sha256 with its SHA-256")
	}
	return keyring.Digest{}, false
}

// models returns nil for a key that may use all of them.
func (k *keysDecoder) models(at string, n *node) ([]string, bool) {
	if n == nil {
		return nil, true
	}
	at = join(at, "models")
	ok := true
	var out []string
	for i, item := range k.items(at, n) {
		path := index(at, i)
		s, isText := k.word(path, item)
		switch {
		case !isText:
			ok = false
		case s == "" || !utf8.ValidString(s):
			k.wrong(path, item, "is empty", "write a model's name")
			ok = false
		case slices.Contains(out, s):
			k.wrong(path, item, "is listed twice", "remove one of them")
			ok = false
		default:
			out = append(out, s)
			if len(k.served) > 0 && !k.served[s] {
				k.add(path, item, classValue, "names a model that this gateway does not serve", "is it misspelt?", true)
			}
		}
	}
	return out, ok && out != nil
}

// visible tells whether s is printable ASCII without spaces, as a header can carry it.
func visible(s string) bool {
	for i := range len(s) {
		if s[i] < 0x21 || s[i] > 0x7e {
			return false
		}
	}
	return true
}
