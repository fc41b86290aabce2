package gateway

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"slices"

	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/remote"
)

// presented is what the files of an indexer hold. The zero value is of no files.
type presented struct {
	token       string
	authorities []byte // PEM; nil: the system's
	cert        *tls.Certificate
}

// secrets are the same as sources present them.
func (p presented) secrets() *remote.Secrets {
	s := &remote.Secrets{Token: p.token}
	if p.authorities == nil && p.cert == nil {
		return s
	}
	s.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	if p.authorities != nil {
		s.TLS.RootCAs = x509.NewCertPool()
		s.TLS.RootCAs.AppendCertsFromPEM(p.authorities)
	}
	if p.cert != nil {
		s.TLS.Certificates = []tls.Certificate{*p.cert}
	}
	return s
}

// readIndexers reads the files of the indexers that policies ask.
func (f *files) readIndexers(c *config.Config) (faults config.Faults) {
	f.indexers = map[config.IndexerFiles]presented{}
	for _, x := range c.Indexers() {
		if _, done := f.indexers[x.IndexerFiles]; done {
			continue
		}
		p, fs := readPresented(x.IndexerFiles)
		f.indexers[x.IndexerFiles], faults = p, append(faults, fs...)
	}
	return faults
}

// readPresented reads the files of one indexer, or of those of whom snapshots are taken.
func readPresented(x config.IndexerFiles) (p presented, faults config.Faults) {
	var fs config.Faults
	if x.TokenFile != "" {
		p.token, fs = config.ReadEngineKey(x.TokenFile)
		faults = append(faults, fs...)
	}
	if x.CAFile != "" {
		p.authorities, fs = config.ReadAuthorities(x.CAFile)
		faults = append(faults, fs...)
	}
	if x.CertFile != "" {
		p.cert, fs = readCertificate(&config.TLS{CertFile: x.CertFile, KeyFile: x.KeyFile})
		faults = append(faults, fs...)
	}
	return p, faults
}

// diffIndexers tells which files have another content.
func diffIndexers(old, next *files) (out []config.Change) {
	told := map[string]bool{}
	change := func(file, was, is string) {
		if !told[file] && file != "" {
			told[file], out = true, append(out, config.Change{Path: file, Old: was, New: is})
		}
	}
	for at, is := range next.indexers {
		was, there := old.indexers[at]
		if !there {
			continue
		}
		if was.token != is.token {
			change(at.TokenFile, "a token", "another token")
		}
		if !bytes.Equal(was.authorities, is.authorities) {
			change(at.CAFile, "some authorities", "others")
		}
		if was.cert != nil && is.cert != nil && !slices.EqualFunc(was.cert.Certificate, is.cert.Certificate, bytes.Equal) {
			change(at.CertFile, certificateText(was.cert), certificateText(is.cert))
		}
	}
	slices.SortFunc(out, func(a, b config.Change) int { return bytes.Compare([]byte(a.Path), []byte(b.Path)) })
	return out
}
