package main

import (
	"bufio"
	"bytes"
	"context"
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

// result is what one cell showed. Times are in microseconds.
type result struct {
	Requests int     `json:"requests"`
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
}

// The phases of a cell, seen by all its connections.
const (
	warming = iota
	measuring
	ended
)

// sample is one request: the time to the first byte of the answer's body and to its end.
type sample struct{ first, whole time.Duration }

func runCell(ctx context.Context, o options, c cell, t target) (result, error) {
	var phase atomic.Int32
	var wg sync.WaitGroup
	samples := make([][]sample, c.Conns)
	errs := make([]error, c.Conns)
	for i := range c.Conns {
		wg.Go(func() { samples[i], errs[i] = drive(t.addrs[i%len(t.addrs)], c, i, o.chunks, &phase) })
	}
	err := pause(ctx, o.warm)
	before, begin := usage(t.proc), time.Now()
	phase.Store(measuring)
	err = errors.Join(err, pause(ctx, o.duration))
	phase.Store(ended)
	took, after := time.Since(begin), usage(t.proc)
	wg.Wait()
	if err = errors.Join(err, errors.Join(errs...)); err != nil {
		return result{}, err
	}
	all := slices.Concat(samples...)
	if len(all) == 0 {
		return result{}, errors.New("no request was finished")
	}
	whole, first := make([]time.Duration, len(all)), make([]time.Duration, len(all))
	for i, s := range all {
		whole[i], first[i] = s.whole, s.first
	}
	slices.Sort(whole)
	slices.Sort(first)
	return result{
		Requests: len(all), RPS: float64(len(all)) / took.Seconds(),
		P50: quantile(whole, 0.50), P99: quantile(whole, 0.99), First50: quantile(first, 0.50),
		CPUPer1k: (after.target - before.target) / float64(len(all)) * 1000,
		RSSMB:    after.rssMB,
		Others:   max(0, (after.busy-before.busy-(after.own-before.own))/took.Seconds()),
	}, nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// quantile of a sorted list, in microseconds.
func quantile(sorted []time.Duration, q float64) float64 {
	return float64(sorted[min(int(q*float64(len(sorted))), len(sorted)-1)].Nanoseconds()) / 1000
}

// drive sends one request after the other on one connection until the cell has ended, and returns those that fell
// wholly into the measured time.
func drive(addr string, c cell, id, chunks int, phase *atomic.Int32) ([]sample, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	req, counter := request(addr, c)
	br := bufio.NewReaderSize(conn, 64<<10)
	out := make([]sample, 0, 1<<14)
	for n := 0; ; n++ {
		was := phase.Load()
		if was == ended {
			return out, nil
		}
		copy(counter, fmt.Sprintf("%04x%012x", id&0xffff, n)) // no two prompts alike
		begin := time.Now()
		// A server that hangs must not hang the benchmark.
		if err := conn.SetDeadline(begin.Add(30 * time.Second)); err != nil {
			return nil, err
		}
		if _, err := conn.Write(req); err != nil {
			return nil, err
		}
		events, first, err := readAnswer(br)
		if err != nil {
			return nil, fmt.Errorf("request %d: %w", n, err)
		}
		whole := time.Since(begin)
		if want := chunks + 1; c.Mode == "stream" && events != want {
			return nil, fmt.Errorf("request %d: %d events, want %d", n, events, want)
		}
		if was == measuring && phase.Load() == measuring {
			out = append(out, sample{first.Sub(begin), whole})
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
func askOnce(ctx context.Context, addr string) error {
	conn, err := (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, "tcp", addr)
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
