package gateway

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/keyring"
	"github.com/perigee-llm/perigee/internal/gateway/tokens"
	"github.com/perigee-llm/perigee/internal/gateway/tokens/bpe"
)

// files is what the files hold that a configuration names.
type files struct {
	keys, adminKeys       *keyring.Ring     // nil: none asked for
	publicCert, adminCert *tls.Certificate  // nil: plain HTTP
	indexCert             *tls.Certificate  // of whoever asks for prefixes here; nil: plain text
	engineKeys            map[string]string // by worker id
	indexToken            string            // that whoever asks for prefixes here presents; empty: none is asked for
	snapshot              presented         // to those of whom snapshots are taken
	indexers              map[config.IndexerFiles]presented
	tokenizers            map[string]opened // by path
	prefixes              *bpe.Cache        // of all tokenizers
	collector             collectorFiles
}

// prefixMemory bounds what all tokenizers together remember of texts that they have seen, in bytes: some seven million tokens,
// 900 conversations of 8,192.
const prefixMemory = 64 << 20

// opened is a tokenizer with what its files looked like when it was read.
type opened struct {
	model *tokens.Model
	stamp string
}

// FilesError means that files which a configuration names cannot be used: it is the configuration that is at fault.
type FilesError struct {
	// Faults are all of them.
	Faults config.Faults
}

// Error returns the faults, one a line.
func (e *FilesError) Error() string { return e.Faults.Err().Error() }

// CheckFiles reads the files that a configuration names, as Start does, and returns what is wrong with them.
func CheckFiles(c *config.Config) config.Faults {
	_, faults := readFiles(c, nil)
	return faults
}

// readFiles reads them all, and returns every fault of every file. What it returns can be used if none is an error. A tokenizer
// whose files look as they did before (nil: there is no before) is not read again.
func readFiles(c *config.Config, before *files) (*files, config.Faults) {
	var faults config.Faults
	f := &files{engineKeys: map[string]string{}, tokenizers: map[string]opened{}}
	if before != nil {
		f.prefixes = before.prefixes
	} else {
		f.prefixes = bpe.NewCache(prefixMemory)
	}
	faults = append(faults, f.readTokenizers(c, before)...)
	ring := func(k *config.APIKeys) *keyring.Ring {
		if k == nil {
			return nil
		}
		keys, fs := config.ReadKeys(k.File, c)
		r, err := keyring.New(keys)
		if err != nil { // the reader has refused that already
			fs = append(fs, config.Fault{File: k.File, What: err.Error()})
		}
		faults = append(faults, fs...)
		return r
	}
	cert := func(t *config.TLS) *tls.Certificate {
		if t == nil {
			return nil
		}
		pair, fs := readCertificate(t)
		faults = append(faults, fs...)
		return pair
	}
	f.keys, f.adminKeys = ring(c.Server.APIKeys), ring(c.Server.Admin.APIKeys)
	f.publicCert, f.adminCert, f.indexCert = cert(c.Server.TLS), cert(c.Server.Admin.TLS), cert(c.PrefixIndex.TLS)
	secret := func(file string) (key string) {
		if file == "" {
			return ""
		}
		key, fs := config.ReadEngineKey(file)
		faults = append(faults, fs...)
		return key
	}
	f.indexToken = secret(c.PrefixIndex.TokenFile)
	var fs config.Faults
	f.snapshot, fs = readPresented(c.PrefixIndex.Snapshot)
	faults = append(append(faults, fs...), f.readIndexers(c)...)
	f.collector, fs = readCollectorFiles(c.Tracing)
	faults = append(faults, fs...)
	read := map[string]string{}
	for _, w := range staticWorkers(c) {
		if w.APIKeyFile == "" {
			continue
		}
		key, done := read[w.APIKeyFile]
		if !done {
			var fs config.Faults
			key, fs = config.ReadEngineKey(w.APIKeyFile)
			read[w.APIKeyFile], faults = key, append(faults, fs...)
		}
		f.engineKeys[w.ID] = key
	}
	return f, faults
}

