package config

import (
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"
)

// Tracing says where spans of requests go, and which. What is not given is left to OpenTelemetry's variables of the environment.
type Tracing struct {
	Endpoint    string   // a URL; empty: the environment's, else http://localhost:4318
	SampleRatio *float64 // nil: the environment's sampler, else all
	ServiceName string   // empty: the environment's, else perigee
	HeadersFile string   // empty: those of the environment
	CAFile      string   // empty: the environment's, else the system's
	Timeout     *time.Duration
	QueueSize   *int // spans
}

func (t *Tracing) fields() []field {
	return []field{
		{key: "endpoint", val: textIn(&t.Endpoint, "", checkCollectorURL),
			doc: "The collector's OTLP/HTTP address, an http or https URL; without a path `/v1/traces` is added. When not given `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or `OTEL_EXPORTER_OTLP_ENDPOINT`, else `http://localhost:4318`."},
		{key: "sample_ratio", val: optShare(&t.SampleRatio),
			doc: "The share of traces that is recorded, of requests that come without a `traceparent`; those that bring one are recorded if it says so. When not given `OTEL_TRACES_SAMPLER`, else 1."},
		{key: "service_name", val: textIn(&t.ServiceName, "", checkName), doc: "The `service.name` of the spans. When not given `OTEL_SERVICE_NAME`, else `perigee`."},
		{key: "headers_file", val: textIn(&t.HeadersFile, "", checkName),
			doc: "A file with headers that the collector asks for, `Name: value` on a line each. It is read anew when it changes. When not given `OTEL_EXPORTER_OTLP_HEADERS`. Over http they can be read on the way."},
		{key: "ca_file", val: textIn(&t.CAFile, "", checkName),
			doc: "A PEM file with the authorities by which an https collector is known; it is read anew when it changes. When not given `OTEL_EXPORTER_OTLP_CERTIFICATE`, else the system's."},
		{key: "timeout", val: optSpan(&t.Timeout, time.Millisecond, 5*time.Minute),
			doc: "How long the export of a batch may take, all tries together; then it is dropped. When not given `OTEL_EXPORTER_OTLP_TIMEOUT`, else 10 s, for one try, and 30 s for all."},
		{key: "queue_size", unit: "spans", val: optWhole(&t.QueueSize, 16, 1<<20),
			doc: "How many spans may wait or be on their way, of some 2 KiB each; what is more is dropped and counted. When not given `OTEL_BSP_MAX_QUEUE_SIZE`, else 8192."},
	}
}

// checkCollectorURL judges where spans go.
func checkCollectorURL(s string) (string, string) {
	const cure = "write one such as http://localhost:4318"
	u, err := url.Parse(s)
	switch {
	case err != nil || strings.ContainsFunc(s, unicode.IsSpace) || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || badPort(u):
		return quote(s) + " is not an http or https URL", cure
	case u.User != nil:
		return "the URL carries a password or user name", "remove it; headers_file gives the collector what it asks for"
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(s, "#"):
		return quote(s) + " has a query or a fragment", "remove everything from ? or # on"
	case u.Port() == "4317":
		return quote(s) + " has the port of OTLP/gRPC", "write that of OTLP/HTTP, usually 4318"
	}
	return "", ""
}

func (d *decoder) compareTracing(t *Tracing) {
	const ca = "tracing.ca_file"
	if t != nil && t.CAFile != "" && strings.HasPrefix(t.Endpoint, "http:") && d.ok(ca, "tracing.endpoint", "tracing") {
		d.faultAt(ca, classMisuse, "has no effect: the endpoint is not https", "write https in "+d.name("tracing.endpoint")+", or remove it")
	}
}

// ReadHeaders reads the headers that go with every export. They are nil when any fault is an error. No fault quotes anything of the file.
func ReadHeaders(path string) (map[string]string, Faults) {
	data, faults := readSecret(path, MaxFileBytes)
	if data == nil {
		return nil, faults
	}
	wrong := func(what string) (map[string]string, Faults) {
		return nil, append(faults, Fault{File: path, What: what, Cure: "write Name: value on a line each"})
	}
	if len(data) > MaxFileBytes {
		return wrong("is longer than 1 MiB")
	}
	headers := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		name, value = http.CanonicalHeaderKey(strings.TrimSpace(name)), strings.TrimSpace(value)
		what, _ := checkHeader(name)
		switch {
		case !ok || what != "" || value == "" || !visible(strings.NewReplacer(" ", "", "\t", "").Replace(value)):
			return wrong("has a line that is not a header")
		case headers[name] != "":
			return wrong("has a header twice")
		}
		headers[name] = value
	}
	if len(headers) == 0 {
		return wrong("has no header")
	}
	return headers, faults
}
