package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// result is what one cell showed. Times are in microseconds, at a given rate from when a request was due.
type result struct {
	Requests int     `json:"requests"` // whose answers came in the measured time
	RPS      float64 `json:"rps"`
	P50      float64 `json:"p50_us"`
	P99      float64 `json:"p99_us"`
	First50  float64 `json:"first_byte_p50_us"`
	// CPUPer1k is the seconds of CPU time, user and system, that the target's process took for 1,000 requests; RSSMB
	// its resident memory after the cell. Both are 0 for the direct row.
	CPUPer1k float64 `json:"cpu_s_per_1k"`
	RSSMB    float64 `json:"rss_mb"`
	// Others is how many cores processes outside this benchmark kept busy. Above 0.2, look at ratios and CPU only.
	Others float64 `json:"other_cores"`
	// Of cells with a rate only. Late99 is how late the load itself was: from when a request was due and its connection free
	// until it was sent; the times have it in them. Unsent requests were given up, and count with the time until then, which
	// is less than they would have had. Behind is in how many rounds less than keptUp of what was due was answered.
	Late99 float64 `json:"late_p99_us,omitempty"`
	Unsent int     `json:"unsent,omitempty"`
	Behind int     `json:"behind_rounds,omitempty"`
}

// The phases of a closed loop, seen by all its connections.
const (
	warming = iota
	measuring
	ended
)

// sample is one request: the time to the first byte of the answer's body and to its end.
type sample struct{ first, whole time.Duration }

func runCell(ctx context.Context, o options, c cell, t target) (result, error) {
	clients := make([]*client, c.Conns)
	for i := range clients {
		k, err := dial(ctx, t.addrs[i%len(t.addrs)], t.tls, c, i, o.chunks)
		if err != nil {
			return result{}, err
		}
		defer k.conn.Close()
		clients[i] = k
	}
	run := asFastAsAnswered
	if c.Rate > 0 {
		run = atRate
	}
	r, s, err := run(ctx, o, c, clients, func() usageNow { return usage(t.proc) })
	if err != nil {
		return result{}, err
	}
	if r.Requests == 0 {
		return result{}, errors.New("no request was finished")
	}
	r.CPUPer1k = (s.after.target - s.before.target) / float64(r.Requests) * 1000
	r.RSSMB = s.after.rssMB
	r.Others = max(0, (s.after.busy-s.before.busy-(s.after.own-s.before.own))/s.took.Seconds())
	return r, nil
}

// span is the measured time, and what had been used at its edges.
type span struct {
	before, after usageNow
	took          time.Duration
}

// asFastAsAnswered is a closed loop: a connection sends a request when the answer before has come.
func asFastAsAnswered(ctx context.Context, o options, _ cell, clients []*client, use func() usageNow) (r result, s span, err error) {
	var phase atomic.Int32
	var wg sync.WaitGroup
	samples := make([][]sample, len(clients))
	errs := make([]error, len(clients))
	for i, k := range clients {
		wg.Go(func() { samples[i], errs[i] = k.drive(&phase) })
	}
	err = pause(ctx, o.warm)
	s.before = use()
	begin := time.Now()
	phase.Store(measuring)
	err = errors.Join(err, pause(ctx, o.duration))
	phase.Store(ended)
	s.took, s.after = time.Since(begin), use()
	wg.Wait()
	all := slices.Concat(samples...)
	if err = errors.Join(err, errors.Join(errs...)); err != nil || len(all) == 0 {
		return r, s, err
	}
	whole, first := make([]time.Duration, len(all)), make([]time.Duration, len(all))
	for i, one := range all {
		whole[i], first[i] = one.whole, one.first
	}
	slices.Sort(whole)
	slices.Sort(first)
	r = result{
		Requests: len(all), RPS: float64(len(all)) / s.took.Seconds(),
		P50: quantile(whole, 0.50), P99: quantile(whole, 0.99), First50: quantile(first, 0.50),
	}
	return r, s, nil
}

// atRate is an open loop: requests are sent when they are due. What waits at the end of the measured time is sent for as
// long again, then no more.
func atRate(ctx context.Context, o options, c cell, clients []*client, use func() usageNow) (r result, s span, err error) {
	p := pace{rate: c.Rate, conns: len(clients), from: o.warm, until: o.warm + o.duration, giveUp: o.warm + 2*o.duration}
	alarms := make([]*alarm, len(clients))
	for i := range alarms {
		if alarms[i], err = newAlarm(ctx); err != nil {
			return r, s, err
		}
		defer alarms[i].close()
	}
	var wg sync.WaitGroup
	attempts := make([][]attempt, len(clients))
	errs := make([]error, len(clients))
	start := time.Now()
	for i, k := range clients {
		wg.Go(func() { attempts[i], errs[i] = p.drive(ctx, i, start, alarms[i].wait, k.ask) })
	}
	err = pause(ctx, time.Until(start.Add(p.from)))
	s.before = use()
	begin := time.Now()
	err = errors.Join(err, pause(ctx, time.Until(start.Add(p.until))))
	s.took, s.after = time.Since(begin), use()
	wg.Wait()
	return p.tally(slices.Concat(attempts...)), s, errors.Join(err, errors.Join(errs...))
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// quantile of a sorted list, in microseconds; 0 if it is empty.
func quantile(sorted []time.Duration, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return float64(sorted[min(int(q*float64(len(sorted))), len(sorted)-1)].Nanoseconds()) / 1000
}

// client is one connection, on which one request is sent at a time. One goroutine may use it.
type client struct {
	conn         net.Conn
	br           *bufio.Reader
	req, counter []byte // what is sent, and the part of it that is different each time
	id           int
	events       int // that an answer has to have; 0 unless it is a stream
}

// connect opens a connection, with TLS if there is a configuration. Its handshake is done.
func connect(ctx context.Context, addr string, over *tls.Config) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, "tcp", addr)
	if err != nil || over == nil {
		return conn, err
	}
	secure := tls.Client(conn, over)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return secure, nil
}