// readTokenizers opens the models' tokenizers, each path once.
func (f *files) readTokenizers(c *config.Config, before *files) (faults config.Faults) {
	done := map[string]bool{"": true}
	for i := range c.Models {
		path := c.Models[i].Tokenizer
		if done[path] {
			continue
		}
		done[path] = true
		stamp := tokenizerStamp(path)
		if before != nil && before.tokenizers[path].stamp == stamp {
			f.tokenizers[path] = before.tokenizers[path]
			continue
		}
		m, err := tokens.Open(path, f.prefixes)
		if err != nil {
			faults = append(faults, config.Fault{
				File: path, What: "cannot be used as a tokenizer: " + err.Error(), Cure: "give the directory of a model with a tokenizer.json that is supported, or none",
			})
			continue
		}
		if why := m.TemplateError(); why != nil {
			faults = append(faults, config.Fault{
				File: path, What: "its chat template is not used: " + why.Error(), Cure: "conversations are measured by their bare text", Warning: true,
			})
		}
		f.tokenizers[path] = opened{model: m, stamp: stamp}
	}
	f.forgetPrefixes(before)
	return faults
}

// forgetPrefixes begins a new memory of prefixes when a tokenizer is gone: what the old one remembers would hold on to it, with
// all of its vocabulary. Encoding a conversation once more costs little.
func (f *files) forgetPrefixes(before *files) {
	if before == nil {
		return
	}
	gone := false
	for path, was := range before.tokenizers {
		gone = gone || f.tokenizers[path].model != was.model
	}
	if !gone {
		return
	}
	f.prefixes = bpe.NewCache(prefixMemory)
	for path, o := range f.tokenizers {
		o.model = o.model.WithCache(f.prefixes)
		f.tokenizers[path] = o
	}
}

// tokenizerStamp describes a tokenizer's files as they lie there: names, sizes, times.
func tokenizerStamp(path string) string {
	var b strings.Builder
	for _, name := range tokenizerFiles(path) {
		if info, err := os.Stat(name); err == nil {
			fmt.Fprintln(&b, name, info.Size(), info.ModTime().UnixNano())
		}
	}
	return b.String()
}

// tokenizerFiles lists the files that tokens.Open reads of a path, whether they are there or not.
func tokenizerFiles(path string) []string {
	dir, file := path, filepath.Join(path, "tokenizer.json")
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		dir, file = filepath.Dir(path), path
	}
	return []string{file, filepath.Join(dir, "tokenizer_config.json"), filepath.Join(dir, "chat_template.jinja")}
}

func readCertificate(t *config.TLS) (*tls.Certificate, config.Faults) {
	var faults config.Faults
	if fault, ok := config.SecretFile(t.KeyFile); !ok || fault.Warning {
		if faults = append(faults, fault); !ok {
			return nil, faults
		}
	}
	if fault, ok := config.SecretFile(t.CertFile); !ok { // that everybody may read it is as it should be
		return nil, append(faults, fault)
	}
	pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return nil, append(faults, config.Fault{
			File: t.CertFile, What: "cannot be used with " + t.KeyFile + ": " + strings.TrimPrefix(err.Error(), "tls: "), Cure: "give a PEM certificate and its private key",
		})
	}
	if until := pair.Leaf.NotAfter; time.Now().After(until) {
		faults = append(faults, config.Fault{File: t.CertFile, What: "the certificate ended on " + until.Format(time.DateOnly), Cure: "renew it", Warning: true})
	}
	return &pair, faults
}

