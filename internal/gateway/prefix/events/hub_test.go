package events_test

import (
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/events"
	"github.com/perigee-llm/perigee/internal/zmtp"
)

// dial makes an engine's publisher dial a place, as one does whose endpoint has no wildcard.
func (e *engine) dial(endpoint string) {
	_ = e.pub.Close()
	e.connect(endpoint)
}

func (e *engine) connect(endpoint string) {
	e.t.Helper()
	p, err := zmtp.NewPublisher(zmtp.PublisherOptions{Options: zmtp.Options{DialContext: e.net.DialContext}})
	if err == nil {
		err = p.Connect(endpoint)
	}
	if err != nil {
		e.t.Fatal(err)
	}
	e.pub = p
}

// TestListen: engines dial us. Alone at a place, one needs no topic; of several each is known by its own.
func TestListen(t *testing.T) {
	inWorld(t, events.Options{}, func(w *world) {
		a, b, c := newEngine(t, &w.net, "engine-1", "kv@a"), newEngine(t, &w.net, "engine-2", "kv@b"), newEngine(t, &w.net, "engine-3", "whatever")
		at := func(e *engine, place, topic string) events.Source {
			s := e.source(0)
			s.Events, s.Listen, s.Topic, s.Load = "tcp://"+place, true, topic, ""
			return s
		}
		w.follow(w.target(1, prefixes, at(a, "here:1", "kv@a")))
		w.follow(w.target(2, prefixes, at(b, "here:1", "kv@b")))
		w.follow(w.target(3, prefixes, at(c, "here:2", "")))
		for _, e := range []*engine{a, b} {
			e.dial("tcp://here:1")
		}
		c.dial("tcp://here:2")
		pass(time.Second)
		w.want("3/0", "exact ")
		for n, e := range []*engine{a, b, c} {
			e.store(n+1, n+11)
		}
		w.want("1/0", "exact 1,11")
		w.want("2/0", "exact 2,12")
		w.want("3/0", "exact 3,13")

		// A topic that is nobody's means nothing; a connection that breaks means those whose it was.
		a.pub.Publish([]byte("kv@x"), be(0), batch(9))
		w.want("1/0", "exact 1,11")
		_ = a.pub.Close()
		pass(700 * time.Millisecond)
		w.want("1/0", "hidden 1,11")
		w.want("2/0", "exact 2,12")
		a.dial("tcp://here:1")
		pass(time.Second)
		a.store(21)
		w.want("1/0", "exact 1,11,21")

		// It dials again before anybody has noticed that the old connection is dead.
		old := a.pub
		a.pub = nil
		a.connect("tcp://here:1")
		pass(time.Second)
		a.store(22)
		w.want("1/0", "exact 1,11,21,22")
		if s := w.f.Status()[0]; s.Events.Breaks != 2 || s.Events.Connects != 3 || s.Stream.Restarts != 0 {
			t.Errorf("%+v", s)
		}
		_ = old.Close()
		pass(time.Second)
		w.want("1/0", "exact 1,11,21,22")

		// The place stays while somebody is there.
		w.f.Unfollow(1)
		b.store(-2)
		w.want("2/0", "exact 12")
		w.f.Unfollow(2)
		w.follow(w.target(4, prefixes, at(a, "here:1", "kv@a")))
		pass(3 * time.Second)
		a.store(31)
		w.want("4/0", "exact 1,11,21,22,31")
		for _, e := range []*engine{a, b, c} {
			e.stop()
		}
	})
}