func dial(ctx context.Context, addr string, over *tls.Config, c cell, id, chunks int) (*client, error) {
	conn, err := connect(ctx, addr, over)
	if err != nil {
		return nil, err
	}
	k := &client{conn: conn, br: bufio.NewReaderSize(conn, 64<<10), id: id}
	k.req, k.counter = request(addr, c)
	if c.Mode == "stream" {
		k.events = chunks + 1 // and the end
	}
	return k, nil
}

// ask sends request n and reads its answer: when its body began, and when it was complete.
func (k *client) ask(n int) (first, end time.Time, err error) {
	copy(k.counter, fmt.Sprintf("%04x%012x", k.id&0xffff, n)) // no two prompts alike
	// A server that hangs must not hang the benchmark.
	if err := k.conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return first, end, err
	}
	if _, err := k.conn.Write(k.req); err != nil {
		return first, end, err
	}
	events, first, err := readAnswer(k.br)
	if err != nil {
		return first, end, fmt.Errorf("request %d: %w", n, err)
	}
	end = time.Now()
	if k.events > 0 && events != k.events {
		return first, end, fmt.Errorf("request %d: %d events, want %d", n, events, k.events)
	}
	return first, end, nil
}

// drive sends one request after the other until the cell has ended, and returns those that fell wholly into the
// measured time.
func (k *client) drive(phase *atomic.Int32) ([]sample, error) {
	out := make([]sample, 0, 1<<14)
	for n := 0; ; n++ {
		was := phase.Load()
		if was == ended {
			return out, nil
		}
		begin := time.Now()
		first, end, err := k.ask(n)
		if err != nil {
			return nil, err
		}
		if was == measuring && phase.Load() == measuring {
			out = append(out, sample{first.Sub(begin), end.Sub(begin)})
		}
	}
}

// request returns a chat request whose body has exactly the cell's size if that is possible, and the part of it that
// the caller changes from request to request.
func request(addr string, c cell) (req, counter []byte) {
	const mark = "0123456789abcdef"
	head := `{"model":"` + modelID + `","messages":[{"role":"user","content":"` + mark
	tail := fmt.Sprintf(`"}],"max_tokens":64,"temperature":0.7,"stream":%v}`, c.Mode == "stream")
	fill := strings.Repeat("lorem ipsum dolor sit amet ", c.Body/27+1)[:max(0, c.Body-len(head)-len(tail))]
	body := head + fill + tail
	req = fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nAuthorization: Bearer sk-bench\r\nContent-Length: %d\r\n\r\n%s",
		addr, len(body), body)
	at := bytes.Index(req, []byte(mark))
	return req, req[at : at+len(mark)]
}

// readAnswer reads one answer to its end: how many events its body held, and when the body began. Anything but a
// complete 200 is an error.
func readAnswer(br *bufio.Reader) (events int, first time.Time, err error) {
	line, err := br.ReadSlice('\n')
	if err != nil {
		return 0, first, err
	}
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 200 ")) {
		rest, _ := br.Peek(min(br.Buffered(), 1000))
		return 0, first, fmt.Errorf("answer %q %q", line, rest)
	}
	length, chunked := -1, false
	for {
		if line, err = br.ReadSlice('\n'); err != nil {
			return 0, first, err
		}
		if len(line) <= 2 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte{':'})
		switch {
		case bytes.EqualFold(name, []byte("content-length")):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return 0, first, err
			}
		case bytes.EqualFold(name, []byte("transfer-encoding")):
			chunked = true
		}
	}
	if _, err := br.Peek(1); err != nil {
		return 0, first, err
	}
	first = time.Now()
	switch {
	case chunked:
		events, err = readChunks(br)
	case length >= 0:
		_, err = br.Discard(length)
	default:
		err = errors.New("an answer without length")
	}
	return events, first, err
}

// readChunks reads a chunked body to its end and counts its events. A proxy may merge or split chunks, so an event is
// counted by its first bytes wherever they stand; the stub's text holds them nowhere else.
func readChunks(br *bufio.Reader) (events int, err error) {
	var keep [5]byte // the end of the last chunk: an event's first bytes may be split
	kept := 0
	buf := make([]byte, 0, 4096)
	for {
		line, err := br.ReadSlice('\n')
		if err != nil {
			return events, err
		}
		size, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 16, 31)
		if err != nil {
			return events, err
		}
		if size == 0 {
			_, err := br.Discard(2)
			return events, err
		}
		buf = append(buf[:0], keep[:kept]...)
		old := len(buf)
		buf = slices.Grow(buf, int(size))[:old+int(size)]
		if _, err := io.ReadFull(br, buf[old:]); err != nil {
			return events, err
		}
		events += bytes.Count(buf, []byte("data: "))
		kept = copy(keep[:], buf[max(0, len(buf)-len(keep)):])
		if _, err := br.Discard(2); err != nil {
			return events, err
		}
	}
}

// askOnce sends one small request on a connection of its own.
func askOnce(ctx context.Context, addr string, over *tls.Config) error {
	conn, err := connect(ctx, addr, over)
	if err != nil {
		return err
	}
	defer conn.Close()
	req, _ := request(addr, cell{Mode: "json", Body: 200})
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write(req); err != nil {
		return err
	}
	_, _, err = readAnswer(bufio.NewReader(conn))
	return err
}
