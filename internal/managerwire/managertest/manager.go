// Package managertest is a Cache Manager as gateways see one, for tests: it publishes what it is told to say, and can lose, forget and die.
// Its snapshots are its whole history, which is right and needs no thought.
package managertest

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/perigee-llm/perigee/internal/managerwire"
	"github.com/perigee-llm/perigee/internal/zmtp"
)

// Manager is one. Make it with [Start]; its methods may be called at once.
type Manager struct {
	// Events, Replay and Snapshot are its endpoints.
	Events, Replay, Snapshot string

	pub     *zmtp.Publisher
	replay  *zmtp.Listener
	shot    *zmtp.Listener
	serving sync.WaitGroup

	mu      sync.Mutex
	epoch   uint64
	seq     uint64
	oldest  uint64   // that a replay has
	batches [][]byte // all, by number
	records uint64
	mute    bool
	asked   map[string]int
}

// Listen makes the listeners: of a network in memory, or of the machine.
type Listen func(name string) (net.Listener, error)

// Loopback listens on the machine.
func Loopback(string) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
}

// Start starts a Manager. Its listeners are called events, replay and snapshot. The test stops it.
func Start(t testing.TB, epoch uint64, listen Listen) *Manager {
	t.Helper()
	m := &Manager{epoch: epoch, asked: map[string]int{}}
	open := func(name string) (net.Listener, string) {
		ln, err := listen(name)
		if err != nil {
			t.Fatal(err)
		}
		return ln, "tcp://" + ln.Addr().String()
	}
	ln, at := open("events")
	m.Events = at
	var err error
	if m.pub, err = zmtp.NewPublisher(zmtp.PublisherOptions{}); err == nil {
		err = m.pub.ListenOn(ln)
	}
	if err != nil {
		t.Fatal(err)
	}
	serve := func(name string, answer func(*zmtp.Conn)) (*zmtp.Listener, string) {
		ln, at := open(name)
		l, err := zmtp.NewListener(ln, zmtp.Router, zmtp.Options{})
		if err != nil {
			t.Fatal(err)
		}
		m.serving.Go(func() { _ = l.Serve(context.Background(), answer) })
		return l, at
	}
	m.replay, m.Replay = serve("replay", m.answerReplay)
	m.shot, m.Snapshot = serve("snapshot", m.answerSnapshot)
	return m
}

// Stop ends it, and waits. What it said is kept.
func (m *Manager) Stop() {
	_ = m.pub.Close()
	_ = m.replay.Close()
	_ = m.shot.Close()
	m.serving.Wait()
}

// Say publishes a batch.
func (m *Manager) Say(events ...managerwire.Event) { m.say(false, events) }

// Lose is Say, with a batch that does not arrive.
func (m *Manager) Lose(events ...managerwire.Event) { m.say(true, events) }

func (m *Manager) say(lost bool, events []managerwire.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := managerwire.AppendBatch(nil, managerwire.Head{Time: 1.5, Epoch: m.epoch, Manager: "test"}, events)
	m.batches = append(m.batches, b)
	m.records += uint64(len(events))
	m.seq++
	if !lost {
		m.pub.Publish(managerwire.Message(m.seq-1, b)...)
	}
}

// Raw publishes frames that it knows nothing of.
func (m *Manager) Raw(frames ...[]byte) { m.pub.Publish(frames...) }

// Forget empties the replay's buffer.
func (m *Manager) Forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.oldest = m.seq
}

// Mute has nothing answered, or again.
func (m *Manager) Mute(mute bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mute = mute
}

// Asked returns how often it was asked for a replay or a snapshot.
func (m *Manager) Asked(what string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asked[what]
}

// WaitSubscribed waits until somebody follows it.
func (m *Manager) WaitSubscribed(t testing.TB) {
	t.Helper()
	if err := m.pub.WaitSubscribed(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
}

func (m *Manager) answerReplay(c *zmtp.Conn) {
	m.each(c, "replay", func(frames [][]byte) (out [][][]byte) {
		from, ok := managerwire.ReplayFrom(frames)
		for n := max(from, m.oldest); ok && n < m.seq; n++ {
			out = append(out, managerwire.Replayed(n, m.batches[n]))
		}
		return append(out, managerwire.ReplayEnd())
	})
}

func (m *Manager) answerSnapshot(c *zmtp.Conn) {
	m.each(c, "snapshot", func(frames [][]byte) (out [][][]byte) {
		if !managerwire.IsSnapshotRequest(frames) {
			return [][][]byte{managerwire.SnapshotError("what?")}
		}
		out = append(out, managerwire.SnapshotHeader(m.epoch, m.seq, m.records))
		for _, b := range m.batches {
			out = append(out, managerwire.SnapshotChunk(b))
		}
		return append(out, managerwire.SnapshotEnd())
	})
}

// each answers each question of a connection.
func (m *Manager) each(c *zmtp.Conn, what string, answer func(frames [][]byte) [][][]byte) {
	var msg zmtp.Message
	for c.Receive(&msg) == nil {
		m.mu.Lock()
		m.asked[what]++
		out := answer(msg.Frames)
		if m.mute {
			out = nil
		}
		m.mu.Unlock()
		for _, frames := range out {
			if c.Send(frames...) != nil {
				return
			}
		}
	}
}
