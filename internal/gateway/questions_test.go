package gateway

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"testing"
	"time"
)

// TestQuestions: a question that meets a kept connection at its end is asked again over a new one, and who traces it learns of both; one that is not answered
// over a new connection fails with the cause; and one whose time is up says so as net/http's client does.
func TestQuestions(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer ln.Close()
	// Each connection answers so many questions and reads one more before it ends; a negative number never answers.
	answers := make(chan int, 8)
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			n := <-answers
			wg.Go(func() { answerSome(c, n) })
		}
	})
	q := newQuestions()
	defer q.Close()
	client := &http.Client{Transport: q}
	var reused []bool
	kept := 0
	ask := func(within time.Duration) (string, error) {
		reused, kept = nil, 0
		ctx, cancel := context.WithTimeout(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			GotConn:     func(i httptrace.GotConnInfo) { reused = append(reused, i.Reused) },
			PutIdleConn: func(error) { kept++ },
		}), within)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+ln.Addr().String()+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		return string(text), err
	}
	answers <- 2
	answers <- 1
	for i, want := range [][]bool{{false}, {true}, {true, false}} {
		got, err := ask(10 * time.Second)
		if err != nil || got != "ok" || kept != 1 || len(reused) != len(want) || reused[0] != want[0] || reused[len(want)-1] != want[len(want)-1] {
			t.Fatalf("question %d: %q, %v, over connections %v, %d kept; want %v", i, got, err, reused, kept, want)
		}
	}
	answers <- 0 // the kept one ends, and so does the new one
	if _, err := ask(10 * time.Second); !errors.Is(err, io.ErrUnexpectedEOF) || len(reused) != 2 || kept != 0 {
		t.Errorf("nobody answers: %v, over connections %v, %d kept", err, reused, kept)
	}
	answers <- -1
	_, err = ask(50 * time.Millisecond)
	if late, ok := errors.AsType[net.Error](err); !ok || !late.Timeout() || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody answers in time: %v", err)
	}
	_ = ln.Close()
	_, err = ask(10 * time.Second)
	if dial, ok := errors.AsType[*net.OpError](err); !ok || dial.Op != "dial" || len(reused) != 0 {
		t.Errorf("nobody listens: %v, over connections %v", err, reused)
	}
}

// answerSome answers n questions, reads one more and ends the connection; with a negative n it waits for the other side to end it.
func answerSome(c net.Conn, n int) {
	defer c.Close()
	br := bufio.NewReader(c)
	for i := 0; ; i++ {
		if _, err := http.ReadRequest(br); err != nil || n >= 0 && i == n {
			return
		}
		if n < 0 {
			continue
		}
		if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"); err != nil {
			return
		}
	}
}
