package config

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// compare finds what is wrong between values that are each right alone. It runs before resolve, on what was written.
func (d *decoder) compare(c *Config) {
	d.compareServer(&c.Server)
	if d.ok("load.poll_interval", "load.freshness") && c.Load.Freshness <= c.Load.PollInterval {
		d.faultAt("load.freshness", classValue,
			fmt.Sprintf("%s is not more than %s %s, so that every report would be stale", spanText(c.Load.Freshness), d.name("load.poll_interval"), spanText(c.Load.PollInterval)),
			"choose several times the poll interval")
	}
	d.compareDiscovery(&c.Discovery)
	d.compareManagers(c)
	d.comparePrefixIndex(c)
	d.compareClientFields(c)
	d.comparePeers(c.Peers)
	d.compareTracing(c.Tracing)
	d.compareNames(c.Models)
	for i := range c.Models {
		d.compareModel(index("models", i), &c.Models[i])
	}
	if c.Discovery.Static != nil && d.ok("discovery.static.workers") {
		d.compareMembership(c)
	}
}

// defaultGrace is what platforms grant when nothing else is said: Kubernetes' terminationGracePeriodSeconds.
const defaultGrace = 30 * time.Second

func (d *decoder) compareServer(s *Server) {
	const drain, grace = "server.shutdown_drain", "server.termination_grace"
	// With neither written, drain and grace are equal; that is everybody's start and no reason to warn.
	if d.ok(drain, grace) && (d.has(drain) || d.has(grace)) {
		granted := defaultGrace
		if s.TerminationGrace != nil {
			granted = *s.TerminationGrace
		}
		if s.ShutdownDrain >= granted {
			at := drain
			if !d.has(drain) {
				at = grace
			}
			d.warnAt(at, fmt.Sprintf("the drain of %s does not fit into the termination grace of %s", spanText(s.ShutdownDrain), spanText(granted)),
				"shorten the drain or grant more, else requests are cut off")
		}
	}
	if at := "server.max_buffered_bytes"; d.ok(at, "server.max_body_bytes") && s.MaxBufferedBytes/2 < s.MaxBodyBytes {
		d.faultAt(at, classValue, fmt.Sprintf("%d bytes cannot hold one body while it grows, which is twice %s %d", s.MaxBufferedBytes, d.name("server.max_body_bytes"), s.MaxBodyBytes), "raise it, or lower the other")
	}
	if at := "server.request_timeout"; d.ok(at, "server.stale_request_timeout") && s.RequestTimeout > s.StaleRequestTimeout {
		d.warnAt(at, fmt.Sprintf("%s is longer than %s %s, which ends the request first", spanText(s.RequestTimeout), d.name("server.stale_request_timeout"), spanText(s.StaleRequestTimeout)),
			"raise the stale time-out")
	}
	if p := s.Admin.Port; p != nil && *p != 0 && *p == s.Port && d.ok("server.admin", "server.admin.port", "server.port") && sameListener(s.Host, s.Admin.Host) {
		d.faultAt("server.admin.port", classValue, strconv.Itoa(*p)+" is the port of the public listener too", "choose another")
	}
	for _, at := range []string{"server.admin.host", "server.admin.tls", "server.admin.api_keys"} {
		if d.has(at) && s.Admin.Port == nil && d.ok(at, "server.admin.port", "server.admin") {
			d.faultAt(at, classMisuse, "has no effect without a port", "give "+d.name("server.admin.port")+" too, or remove it")
		}
	}
	d.compareTLS("server.tls", s.TLS)
	d.compareTLS("server.admin.tls", s.Admin.TLS)
	if at := "server.admin"; s.Admin.Port != nil && !isLoopback(s.Admin.Host) && (s.Admin.TLS == nil || s.Admin.APIKeys == nil) && d.clean(at) {
		d.warnAt(at+".host", quote(s.Admin.Host)+" lets whoever reaches it see every request's decisions and empty every engine's cache",
			"bind it to 127.0.0.1, or give it both tls and api_keys")
	}
}

// compareTLS holds the two files together.
func (d *decoder) compareTLS(at string, t *TLS) {
	cert, key := at+".cert_file", at+".key_file"
	switch {
	case t == nil || !d.clean(at):
	case t.CertFile == "" && t.KeyFile == "":
		d.faultAt(at, classValue, "has no certificate", "give cert_file and key_file, or remove it")
	case t.KeyFile == "":
		d.faultAt(cert, classValue, "is given alone", "give "+d.name(key)+" too")
	case t.CertFile == "":
		d.faultAt(key, classValue, "is given alone", "give "+d.name(cert)+" too")
	}
}

