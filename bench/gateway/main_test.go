package main

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMain lets the test binary play the stub and the proxy, as the real one does.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "stub" || os.Args[1] == "proxy") {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestBenchRuns keeps the benchmark itself from rotting: short runs without perigee, through real processes. A quarter of a second is what a machine that does twenty other
// things needs for one request.
func TestBenchRuns(t *testing.T) {
	for _, rate := range []string{"0", "500"} {
		t.Run(rate, func(t *testing.T) { benchRuns(t, rate) })
	}
}

func benchRuns(t *testing.T, rate string) {
	dir := t.TempDir()
	out := filepath.Join(dir, "out.json")
	for d := 250 * time.Millisecond; ; d *= 4 {
		err := benchMain(t.Context(), []string{"-perigee", "", "-rounds", "2", "-d", d.String(), "-warm", "10ms", "-chunks", "4",
			"-bodies", "1024", "-conns", "2", "-rate", rate, "-json", out, "-logs", dir})
		if err != nil && strings.Contains(err.Error(), "no request was finished") && d < 10*time.Second { // on a machine that is busier still
			t.Log(err)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Rows    []row
		Medians []summary
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Rows) != 8 || len(got.Medians) != 4 { // 2 rounds, 2 modes, 2 targets
		t.Fatalf("%d rows and %d medians, want 8 and 4", len(got.Rows), len(got.Medians))
	}
	for _, s := range got.Medians {
		if s.RPS <= 0 || s.P50 <= 0 || s.P99 < s.P50 || (s.Target == "direct") != (s.VsProxy != nil) {
			t.Errorf("%s %v: %+v", s.Target, s.Cell, s)
		}
	}
}

func TestRequestHasTheCellsSize(t *testing.T) {
	for _, size := range []int{1024, 32768} {
		req, counter := request("h", cell{Mode: "stream", Body: size})
		copy(counter, strings.Repeat("f", len(counter)))
		_, body, _ := strings.Cut(string(req), "\r\n\r\n")
		if len(body) != size || !json.Valid([]byte(body)) || !strings.Contains(body, strings.Repeat("f", 16)) {
			t.Errorf("body of %d bytes, want %d: %.80s", len(body), size, body)
		}
	}
}

// TestEventsAreCountedAcrossChunks: proxies cut a stream where they like.
func TestEventsAreCountedAcrossChunks(t *testing.T) {
	const text = "data: {\"a\":1}\n\ndata: {\"b\":2}\n\ndata: [DONE]\n\n"
	for size := 1; size <= len(text); size++ {
		var b strings.Builder
		b.WriteString("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
		for rest := text; rest != ""; {
			n := min(size, len(rest))
			b.Write(chunk(rest[:n]))
			rest = rest[n:]
		}
		b.WriteString("0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
		br := bufio.NewReader(strings.NewReader(b.String()))
		if n, _, err := readAnswer(br); n != 3 || err != nil {
			t.Errorf("chunks of %d bytes: %d events, error %v", size, n, err)
		}
		if _, _, err := readAnswer(br); err != nil {
			t.Errorf("chunks of %d bytes: the answer behind it: %v", size, err)
		}
	}
}

func TestAnswersThatAreNoSuccess(t *testing.T) {
	for name, text := range map[string]string{
		"503":          "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\n{}",
		"cut stream":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ndata:\r\n",
		"cut body":     "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
		"no length":    "HTTP/1.1 200 OK\r\n\r\n{}",
		"cut in heads": "HTTP/1.1 200 OK\r\nContent-",
	} {
		if _, _, err := readAnswer(bufio.NewReader(strings.NewReader(text))); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestRatiosAreTakenWithinARound(t *testing.T) {
	c := cell{Mode: "json", Body: 1, Conns: 1}
	at := func(round int, target string, rps float64) row {
		return row{round, target, c, result{RPS: rps, P50: 1 / rps, CPUPer1k: 1}}
	}
	// The machine slows down from round to round; the ratio does not change.
	sums := summarise([]row{
		at(1, "perigee", 90), at(1, "proxy", 100), at(2, "proxy", 50), at(2, "perigee", 45), at(3, "perigee", 9), at(3, "proxy", 10),
	})
	if len(sums) != 2 || sums[0].Target != "proxy" || sums[1].VsProxy == nil {
		t.Fatalf("%+v", sums)
	}
	if r := sums[1].VsProxy.RPS; r < 0.899 || r > 0.901 {
		t.Errorf("ratio %v, want 0.9", r)
	}
	if sums[1].RPS != 45 {
		t.Errorf("median %v, want 45", sums[1].RPS)
	}
	if m := median([]float64{4, 1, 3, 2}); m != 2.5 {
		t.Errorf("median of an even count: %v", m)
	}
}
