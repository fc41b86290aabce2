package config

import (
	"crypto/x509"
	"strings"
	"time"
)

// KVIndexer is a remote prefix indexer.
type KVIndexer struct {
	Endpoint         string // empty: none; several are joined with commas, the preferred one first
	QueryTimeout     time.Duration
	QueryMaxInflight int
	IndexerFiles
}

// IndexerFiles are the files with what is presented to an indexer, and by which it is known. The zero value presents nothing, and goes by
// the system's authorities.
type IndexerFiles struct {
	TokenFile, CAFile, CertFile, KeyFile string // empty: none
}

// Indexers returns the indexers that the policies of a configuration ask, each once.
func (c *Config) Indexers() (all []KVIndexer) {
	seen := map[KVIndexer]bool{}
	for i := range c.Models {
		for k := range c.Models[i].Buckets {
			for _, g := range c.Models[i].Buckets[k].groups("") {
				if _, x := g.Policy.Prefixes(); x.Endpoint != "" && !seen[x] {
					seen[x], all = true, append(all, x)
				}
			}
		}
	}
	return all
}

func (k *KVIndexer) fields() []field {
	return []field{
		{key: "endpoint", val: textIn(&k.Endpoint, "", checkIndexerURLs), doc: "The indexer: an http or https URL with a host, or `unix:` and a path; several joined with commas, the preferred one first."},
		{key: "query_timeout", val: span(&k.QueryTimeout, 100*time.Millisecond, time.Nanosecond, 0), doc: "How long a look-up may take before it counts as unavailable; needs `endpoint`.", why: "a look-up that is slower costs more than a typical hit saves"},
		{key: "query_max_inflight", unit: "calls", val: whole(&k.QueryMaxInflight, 32, 1, noMax), doc: "How many look-ups may be out at once; needs `endpoint`.", why: "bounds what a stuck indexer can hold"},
		{key: "token_file", val: text(&k.TokenFile, ""), doc: "A file with the token that is presented to the indexer; needs `endpoint`. Over http it can be read on the way. This file and the three below are read anew when they change."},
		{key: "ca_file", val: text(&k.CAFile, ""), doc: "A PEM file with the authorities by which an https endpoint is known; the system's when not given."},
		{key: "cert_file", val: text(&k.CertFile, ""), doc: "A PEM file with the certificate that is shown to an https endpoint which asks for one, followed by those that lead to the root; with `key_file`."},
		{key: "key_file", val: text(&k.KeyFile, ""), doc: "A PEM file with that certificate's private key; with `cert_file`."},
	}
}

// comparePrefixes judges who is to know the prefixes.
func (d *decoder) comparePrefixes(at string, provider PrefixProvider, k *KVIndexer) {
	x := at + ".kv_indexer"
	if k.Endpoint == "" && d.ok(x, x+".endpoint") {
		for _, key := range []string{"query_timeout", "query_max_inflight", "token_file", "ca_file", "cert_file", "key_file"} {
			if path := join(x, key); d.has(path) && d.ok(path) {
				d.faultAt(path, classMisuse, "has no effect without an indexer", "give "+d.name(x+".endpoint")+", or remove it")
			}
		}
	}
	d.compareIndexerTLS(x, k.Endpoint, k.IndexerFiles, keysOfTLS{"endpoint", "ca_file", "cert_file", "key_file"})
	if path := at + ".prefix_provider"; d.ok(path, x, x+".endpoint") {
		switch {
		case (provider == Indexer || provider == PerigeeIndex) && k.Endpoint == "":
			d.faultAt(path, classValue, string(provider)+" needs an endpoint", "give "+d.name(x+".endpoint"))
		case provider == RadixTree && k.Endpoint != "":
			d.faultAt(path, classValue, "radix_tree does not use "+d.name(x+".endpoint"), "remove one of them")
		}
	}
}

// keysOfTLS are the keys under which a mapping has its endpoints and their files for TLS.
type keysOfTLS struct{ endpoints, ca, cert, key string }

// compareIndexerTLS holds the files for TLS against the endpoints and each other.
func (d *decoder) compareIndexerTLS(at, endpoints string, files IndexerFiles, keys keysOfTLS) {
	if endpoints == "" || !d.clean(at) {
		return
	}
	if cert, key := join(at, keys.cert), join(at, keys.key); (files.CertFile == "") != (files.KeyFile == "") {
		if files.CertFile == "" {
			cert, key = key, cert
		}
		d.faultAt(cert, classValue, "is given alone", "give "+d.name(key)+" too")
	}
	for e := range strings.SplitSeq(endpoints, ",") {
		if strings.HasPrefix(strings.TrimSpace(e), "https:") {
			return
		}
	}
	for _, key := range []string{keys.ca, keys.cert, keys.key} {
		if path := join(at, key); d.has(path) {
			d.faultAt(path, classMisuse, "has no effect: no endpoint is https", "write https in "+d.name(join(at, keys.endpoints))+", or remove it")
		}
	}
}

// ReadAuthorities reads the certificates by which others are known, as PEM. They are nil when any fault is an error. Everybody may read them.
func ReadAuthorities(path string) ([]byte, Faults) {
	if fault, ok := SecretFile(path); !ok {
		return nil, Faults{fault}
	}
	data, err := readFile(path)
	if err != nil {
		return nil, Faults{{File: path, What: "cannot be read: " + err.Error()}}
	}
	if len(data) > MaxFileBytes || !x509.NewCertPool().AppendCertsFromPEM(data) {
		return nil, Faults{{File: path, What: "has no certificate, or is longer than 1 MiB", Cure: "give the authorities' certificates as PEM"}}
	}
	return data, nil
}