// isLoopback tells whether a host can be reached from this machine alone.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// sameListener tells whether two hosts cannot both listen on one port.
func sameListener(a, b string) bool {
	ip, other := net.ParseIP(a), net.ParseIP(b)
	return a == b || ip != nil && ip.IsUnspecified() || other != nil && other.IsUnspecified()
}

func (d *decoder) compareDiscovery(v *Discovery) {
	var given []string
	for _, name := range []string{"static", "file", "kubernetes", "etcd"} {
		if d.has(join("discovery", name)) {
			given = append(given, name)
		}
	}
	switch {
	case len(given) == 0 && d.ok("discovery"):
		d.faultAt("discovery", classValue, "has no source of engines", "add static: {workers: [URL, ...]}")
	case len(given) > 1:
		last := join("discovery", given[len(given)-1])
		d.faultAt(last, classValue, strings.Join(given, " and ")+" are given together", "keep one source of engines")
	}
	if v.Static != nil {
		d.compareWorkers(v.Static.Workers)
	}
	if v.Kubernetes != nil {
		d.compareSelectors(v.Kubernetes)
	}
}

func (d *decoder) compareWorkers(ws []Worker) {
	urls, ids := map[string]int{}, map[string]int{}
	for i := range ws {
		at := index("discovery.static.workers", i)
		if ws[i].URL == "" || !d.ok(at, at+".url", at+".id") {
			continue
		}
		if j, twice := urls[sameURL(ws[i].URL)]; twice {
			d.faultAt(at, classValue, quote(ws[i].URL)+" is the same engine as "+quote(ws[j].URL), "remove one of them")
			continue
		}
		urls[sameURL(ws[i].URL)] = i
		if _, twice := ids[ws[i].id()]; twice {
			d.faultAt(at, classValue, "the id "+quote(ws[i].id())+" is taken by an engine above", "choose another")
			continue
		}
		ids[ws[i].id()] = i
		if ws[i].KVEvents != nil {
			d.compareEvents(at+".kv_events", ws[i].KVEvents)
		}
	}
}

// id is what groups call the worker.
func (w *Worker) id() string {
	if w.ID != "" {
		return w.ID
	}
	return w.URL
}

func (d *decoder) compareSelectors(k *Kubernetes) {
	const at = "discovery.kubernetes"
	pre, dec := at+".prefill_selector", at+".decode_selector"
	switch {
	case k.Selector != nil && k.PrefillSelector != nil:
		d.faultAt(pre, classValue, "cannot be joined with "+d.name(at+".selector"), "keep one of them")
	case k.Selector != nil && k.DecodeSelector != nil:
		d.faultAt(dec, classValue, "cannot be joined with "+d.name(at+".selector"), "keep one of them")
	case k.PrefillSelector != nil && k.DecodeSelector == nil:
		d.faultAt(pre, classValue, "is given alone", "give the decode selector too")
	case k.PrefillSelector == nil && k.DecodeSelector != nil:
		d.faultAt(dec, classValue, "is given alone", "give the prefill selector too")
	}
	var terms [2][]string
	for i, s := range []*string{k.PrefillSelector, k.DecodeSelector} {
		if s == nil {
			continue
		}
		path := []string{pre, dec}[i]
		var ok bool
		if terms[i], ok = parseSelector(*s); !ok {
			d.faultAt(path, classValue, quote(*s)+" is not a list of k=v terms", "write k=v or k==v, joined with commas")
		}
	}
	if len(terms[0]) > 0 && strings.Join(terms[0], ",") == strings.Join(terms[1], ",") {
		d.faultAt(dec, classValue, "selects the same engines as the prefill selector", "make them differ")
	}
}

// compareNames holds ids and aliases apart: a request's name leads to one model.
func (d *decoder) compareNames(models []Model) {
	taken := map[string]string{}
	claim := func(at, name string) {
		if name == "" || !d.ok(at) {
			return
		}
		if by, twice := taken[name]; twice {
			d.faultAt(at, classValue, quote(name)+" is taken by "+by, "choose another name")
			return
		}
		taken[name] = at
	}
	for i := range models {
		claim(index("models", i)+".id", models[i].ID)
	}
	for i := range models {
		for j, alias := range models[i].Aliases {
			claim(d.item(index("models", i)+".aliases", j), alias)
		}
	}
}

