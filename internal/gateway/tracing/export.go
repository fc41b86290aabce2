package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

const (
	// complaintEvery is how often the log is told at most that spans are lost.
	complaintEvery = time.Minute
	// longestError bounds what the log gets of an error, in bytes: a collector's answer may be in it.
	longestError = 300
)

// exporter stands between the SDK's batches and the OTLP exporter, and before the batches: it counts what becomes of every span, and lets no more
// wait than may, those on their way included.
type exporter struct {
	otlp   sdktrace.SpanExporter
	log    *slog.Logger
	count  func(outcome string, spans int)
	limit  int64
	life   context.Context // of exports; ends with giveUp
	giveUp context.CancelFunc

	waiting atomic.Int64
	over    atomic.Bool  // shut down
	full    atomic.Int64 // dropped since the last complaint since too many waited

	complaint struct {
		sync.Mutex
		at   time.Time
		lost int64 // since then, other than full
		why  error // the last
	}
}

func newExporter(otlp sdktrace.SpanExporter, limit int, o Options) *exporter {
	e := &exporter{otlp: otlp, log: o.Log, count: o.Count, limit: int64(limit)}
	e.life, e.giveUp = context.WithCancel(context.Background())
	return e
}

// gate lets spans into the SDK's queue, which holds as many as the gate lets in: it never drops any itself.
type gate struct {
	sdktrace.SpanProcessor
	e *exporter
}

// processor returns what spans end in. A time-out of 0 is left to the environment.
func (e *exporter) processor(timeout time.Duration) sdktrace.SpanProcessor {
	list := []sdktrace.BatchSpanProcessorOption{sdktrace.WithMaxQueueSize(int(e.limit))}
	if timeout > 0 {
		list = append(list, sdktrace.WithExportTimeout(timeout))
	}
	batch := sdktrace.DefaultMaxExportBatchSize
	if n, err := strconv.Atoi(os.Getenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE")); err == nil && n > 0 {
		batch = n
	}
	// A batch goes out at the latest when half of what may wait does, so that the other half has room meanwhile.
	list = append(list, sdktrace.WithMaxExportBatchSize(min(batch, int(max(e.limit/2, 1)))))
	return &gate{SpanProcessor: sdktrace.NewBatchSpanProcessor(e, list...), e: e}
}

// OnEnd implements sdktrace.SpanProcessor; it never waits.
func (g *gate) OnEnd(s sdktrace.ReadOnlySpan) {
	switch {
	case !s.SpanContext().IsSampled():
	case g.e.over.Load():
		g.e.count(Late, 1)
	case g.e.waiting.Add(1) > g.e.limit:
		g.e.waiting.Add(-1)
		g.e.full.Add(1)
		g.e.count(QueueFull, 1)
	default:
		g.SpanProcessor.OnEnd(s)
	}
}

// Shutdown implements sdktrace.SpanProcessor.
func (g *gate) Shutdown(ctx context.Context) error {
	g.e.over.Store(true)
	return g.SpanProcessor.Shutdown(ctx)
}

// ExportSpans implements sdktrace.SpanExporter. It never fails: what there is to say of a failure is said here.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(e.life, func() { cancel(errGivenUp) })
	defer stop()
	err := errGivenUp
	if e.life.Err() == nil {
		err = e.otlp.ExportSpans(ctx, spans)
	}
	e.waiting.Add(-int64(len(spans)))
	lost, outcome := lostOf(err, len(spans))
	if lost > 0 {
		e.count(outcome, lost)
	}
	if lost < len(spans) {
		e.count(Exported, len(spans)-lost)
	}
	e.complaint.Lock()
	e.complaint.lost += int64(lost)
	e.complaint.Unlock()
	e.tell(false, err)
	return nil
}

// Shutdown implements sdktrace.SpanExporter.
func (e *exporter) Shutdown(ctx context.Context) error { return e.otlp.Shutdown(ctx) }

var errGivenUp = fmt.Errorf("the gateway ends, and the collector took longer than %s", flushLimit)

// lostOf says how many spans of a batch an export's error cost, and how. A collector may take a part of them, which the exporter tells as an error
// of a type that it keeps to itself.
func lostOf(err error, spans int) (lost int, outcome string) {
	if err == nil {
		return 0, ""
	}
	if _, partial, ok := strings.Cut(err.Error(), "OTLP partial success: "); ok {
		open := strings.LastIndexByte(partial, '(')
		if n, scanErr := strconv.Atoi(beforeSpace(partial[open+1:])); scanErr == nil && n >= 0 {
			return min(n, spans), Rejected
		}
		return spans, Rejected
	}
	return spans, Failed
}

func beforeSpace(s string) string {
	word, _, _ := strings.Cut(s, " ")
	return word
}

// tell says in the log, if its time has come or it is the last, how many spans were lost since the last time.
func (e *exporter) tell(last bool, err error) {
	c := &e.complaint
	c.Lock()
	defer c.Unlock()
	if err != nil {
		c.why = err
	}
	full := e.full.Load()
	if c.lost+full == 0 && c.why == nil {
		return
	}
	now := time.Now()
	if !last && !c.at.IsZero() && now.Sub(c.at) < complaintEvery {
		return
	}
	e.full.Add(-full)
	args := []any{"failed", c.lost, "queue_full", full}
	if c.why != nil {
		args = append(args, "err", short(c.why))
	}
	e.log.Warn("spans of traces were dropped", args...)
	c.at, c.lost, c.why = now, 0, nil
}

// short is an error as the log gets it.
func short(err error) string {
	s := err.Error()
	if len(s) > longestError {
		s = strings.ToValidUTF8(s[:longestError], "") + "…"
	}
	return s
}
