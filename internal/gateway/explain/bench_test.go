package explain_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/explain"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
)

// request takes one request through the log.
func request(tb testing.TB, l *explain.Log, id string, pick func(*bucket.Trace) (bucket.Selection, error)) {
	e := l.Begin(explain.Facts{RequestID: id, Started: noon})
	if _, err := e.Attempt(noon, pick); err != nil {
		tb.Fatal(err)
	}
	e.Outcome("answered")
	e.Finish(explain.End{Status: 200})
}

// BenchmarkRequestWhileAsked is what a request pays for the log, alone and while somebody asks for all of it over and over. The
// slowest in a thousand is what a question costs those who did not ask.
func BenchmarkRequestWhileAsked(b *testing.B) {
	for _, asked := range []bool{false, true} {
		b.Run(fmt.Sprintf("asked=%v", asked), func(b *testing.B) {
			l, pick := explain.NewLog(0), selector(b, 40)
			for range 2 * explain.DefaultSize {
				request(b, l, "a", pick)
			}
			ctx, stop := context.WithCancel(context.Background())
			done := make(chan struct{})
			go func() {
				defer close(done)
				for asked && ctx.Err() == nil {
					l.Records(explain.Query{})
				}
			}()
			took := make([]time.Duration, 0, 1<<20)
			for b.Loop() {
				began := time.Now()
				request(b, l, "a", pick)
				if len(took) < cap(took) {
					took = append(took, time.Since(began))
				}
			}
			stop()
			<-done
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*999/1000].Nanoseconds()), "ns/p99.9")
		})
	}
}

// BenchmarkMemory is what an entry holds: of a request that two engines were compared for, and of one that has seen the worst: three
// attempts at four buckets of a thousand engines each, all full.
func BenchmarkMemory(b *testing.B) {
	for _, worst := range []bool{false, true} {
		b.Run(fmt.Sprintf("worst=%v", worst), func(b *testing.B) {
			pick, attempts := selector(b, 2), 1
			if worst {
				pick, attempts = fullBuckets(b, 4, 1000), 3
			}
			for b.Loop() {
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				l := explain.NewLog(0)
				for range explain.DefaultSize {
					e := l.Begin(explain.Facts{RequestID: "a", Started: noon})
					for range attempts {
						_, _ = e.Attempt(noon, pick)
					}
					e.Finish(explain.End{Status: 503})
				}
				runtime.GC()
				runtime.ReadMemStats(&after)
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/explain.DefaultSize, "B/entry")
				runtime.KeepAlive(l)
			}
		})
	}
}

// fullBuckets returns a pick over so many buckets whose engines are all full.
func fullBuckets(tb testing.TB, buckets, engines int) func(*bucket.Trace) (bucket.Selection, error) {
	reg := fleet.NewRegistry(fleet.BreakerConfig{}, 0)
	for i := range engines {
		reg.Put(fleet.Spec{ID: fmt.Sprintf("e%04d", i), Models: []string{"m"}})
	}
	var none int64
	var list []*bucket.Bucket
	for i := range buckets {
		g := bucket.NewGroup("m", fleet.Plain, nil, policy.NewLeastLoad(policy.Limits{MaxInflightRequests: &none}))
		list = append(list, bucket.NewPlain(fmt.Sprint(i), 0, bucket.Range{}, g))
	}
	res, err := bucket.NewResolver(list)
	if err != nil {
		tb.Fatal(err)
	}
	return func(tr *bucket.Trace) (bucket.Selection, error) {
		return res.Select(context.Background(), reg.View(), &bucket.Request{Now: noon, InputTokens: 1, Trace: tr})
	}
}
