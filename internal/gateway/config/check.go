package config

import (
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"unicode"
)

// checker judges a text; it returns what is wrong and the cure, or empty text.
type checker func(s string) (what, cure string)

// GuardedFields are the names by which client_fields.allow lets clients set the request fields that they may not set otherwise, which are
// the request path's to say. A name that ends in * stands for every one of them that begins so.
var GuardedFields = []string{"kv_transfer_params", "bootstrap_*", "input_ids", "cache_salt", "extra_key", "rid", "routed_dp_rank", "disagg_prefill_dp_rank", "vllm_xargs", "ec_transfer_params"}

func guardedList() string { return "`" + strings.Join(GuardedFields, "`, `") + "`" }

func checkGuarded(s string) (string, string) {
	if slices.Contains(GuardedFields, s) {
		return "", ""
	}
	return quote(s) + " is not a field that is kept from clients", meant(s, GuardedFields)
}

// checkName refuses what cannot be told apart in a log line.
func checkName(s string) (string, string) {
	switch {
	case s == "":
		return "is empty", "give it a value"
	case strings.TrimSpace(s) != s:
		return quote(s) + " begins or ends with a space", "remove the space"
	case strings.ContainsFunc(s, unicode.IsControl):
		return quote(s) + " has a control character", "remove it"
	}
	return "", ""
}

func checkHost(s string) (string, string) {
	if what, cure := checkName(s); what != "" {
		return what, cure
	}
	if _, err := netip.ParseAddr(s); err == nil {
		return "", ""
	}
	if strings.ContainsAny(s, "/:[] @") {
		return quote(s) + " is not a host", "write an IP address or a name, without scheme, brackets or port"
	}
	return "", ""
}

// checkHeader holds a header's name to the token characters of RFC 9110, section 5.6.2.
func checkHeader(s string) (string, string) {
	for _, c := range []byte(s) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0) {
			return quote(s) + " is not a header name", "use letters, digits and dashes"
		}
	}
	if s == "" {
		return "is empty", "name a header"
	}
	return "", ""
}

func checkWorkerURL(s string) (string, string) {
	if s == "" || strings.ContainsFunc(s, unicode.IsSpace) {
		return quote(s) + " is not a URL", "write one such as http://10.0.0.1:8000"
	}
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || badPort(u):
		return quote(s) + " is not an http or https URL", "write one such as http://10.0.0.1:8000"
	case u.User != nil:
		return "the URL carries a password or user name", "remove it; api_key_file gives an engine its key"
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(s, "#"):
		return quote(s) + " has a query or a fragment", "remove everything from ? or # on"
	}
	return "", ""
}

// badPort tells whether a port is written that no listener can have.
func badPort(u *url.URL) bool {
	p := u.Port()
	if p == "" {
		return strings.HasSuffix(u.Host, ":")
	}
	n, ok := parseWhole(p)
	return !ok || n < 1 || n > 65535
}

// checkIndexerURLs judges a list of them.
func checkIndexerURLs(list string) (string, string) {
	for s := range strings.SplitSeq(list, ",") {
		if what, cure := checkIndexerURL(s); what != "" {
			return what, cure
		}
	}
	return "", ""
}

func checkIndexerURL(s string) (string, string) {
	const cure = "write http://host:port, https://host:port or unix:/path"
	if path, ok := strings.CutPrefix(s, "unix:"); ok {
		if path == "" {
			return quote(s) + " has no path", cure
		}
		return "", ""
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || badPort(u) {
		return quote(s) + " has no scheme and host that can be called", cure
	}
	return "", ""
}

// trimURL is the form in which a URL is called: without the trailing slash, so that a path can be appended.
func trimURL(s string) string { return strings.TrimRight(s, "/") }

// sameURL is the form in which two spellings of one engine are equal: case of scheme and host, the scheme's own port and a trailing
// slash make no difference.
func sameURL(s string) string {
	u, err := url.Parse(trimURL(s))
	if err != nil {
		return s
	}
	host, port := strings.ToLower(u.Hostname()), u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return u.Scheme + "://" + net.JoinHostPort(host, port) + u.EscapedPath()
}

// parseSelector reads `k=v` terms joined with commas and returns them sorted, in one spelling; false when a term has another form.
func parseSelector(s string) ([]string, bool) {
	var out []string
	for term := range strings.SplitSeq(s, ",") {
		k, v, ok := strings.Cut(term, "=")
		v = strings.TrimPrefix(v, "=")
		k, v = strings.TrimSpace(k), strings.TrimSpace(v)
		if !ok || k == "" || strings.ContainsAny(k, "! ()") || strings.ContainsAny(v, "=! ()") {
			return nil, false
		}
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return slices.Compact(out), true
}
