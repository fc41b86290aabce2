package zmtp

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/zmtp/wire"
)

// What one subscriber may ask for. A gateway has a handful of topics.
const (
	maxTopics     = 1024
	maxTopicBytes = 64 << 10 // of all of them
)

// subscriber is one connection of a publisher.
type subscriber struct {
	c   *Conn
	out *outbox

	mu struct {
		sync.Mutex                // inside of Publisher.mu
		topics     map[string]int // how often each was asked for: as often it must be cancelled
		bytes      int
	}
}

// attend serves one subscriber until its connection ends: this goroutine reads its subscriptions, another one writes.
func (p *Publisher) attend(c *Conn) {
	s := &subscriber{c: c, out: newOutbox(p.opt.HighWater, p.opt.HighWaterBytes)}
	s.mu.topics = map[string]int{}
	c.onSubscribe = func(prefix []byte, cancel bool) (err error) {
		p.change(func() { err = s.subscribe(string(prefix), cancel) })
		return err
	}
	p.change(func() { p.mu.subscribers[s] = struct{}{} })
	stop := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() { s.write(stop) })

	s.read()
	p.change(func() { delete(p.mu.subscribers, s) })
	_ = c.Close()
	close(stop)
	writer.Wait()
}

// read returns when the connection is over. Subscriptions come as commands or, in version 3.0, as messages; other messages are passed
// over.
func (s *subscriber) read() {
	var m Message
	for {
		err := s.c.Receive(&m)
		if _, over := errors.AsType[*OversizeError](err); over {
			continue
		}
		if err != nil {
			return
		}
		if prefix, cancel, ok := wire.ParseSubscribe(m.Frames[0]); ok {
			if s.c.onSubscribe(prefix, cancel) != nil {
				return
			}
		}
	}
}

// write sends what is queued until stop is closed or the connection is over, which the reader notices too.
func (s *subscriber) write(stop <-chan struct{}) {
	var batch [][]byte
	for {
		select {
		case <-s.out.ready:
		case <-stop:
			return
		}
		for {
			batch = s.out.take(batch[:0])
			if len(batch) == 0 {
				break
			}
			if s.c.writev(batch) != nil {
				return
			}
		}
	}
}

// writev sends encoded messages in one call.
func (c *Conn) writev(batch [][]byte) error {
	c.write.Lock()
	defer c.write.Unlock()
	if c.opt.WriteTime > 0 {
		_ = c.nc.SetWriteDeadline(time.Now().Add(c.opt.WriteTime)) // fails only where the write fails too
	}
	buffers := net.Buffers(batch)
	if _, err := buffers.WriteTo(c.nc); err != nil {
		return c.fail(stalled(err))
	}
	return nil
}

// subscribe adds or cancels a topic. Cancelling what was not asked for is no fault.
func (s *subscriber) subscribe(topic string, cancel bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.mu.topics[topic]
	if cancel {
		switch {
		case n > 1:
			s.mu.topics[topic] = n - 1
		case n == 1:
			delete(s.mu.topics, topic)
			s.mu.bytes -= len(topic)
		}
		return nil
	}
	if n == 0 {
		if len(s.mu.topics) >= maxTopics || s.mu.bytes+len(topic) > maxTopicBytes {
			return ErrAbuse
		}
		s.mu.bytes += len(topic)
	}
	s.mu.topics[topic] = n + 1
	return nil
}

func (s *subscriber) subscribed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.topics) > 0
}

// wants tells whether a message with that first frame is for this subscriber. Topics are few, so that asking one after another beats a
// tree.
func (s *subscriber) wants(first []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for topic := range s.mu.topics {
		if len(first) >= len(topic) && string(first[:len(topic)]) == topic {
			return true
		}
	}
	return false
}
