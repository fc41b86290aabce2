package events

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/wire"
	"github.com/perigee-llm/perigee/internal/zmtp"
)

// loadReader follows the load stream of one rank. Reports are gauges: their numbers mean nothing, but for -1, which is no report, and a
// stream that breaks ends with the freshness of its last report.
type loadReader struct {
	src    Source
	o      *Options
	engine *load.Engine
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu sync.Mutex
	s  LoadStatus
}

func (e *engine) startLoad(src Source) *loadReader {
	l := &loadReader{src: src, o: &e.f.o, engine: e.target.Worker.Load}
	l.ctx, l.cancel = context.WithCancel(e.ctx)
	l.wg.Go(l.run)
	return l
}

func (l *loadReader) end() {
	l.cancel()
	l.wg.Wait()
}

func (l *loadReader) run() {
	dial := func(ctx context.Context) (*zmtp.Conn, error) {
		return l.o.dial(ctx, zmtp.Sub, l.src.Load, l.src.LoadTopic)
	}
	_ = zmtp.Maintain(l.ctx, zmtp.Backoff{}, dial, l.serve, func(err error) { l.set(false, err) }) // its error is the context's
}

func (l *loadReader) set(connected bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.s.Connected, l.s.Fault = connected, err
}

func (l *loadReader) serve(c *zmtp.Conn) error {
	l.set(true, nil)
	var m zmtp.Message
	for {
		err := c.Receive(&m)
		if _, over := errors.AsType[*zmtp.OversizeError](err); over {
			l.count(&l.s.Bad)
			continue
		}
		if err != nil {
			return err
		}
		l.report(m.Frames)
	}
}

// report takes in one report. It carries no time of its own, so it is true of the moment at which it came: a millisecond later than of
// when it was made, and requests that were sent within that are taken for counted.
func (l *loadReader) report(frames [][]byte) {
	if len(frames) != 3 || len(frames[1]) != 8 {
		l.count(&l.s.Bad)
		return
	}
	if int64(binary.BigEndian.Uint64(frames[1])) == -1 {
		return
	}
	r, err := wire.ParseLoad(frames[2])
	if err != nil {
		l.count(&l.s.Bad)
		return
	}
	r.At = time.Now()
	if l.engine.Observe(int(l.src.Rank), r) {
		l.count(&l.s.Reports)
	} else {
		l.count(&l.s.Stale)
	}
}

func (l *loadReader) count(n *uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*n++
}

func (l *loadReader) status() *LoadStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.s
	return &s
}
