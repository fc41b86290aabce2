package tracing

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

const (
	// DefaultQueue is how many spans may wait where nothing else is said. A request has some five, of about 2 KiB: four times the SDK's, for bursts.
	DefaultQueue = 8192
	// defaultEndpoint is OpenTelemetry's, to which Go's exporter alone would go by https.
	defaultEndpoint = "http://localhost:4318"
	defaultPath     = "/v1/traces"
	// together bounds the export of one batch, all tries together; the SDK's would be a minute.
	together = 30 * time.Second
	// flushLimit bounds the last export. What is not out by then is dropped.
	flushLimit = 5 * time.Second
	// longestValue bounds a text in a span, in characters. The longest of our own, an engine as a policy saw it, has some 250.
	longestValue = 1024
	scope        = "github.com/perigee-llm/perigee"
)

// provider is the SDK as it is set up for some settings. It counts its users, of which what has it in use is one; idle ends with the last.
type provider struct {
	settings *Settings
	tracer   trace.Tracer
	ended    sdktrace.SpanProcessor // what spans go to; shutting it down shuts down all there is
	export   *exporter
	users    atomic.Int64
	idle     chan struct{}
}

func newProvider(s *Settings, o Options) (*provider, error) {
	sayTo(o.Log)
	otlp, err := otlptracehttp.New(context.Background(), exportOptions(s)...)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	about, err := describe(s)
	if err != nil {
		_ = otlp.Shutdown(context.Background())
		return nil, fmt.Errorf("tracing: %w", err)
	}
	p := &provider{settings: s, export: newExporter(otlp, queueSize(s), o), idle: make(chan struct{})}
	p.users.Store(1)
	p.ended = p.export.processor(s.Timeout)
	options := []sdktrace.TracerProviderOption{
		sdktrace.WithResource(about), sdktrace.WithRawSpanLimits(spanLimits()), sdktrace.WithSpanProcessor(p.ended),
	}
	if s.Ratio != nil {
		options = append(options, sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(*s.Ratio))))
	}
	p.tracer = sdktrace.NewTracerProvider(options...).Tracer(scope)
	return p, nil
}

// exportOptions are the exporter's, which reads the environment for what they do not say.
func exportOptions(s *Settings) []otlptracehttp.Option {
	limit := together
	var list []otlptracehttp.Option
	if s.Timeout > 0 {
		limit = s.Timeout
		list = append(list, otlptracehttp.WithTimeout(s.Timeout))
	}
	list = append(list, otlptracehttp.WithRetry(otlptracehttp.RetryConfig{
		Enabled: true, InitialInterval: time.Second, MaxInterval: 10 * time.Second, MaxElapsedTime: limit,
	}))
	if endpoint := endpointOf(s); endpoint != "" {
		list = append(list, otlptracehttp.WithEndpointURL(endpoint))
	}
	if s.Headers != nil {
		list = append(list, otlptracehttp.WithHeaders(s.Headers))
	}
	if s.Authorities != nil {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(s.Authorities)
		list = append(list, otlptracehttp.WithTLSClientConfig(&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}))
	}
	return list
}

// endpointOf returns the URL to which spans are posted; empty: the environment has it.
func endpointOf(s *Settings) string {
	base := s.Endpoint
	if base == "" {
		if os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" {
			return ""
		}
		base = defaultEndpoint
	}
	u, err := url.Parse(base)
	if err != nil { // the configuration has refused it
		return base
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = defaultPath
	}
	return u.String()
}

func queueSize(s *Settings) int {
	if s.Queue > 0 {
		return s.Queue
	}
	if n, err := strconv.Atoi(os.Getenv("OTEL_BSP_MAX_QUEUE_SIZE")); err == nil && n > 0 {
		return n
	}
	return DefaultQueue
}

// spanLimits are the SDK's, which reads the environment, with a bound on texts where it has none.
func spanLimits() sdktrace.SpanLimits {
	l := sdktrace.NewSpanLimits()
	if l.AttributeValueLengthLimit < 0 {
		l.AttributeValueLengthLimit = longestValue
	}
	return l
}

// describe says who exports. What the environment says of it comes after our own defaults, what the configuration says after that.
func describe(s *Settings) (*resource.Resource, error) {
	version := "(devel)"
	if bi, ok := debug.ReadBuildInfo(); ok && bi.Main.Version != "" {
		version = bi.Main.Version
	}
	list := []resource.Option{
		resource.WithHost(), resource.WithTelemetrySDK(), resource.WithAttributes(semconv.ServiceName("perigee"), semconv.ServiceVersion(version)), resource.WithFromEnv(),
	}
	if s.Service != "" {
		list = append(list, resource.WithAttributes(semconv.ServiceName(s.Service)))
	}
	r, err := resource.New(context.Background(), list...)
	if errors.Is(err, resource.ErrPartialResource) { // as of a malformed OTEL_RESOURCE_ATTRIBUTES: what could be read stands
		otel.Handle(err)
		err = nil
	}
	return r, err
}

var saying sync.Mutex

// sayTo has the SDK's own complaints, as of a variable of the environment that cannot be read, go to a log. They are the process's: the last that was
// given gets them.
func sayTo(log *slog.Logger) {
	saying.Lock()
	defer saying.Unlock()
	otel.SetLogger(logr.FromSlogHandler(log.Handler()))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("tracing", "err", short(err)) }))
}

// acquire takes the provider for one user more; false: it has none any more, and is being taken down.
func (p *provider) acquire() bool {
	for {
		n := p.users.Load()
		if n == 0 {
			return false
		}
		if p.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (p *provider) release() {
	if p.users.Add(-1) == 0 {
		close(p.idle)
	}
}

// shutdown exports what waits and joins the SDK's goroutine, within flushLimit and a moment.
func (p *provider) shutdown() {
	late := time.AfterFunc(flushLimit, p.export.giveUp)
	defer late.Stop()
	defer p.export.giveUp()
	if err := p.ended.Shutdown(context.Background()); err != nil {
		p.export.log.Warn("tracing", "err", short(err))
	}
	p.export.tell(true, nil)
}
