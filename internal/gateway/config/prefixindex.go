package config

import (
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// PrefixIndex is what a gateway that keeps an index shares with others, and what it takes from them.
type PrefixIndex struct {
	// Listen is where the index is served, as host:port or unix:/path; empty: nowhere.
	Listen string
	// TokenFile has the token that those who ask must present; empty: none is asked for.
	TokenFile string
	// SnapshotFrom are who is asked at the start, joined with commas, the preferred one first; empty: nobody.
	SnapshotFrom string
	// Snapshot is what is presented to them.
	Snapshot        IndexerFiles
	SnapshotTimeout time.Duration
	// TLS is the listener's; nil: plain text.
	TLS *TLS
}

func (p *PrefixIndex) fields() []field {
	return []field{
		{key: "listen", fixed: true, val: textIn(&p.Listen, "", checkIndexListen),
			doc: "Where the index is served to others (`perigee.index.v1`, as by `perigee index`): `host:port`, or `unix:/path`. Off when not given. Beyond loopback it needs `token_file`."},
		{key: "token_file", fixed: true, val: text(&p.TokenFile, ""), doc: "A file with the token that those who ask must present; read at the start. Without `tls` it can be read on the way."},
		{key: "tls", fixed: true, val: optional(&p.TLS, itself), doc: "TLS on this listener, written like `server.tls`; plain text when not given."},
		{key: "snapshot_from", fixed: true, val: textIn(&p.SnapshotFrom, "", checkIndexerURLs),
			doc: "Who knows already what the engines hold: gateways with `listen`, or `perigee index` services. An http or https URL with a host, or `unix:` and a path; several joined with commas, the preferred one first. Asked once for each engine, in the first minute."},
		{key: "snapshot_token_file", fixed: true, val: text(&p.Snapshot.TokenFile, ""), doc: "A file with the token for those of `snapshot_from`. This file and the three below are read at the start."},
		{key: "snapshot_ca_file", fixed: true, val: text(&p.Snapshot.CAFile, ""), doc: "A PEM file with the authorities by which those of them with https are known; the system's when not given."},
		{key: "snapshot_cert_file", fixed: true, val: text(&p.Snapshot.CertFile, ""), doc: "A PEM file with the certificate that is shown to those of them with https that ask for one, followed by those that lead to the root; with `snapshot_key_file`."},
		{key: "snapshot_key_file", fixed: true, val: text(&p.Snapshot.KeyFile, ""), doc: "A PEM file with that certificate's private key; with `snapshot_cert_file`."},
		{key: "snapshot_timeout", fixed: true, val: span(&p.SnapshotTimeout, 5*time.Second, time.Nanosecond, 5*time.Minute),
			doc: "How long an engine may wait for its snapshot, for its turn too, before it is followed without; several of `snapshot_from` share it.",
			why: "until then nothing is known of the engine, and five seconds are some five million blocks"},
	}
}

// checkIndexListen judges where an index is served.
func checkIndexListen(s string) (string, string) {
	const cure = "write host:port or unix:/path"
	if path, ok := strings.CutPrefix(s, "unix:"); ok {
		if path == "" {
			return quote(s) + " has no path", cure
		}
		return "", ""
	}
	_, port, err := net.SplitHostPort(s)
	if n, numErr := strconv.Atoi(port); err != nil || numErr != nil || n < 0 || n > 65535 {
		return quote(s) + " is no place to listen at", cure
	}
	return "", ""
}

func (d *decoder) comparePrefixIndex(c *Config) {
	const at = "prefix_index"
	p := &c.PrefixIndex
	listen, from := at+".listen", at+".snapshot_from"
	for key, needs := range map[string]string{
		"token_file": listen, "tls": listen, "snapshot_token_file": from, "snapshot_ca_file": from, "snapshot_cert_file": from, "snapshot_key_file": from, "snapshot_timeout": from,
	} {
		if path := join(at, key); d.has(path) && !d.has(needs) && d.ok(path, at) {
			d.faultAt(path, classMisuse, "has no effect without "+d.name(needs), "give that too, or remove it")
		}
	}
	d.compareTLS(at+".tls", p.TLS)
	d.compareIndexerTLS(at, p.SnapshotFrom, p.Snapshot, keysOfTLS{"snapshot_from", "snapshot_ca_file", "snapshot_cert_file", "snapshot_key_file"})
	if p.Listen != "" && p.TokenFile == "" && d.ok(listen, at+".token_file") && isExposed(p.Listen) {
		d.faultAt(listen, classValue, quote(p.Listen)+" can be reached from elsewhere, and whoever may ask can find out which prompts are in use", "give "+d.name(at+".token_file")+", or bind it to 127.0.0.1")
	}
	if (p.Listen != "" || p.SnapshotFrom != "") && d.clean("models") && d.clean(at) && !ownIndex(c.Models) {
		d.warnAt(at, "has no effect: no policy looks prefixes up in the gateway's own index", "choose cache_aware or cost with prefix_provider radix_tree, or remove it")
	}
}

// compareClientFields warns of a field by which an engine keeps prefixes apart and says nothing of it.
func (d *decoder) compareClientFields(c *Config) {
	const at = "client_fields.allow"
	if slices.Contains(c.ClientFields.Allow, "extra_key") && d.ok(at) && d.clean("models") && looksUp(c.Models) {
		d.warnAt(at, "extra_key keeps prefixes apart in SGLang, whose KV events do not tell: what was computed for a request with one is taken for a prefix of those without",
			"use cache_salt, or leave it out")
	}
}

// looksUp tells whether some policy looks prefixes up, here or elsewhere.
func looksUp(models []Model) bool { return anyPolicy(models, (*Policy).NeedsPrefixes) }

// isExposed tells whether a listener can be reached from elsewhere.
func isExposed(listen string) bool {
	if strings.HasPrefix(listen, "unix:") {
		return false
	}
	host, _, _ := net.SplitHostPort(listen)
	return !isLoopback(host)
}

// ownIndex tells whether some policy looks prefixes up in the gateway's own index.
func ownIndex(models []Model) bool {
	return anyPolicy(models, func(p *Policy) bool {
		provider, _ := p.Prefixes()
		return p.NeedsPrefixes() && (provider == RadixTree || provider == "") // the default
	})
}

// asksService tells whether a policy looks prefixes up in a `perigee index` service.
func asksService(p *Policy) bool {
	provider, _ := p.Prefixes()
	return p.NeedsPrefixes() && provider == PerigeeIndex
}

// anyPolicy tells whether some policy is such a one: a model's, which its buckets take over, or a group's.
func anyPolicy(models []Model, is func(*Policy) bool) bool {
	for i := range models {
		m := &models[i]
		if is(&m.Policy) {
			return true
		}
		for k := range m.Buckets {
			for _, g := range m.Buckets[k].groups("") {
				if is(&g.Policy) {
					return true
				}
			}
		}
	}
	return false
}
