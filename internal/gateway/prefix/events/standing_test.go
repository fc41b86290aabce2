package events_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
)

// indexed is a target whose claims are of a real index.
func (w *world) indexed(o local.Options, source events.Source) (events.Target, *local.Store) {
	store := local.New(o)
	t := w.target(1, prefixes, source)
	t.Open = func(rank int32) events.Claims {
		return store.Open(local.Engine{No: 1, Base: "m", Names: []string{"m"}}, rank)
	}
	return t, store
}

// TestCutOffIsTold: an engine that claims too much is named in the log and to the hooks, and since when.
func TestCutOffIsTold(t *testing.T) {
	var told []events.Status
	var log bytes.Buffer
	o := events.Options{Log: slog.New(slog.NewTextHandler(&log, nil)), Hooks: events.Hooks{Changed: func(s events.Status) { told = append(told, s) }}}
	inWorld(t, o, func(w *world) {
		e := newEngine(t, &w.net, "engine-1", "kv")
		target, _ := w.indexed(local.Options{Limit: 1}, e.source(0))
		w.follow(target)
		synctest.Wait()
		before := log.Len()
		e.publishRaw(chain(1, 8, false), false)
		synctest.Wait()
		at := time.Now()
		time.Sleep(2 * time.Second) // on the fake clock
		synctest.Wait()
		if s := w.f.Status()[0]; !s.CutOff || !s.CutOffSince.Equal(at) {
			t.Errorf("cut off: %v since %v, want since %v", s.CutOff, s.CutOffSince, at)
		}
		if last := told[len(told)-1]; !last.CutOff {
			t.Error("the hooks were not told")
		}
		if line := log.String()[before:]; !strings.Contains(line, "level=WARN") || !strings.Contains(line, "worker=engine-1") || !strings.Contains(line, "cut_off=true") {
			t.Errorf("the log says %q", line)
		}
		e.stop()
	})
}

// TestSilentReplay: where nobody answers whether the last batches came, a quiet engine is not called whole; with the next batch, which proves it, it is again.
func TestSilentReplay(t *testing.T) {
	inWorld(t, events.Options{}, func(w *world) {
		e := newEngine(t, &w.net, "engine-1", "kv")
		target, store := w.indexed(local.Options{}, e.source(0))
		w.follow(target)
		e.publishRaw(chain(1, 1, false), false)
		synctest.Wait()
		held := func() (depth int32, blind bool) {
			var m prefix.Match
			tokens := make([]uint32, 16)
			for i := range tokens {
				tokens[i] = uint32(1 + i)
			}
			if err := store.Lookup(t.Context(), &prefix.Query{Model: "m", Tokens: tokens}, &m); err != nil {
				t.Fatal(err)
			}
			return m.Of(1).Any(), m.IsBlind(1)
		}
		if depth, blind := held(); depth != 16 || blind {
			t.Fatalf("%d tokens, blind %v: want 16 of an engine that is exact", depth, blind)
		}
		_ = e.replay.Close()
		since := time.Now()
		time.Sleep(10 * time.Second) // on the fake clock
		synctest.Wait()
		s := w.f.Status()[0]
		if s.Stream.State != stream.Exact || s.Stream.Whole || s.Stream.PartWhy != stream.Unanswered || s.Stream.Unanswered < 3 || s.Stream.PartSince.Sub(since) > 5*time.Second {
			t.Errorf("after ten seconds without an answer: %+v", s.Stream)
		}
		if depth, blind := held(); depth != 16 || !blind {
			t.Errorf("%d tokens, blind %v: want 16 of an engine that may hold something else", depth, blind)
		}
		e.publishRaw(chain(17, 1, true), false)
		synctest.Wait()
		if s := w.f.Status()[0]; !s.Stream.Whole {
			t.Errorf("after the next batch: %+v", s.Stream)
		}
		if _, blind := held(); blind {
			t.Error("blind after the next batch")
		}
		e.stop()
	})
}
