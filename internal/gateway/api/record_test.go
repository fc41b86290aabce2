package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/perigee-llm/perigee/internal/gateway/api/sse"
)

// accessLog keeps the lines of the access log.
type accessLog struct {
	stuck chan struct{} // until it is closed nothing is written; nil: it is not stuck
	mu    sync.Mutex
	lines []string
}

func (l *accessLog) Write(p []byte) (int, error) {
	if l.stuck != nil {
		<-l.stuck
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(p))
	return len(p), nil
}

// everything returns all that was logged.
func (l *accessLog) everything() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "")
}

// last returns the members of the last line, what every line has left out. Numbers with a point are float64, others int64. It is for bubbles: a line is
// written when the client has its answer.
func (l *accessLog) last() map[string]any {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) == 0 {
		return nil
	}
	m, err := parseRecord(l.lines[len(l.lines)-1])
	if err != nil {
		return map[string]any{"error": err.Error()}
	}
	return m
}

func parseRecord(line string) (map[string]any, error) {
	m := map[string]any{}
	d := json.NewDecoder(strings.NewReader(line))
	d.UseNumber()
	if err := d.Decode(&m); err != nil {
		return nil, err
	}
	if d.More() || !strings.HasSuffix(line, "}\n") || strings.Count(line, "\n") != 1 {
		return nil, errors.New("not one object and a newline")
	}
	if _, err := time.Parse(time.RFC3339Nano, m["time"].(string)); err != nil || m["level"] != "INFO" || m["msg"] != "request" {
		return nil, errors.New("not what every line has: " + line)
	}
	delete(m, "time")
	delete(m, "level")
	delete(m, "msg")
	for k, v := range m {
		n, ok := v.(json.Number)
		if !ok {
			continue
		}
		var err error
		if strings.Contains(n.String(), ".") {
			m[k], err = n.Float64()
		} else {
			m[k], err = n.Int64()
		}
		if err != nil {
			return nil, err
		}
	}
	return m, nil
}

// FuzzRecord: whatever a client or an engine chose, a record is one line, one JSON object in UTF-8, and says what it was given.
func FuzzRecord(f *testing.F) {
	f.Add("id", int64(1), int64(1500), true)
	f.Add("\"\\\n\r\x00\u2028<>&\xff\xc3", int64(-1), int64(-5), false)
	f.Fuzz(func(t *testing.T, text string, n, us int64, b bool) {
		var r record
		r.begin(time.Unix(1, 5))
		r.text("text", text)
		r.int("int", n)
		r.bool("bool", b)
		r.millis("millis", time.Duration(us)*time.Microsecond)
		r.count("count", sse.Count{Known: b, N: n})
		r = append(r, '}', '\n')
		got, err := parseRecord(string(r))
		if err != nil || !utf8.Valid(r) {
			t.Fatalf("%q: %v", r, err)
		}
		want := map[string]any{"text": string(bytes.ToValidUTF8([]byte(text), []byte("\ufffd"))), "int": n, "bool": b, "millis": got["millis"]}
		if !utf8.ValidString(text) { // how many U+FFFD a run of bad bytes becomes is not promised
			want["text"] = got["text"]
		}
		if b {
			want["count"] = n
		}
		if diff := cmpDiff(want, got); diff != "" {
			t.Error(diff)
		}
		if us := max(time.Duration(us)*time.Microsecond, 0).Microseconds(); us < 1<<50 && int64(got["millis"].(float64)*1000+0.5) != us {
			t.Errorf("%d µs are %v ms", us, got["millis"])
		}
	})
}
