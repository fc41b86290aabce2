package managers_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/managers"
	"github.com/perigee-llm/perigee/internal/managerwire"
	"github.com/perigee-llm/perigee/internal/zmtp"
)

// TestHostileAnswers: what is none of the wire's words makes nobody believe anything, and is asked for again until the right ones come.
func TestHostileAnswers(t *testing.T) {
	inWorld(t, func(w *world) {
		part := managerwire.AppendBatch(nil, managerwire.Head{Epoch: 1}, []managerwire.Event{attached(1), stored(0, 4)})
		answers := [][][][]byte{
			{managerwire.SnapshotEnd()}, // not even a header: that it holds nothing is not what it says
			{managerwire.SnapshotError("not now")},
			{{nil, []byte("header"), []byte("rubbish")}, managerwire.SnapshotEnd()},
			{{nil}, {[]byte("x"), []byte("header")}, {nil, []byte("other")}, managerwire.SnapshotChunk(part), managerwire.SnapshotEnd()},
			{managerwire.SnapshotHeader(1, 5, 3), managerwire.SnapshotChunk(part), managerwire.SnapshotEnd()},
			{managerwire.SnapshotHeader(1, 5, 2), managerwire.SnapshotChunk(part[:9]), managerwire.SnapshotEnd()},
			{managerwire.SnapshotHeader(1, 5, 2), {nil, []byte("other")}, managerwire.SnapshotChunk(part), managerwire.SnapshotEnd()},
		}
		l, err := zmtp.NewListener(w.net.Listen("hostile:1"), zmtp.Router, zmtp.Options{})
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan struct{})
		n := 0 // one connection after another
		go func() {
			defer close(served)
			_ = l.Serve(context.Background(), func(c *zmtp.Conn) {
				var m zmtp.Message
				for c.Receive(&m) == nil && n < len(answers) {
					n++
					for _, frames := range answers[n-1] {
						if c.Send(frames...) != nil {
							return
						}
					}
				}
			})
		}()
		w.f.Set([]managers.Target{{ID: "host-1", Events: w.m.Events, Replay: w.m.Replay, Snapshot: "tcp://hostile:1"}})
		for range len(answers) - 1 {
			w.want(0, "blind partial")
			pass(250 * time.Millisecond)
		}
		w.want(4, "exact")
		if s := w.f.Status()[0]; n != len(answers) || s.BadMessages == 0 || s.Counts.BadSnapshots == 0 || s.Fault == nil {
			t.Errorf("asked %d times: %+v", n, s)
		}
		_ = l.Close()
		<-served
		synctest.Wait()
	})
}

// TestRubbishLive: messages that are no batches are passed over, and one with a number that cannot be read costs what was claimed, until the
// snapshot comes.
func TestRubbishLive(t *testing.T) {
	inWorld(t, func(w *world) {
		w.follow()
		w.m.Say(attached(1), stored(0, 4))
		w.want(4, "exact")
		w.m.Raw([]byte(managerwire.Topic), []byte("short"), nil)
		w.m.Raw([]byte(managerwire.Topic+".x"), make([]byte, 8), nil)
		w.want(4, "exact")
		w.m.Raw(managerwire.Message(1, []byte{0xc1})...)
		w.want(0, "exact partial")
		w.m.Say() // is number 1 of those that it knows
		pass(6 * time.Second)
		w.want(4, "exact")
		if s := w.f.Status()[0]; s.BadMessages != 2 || s.Counts.BadBatches != 1 {
			t.Errorf("%+v", s)
		}
	})
}