func (d *decoder) compareModel(at string, m *Model) {
	if both := at + ".engine_tokenize"; m.EngineTokenize && m.Tokenizer != "" && d.ok(both, at+".tokenizer") {
		d.faultAt(both, classMisuse, "has no effect beside a tokenizer", "remove one of the two")
	}
	d.compareSampling(at+".sampling", &m.Sampling)
	d.comparePolicy(at+".policy", &m.Policy)
	d.comparePolicy(at+".decode_policy", &m.DecodePolicy)
	ids := map[string]bool{}
	for i := range m.Buckets {
		b, path := &m.Buckets[i], index(at+".buckets", i)
		if b.ID != "" && ids[b.ID] && d.ok(path+".id") {
			d.faultAt(path+".id", classValue, quote(b.ID)+" is the id of a bucket above", "choose another")
		}
		ids[b.ID] = true
		d.compareBucket(path, b)
	}
	if len(m.Buckets) > 0 && d.clean(at+".buckets") {
		d.compareCoverage(at+".buckets", m.Buckets)
		d.compareInherited(at, m)
	}
}

// compareInherited warns about a model's policy that no group takes over.
func (d *decoder) compareInherited(at string, m *Model) {
	taken := map[string]bool{}
	for i := range m.Buckets {
		for path, g := range m.Buckets[i].groups("") {
			if g.Policy.Name == "" {
				taken[policyKey(path)] = true
			}
		}
	}
	for _, key := range []string{"policy", "decode_policy"} {
		if path := join(at, key); d.has(path) && !taken[key] {
			d.warnAt(path, "is used by no group of the model's buckets", "remove it")
		}
	}
}

func (d *decoder) compareSampling(at string, s *Sampling) {
	if d.has(at+".conflict") && !d.has(at+".override") && d.ok(at) {
		d.faultAt(at+".conflict", classMisuse, "has no effect without overrides", "give "+d.name(at+".override")+", or remove it")
		return
	}
	if s.Conflict != ConflictAllow {
		return
	}
	for _, r := range s.Override {
		if r.Exact == "" {
			d.faultAt(at+".conflict", classValue, "allow cannot be joined with the band of "+r.Param+", which would then hold nobody", "use reject, or give an exact value")
			return
		}
	}
}

func (d *decoder) comparePolicy(at string, p *Policy) {
	if provider, indexer := p.Prefixes(); p.NeedsPrefixes() {
		d.comparePrefixes(at, provider, &indexer)
	}
	if p.CacheAware != nil {
		d.compareCacheAware(at, p.CacheAware)
	}
}

func (d *decoder) compareCacheAware(at string, s *CacheAwareSettings) {
	lo, hi := at+".candidates.min_workers", at+".candidates.max_workers"
	if d.ok(lo, hi) && s.Candidates.MinWorkers > s.Candidates.MaxWorkers {
		worst := lo
		if !d.has(lo) {
			worst = hi
		}
		d.faultAt(worst, classValue, fmt.Sprintf("the smallest bound %d is above the largest %d", s.Candidates.MinWorkers, s.Candidates.MaxWorkers), "choose "+d.name(lo)+" up to "+d.name(hi))
	}
	limit, floor := at+".worker_queue_limit", at+".saturation_queue_floor"
	if s.SaturationQueueFloor == nil || !d.ok(limit, floor) {
		return
	}
	switch {
	case s.WorkerQueueLimit == nil:
		d.faultAt(floor, classValue, "needs a queue limit", "give "+d.name(limit)+" too")
	case *s.SaturationQueueFloor > *s.WorkerQueueLimit:
		d.faultAt(floor, classValue, fmt.Sprintf("%d is above %s %d", *s.SaturationQueueFloor, d.name(limit), *s.WorkerQueueLimit), "choose at most the limit")
	}
}

func (d *decoder) compareBucket(at string, b *Bucket) {
	plain, pd := d.has(at+".plain"), d.has(at+".pd")
	switch {
	case plain && pd:
		d.faultAt(at+".pd", classValue, "the bucket has plain too", "make two buckets; the ranks say which is tried first")
	case !plain && !pd && d.ok(at):
		d.faultAt(at, classValue, "has neither plain nor pd", "add plain: {} for every engine of the model, or pd: {prefill: {}, decode: {}}")
	}
	lo, hi, all := at+".min_input_tokens", at+".max_input_tokens", at+".max_context_tokens"
	if b.MaxInputTokens != nil && b.MinInputTokens > *b.MaxInputTokens && d.ok(lo, hi) {
		d.faultAt(lo, classValue, fmt.Sprintf("%d is above max_input_tokens %d", b.MinInputTokens, *b.MaxInputTokens), "swap or widen them")
	}
	if b.MaxContextTokens != nil && b.MinInputTokens > *b.MaxContextTokens && d.ok(lo, all) {
		d.faultAt(lo, classValue, fmt.Sprintf("%d is above max_context_tokens %d, so that no request fits", b.MinInputTokens, *b.MaxContextTokens), "lower it or widen the context")
	}
	for path, g := range b.groups(at) {
		d.comparePolicy(path+".policy", &g.Policy)
	}
}
