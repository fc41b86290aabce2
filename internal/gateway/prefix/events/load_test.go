package events_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/events"
)

func loadStat(figures ...int) []byte {
	b := msgp.AppendString(msgp.AppendArrayHeader(nil, uint32(1+len(figures))), "LoadStat")
	for _, n := range figures {
		b = msgp.AppendInt(b, n)
	}
	return b
}

// TestLoad: loads alone, then with the prefix beside them.
func TestLoad(t *testing.T) {
	inWorld(t, events.Options{}, func(w *world) {
		e := newEngine(t, &w.net, "engine-1", "kv")
		loads := w.target(1, events.Needs{Load: true}, e.source(0))
		w.follow(loads)
		if w.claims["1/0"] != nil {
			t.Error("the prefix was not asked for")
		}
		e.load.Publish([]byte("load"), be(0), loadStat(3, 2, 4096, 65536, 0, 512, 6144, 256, 1000, 500))
		pass(time.Millisecond)
		e.load.Publish([]byte("load"), be(0), loadStat(4, 1, 4096, 65536, 0, 1024, 6144, 256, 3000, 1500))
		synctest.Wait()
		r := loads.Worker.Load.Report(time.Now())
		if r == nil || r.Running.String() != "4" || r.QueueMicros.String() != "512" {
			t.Fatalf("%+v", r)
		}
		e.load.Publish([]byte("load"), be(^uint64(0)), loadStat(9, 9, 9, 9))
		e.load.Publish([]byte("load"), be(1), loadStat(1, 2))
		e.load.Publish([]byte("load"), be(2))
		synctest.Wait()
		if s := w.f.Status(); len(s) != 1 || s[0].Prefix || !s[0].Load.Connected || s[0].Load.Reports != 2 || s[0].Load.Bad != 2 {
			t.Errorf("%+v", s[0].Load)
		}
		both := loads
		both.Needs.Prefix = true
		w.follow(both)
		e.store(1)
		pass(time.Millisecond)
		e.load.Publish([]byte("load"), be(3), loadStat(7, 0, 0, 65536))
		w.want("1/0", "exact 1")
		if r := loads.Worker.Load.Report(time.Now()); r.Running.String() != "7" {
			t.Errorf("%+v", r)
		}
		e.stop()
		pass(time.Second)
		if s := w.f.Status()[0]; s.Load.Connected || s.Load.Fault == nil {
			t.Errorf("%+v", s.Load)
		}
	})
}