// named lists the files that a configuration names.
func named(c *config.Config) []string {
	var out []string
	for _, t := range []*config.TLS{c.Server.TLS, c.Server.Admin.TLS, c.PrefixIndex.TLS} {
		if t != nil {
			out = append(out, t.CertFile, t.KeyFile)
		}
	}
	for _, k := range []*config.APIKeys{c.Server.APIKeys, c.Server.Admin.APIKeys} {
		if k != nil {
			out = append(out, k.File)
		}
	}
	for _, w := range staticWorkers(c) {
		if w.APIKeyFile != "" {
			out = append(out, w.APIKeyFile)
		}
	}
	for _, x := range c.Indexers() {
		for _, file := range []string{x.TokenFile, x.CAFile, x.CertFile, x.KeyFile} {
			if file != "" {
				out = append(out, file)
			}
		}
	}
	if t := c.Tracing; t != nil {
		for _, file := range []string{t.HeadersFile, t.CAFile} {
			if file != "" {
				out = append(out, file)
			}
		}
	}
	for i := range c.Models {
		if path := c.Models[i].Tokenizer; path != "" {
			out = append(out, tokenizerFiles(path)...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func staticWorkers(c *config.Config) []config.Worker {
	if c.Discovery.Static == nil {
		return nil
	}
	return c.Discovery.Static.Workers
}

// diffFiles tells what is different in the files' contents, and nothing that is secret.
func diffFiles(old, next *files, c *config.Config) []config.Change {
	out := diffRings("server.api_keys.file", old.keys, next.keys)
	out = append(out, diffRings("server.admin.api_keys.file", old.adminKeys, next.adminKeys)...)
	for _, p := range []struct {
		path    string
		was, is *tls.Certificate
	}{{"server.tls", old.publicCert, next.publicCert}, {"server.admin.tls", old.adminCert, next.adminCert}, {"prefix_index.tls", old.indexCert, next.indexCert}} {
		if p.was != nil && p.is != nil && !slices.EqualFunc(p.was.Certificate, p.is.Certificate, bytes.Equal) {
			out = append(out, config.Change{Path: p.path, Old: certificateText(p.was), New: certificateText(p.is)})
		}
	}
	out = append(out, diffIndexers(old, next)...)
	out = append(out, diffCollector(old, next)...)
	for path, is := range next.tokenizers {
		if was, ok := old.tokenizers[path]; ok && was.stamp != is.stamp {
			out = append(out, config.Change{Path: path, Old: "as it was read", New: "another file"})
		}
	}
	for i, w := range staticWorkers(c) {
		if was, is := old.engineKeys[w.ID], next.engineKeys[w.ID]; was != "" && is != "" && was != is {
			out = append(out, config.Change{Path: fmt.Sprintf("discovery.static.workers[%d].api_key_file", i), Old: "a key", New: "another key"})
		}
	}
	return out
}

// shownSerial is how much of a certificate's number is shown, in digits: one that is not the other's differs in the first eight, and what follows the
// number must not be cut off where changes are told.
const shownSerial = 8

func certificateText(c *tls.Certificate) string {
	serial := c.Leaf.SerialNumber.Text(16)
	return "certificate " + serial[:min(len(serial), shownSerial)] + " until " + c.Leaf.NotAfter.UTC().Format(time.DateOnly)
}

// diffRings tells keys by their names. Where the keys as such come or go, the configuration's own difference says so.
func diffRings(path string, old, next *keyring.Ring) []config.Change {
	if old == nil || next == nil {
		return nil
	}
	var out []config.Change
	was := map[string]*keyring.Key{}
	for _, k := range old.Keys() {
		was[k.Name] = k
	}
	models := func(k *keyring.Key) string {
		if k.Models == nil {
			return "all"
		}
		return "[" + strings.Join(k.Models, ", ") + "]"
	}
	for _, k := range next.Keys() {
		at, before := path+"["+strconv.Quote(k.Name)+"]", was[k.Name]
		delete(was, k.Name)
		switch {
		case before == nil:
			out = append(out, config.Change{Path: at, New: "given"})
		case before.Digest != k.Digest:
			out = append(out, config.Change{Path: at, Old: "a key", New: "another key"})
		}
		if before != nil && models(before) != models(k) {
			out = append(out, config.Change{Path: at + ".models", Old: models(before), New: models(k)})
		}
	}
	for _, k := range old.Keys() {
		if was[k.Name] != nil {
			out = append(out, config.Change{Path: path + "[" + strconv.Quote(k.Name) + "]", Old: "given"})
		}
	}
	return out
}
