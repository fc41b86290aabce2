package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/trace"
)

// gatewayFunc is a gateway without sockets, so that the player runs on the fake clock.
type gatewayFunc func(*http.Request) (*http.Response, error)

func (f gatewayFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// answerAfter is a stream whose first token comes after a while.
type answerAfter struct {
	wait time.Duration
	text io.Reader
}

func (a *answerAfter) Read(p []byte) (int, error) {
	<-time.After(a.wait) // on the fake clock
	a.wait = 0
	return a.text.Read(p)
}

func (a *answerAfter) Close() error { return nil }

const (
	tokenEvent = `data: {"choices":[{"index":0,"text":" a"}],"usage":null}` + "\n\n"
	doneEvent  = "data: [DONE]\n\n"
)

func usageEvent(prompt, cached, completion int) string {
	return fmt.Sprintf(`data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}}`+"\n\n",
		prompt, completion, cached)
}

func stream(wait time.Duration, events ...string) *http.Response {
	return &http.Response{StatusCode: http.StatusOK, Body: &answerAfter{wait, strings.NewReader(strings.Join(events, ""))}}
}

// requests arrive after so many seconds of the trace each, with an answer of one token.
func requests(seconds ...int) (reqs []trace.Request) {
	for i, s := range seconds {
		reqs = append(reqs, trace.Request{
			Arrival: time.Duration(s) * time.Second, InputTokens: 3, OutputTokens: 1, Blocks: []uint64{uint64(i)},
		})
	}
	return reqs
}

func TestPlaySendsWhenTheTraceSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var mu sync.Mutex
		sent := map[string]time.Duration{}
		p := player{speed: 10, url: "http://gateway", transport: gatewayFunc(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			sent[r.Header.Get("X-Request-Id")] = time.Since(start)
			return stream(7*time.Second, tokenEvent, usageEvent(3, 2, 1), doneEvent), nil
		})}
		ended := 0
		// The answers take longer than the arrivals are apart: a slow gateway does not slow the client.
		out := p.play(t.Context(), requests(5, 5, 15, 45), func(o *outcome) {
			mu.Lock()
			defer mu.Unlock()
			ended++
		})
		for id, want := range map[string]time.Duration{"demo-1": 0, "demo-2": 0, "demo-3": time.Second, "demo-4": 4 * time.Second} {
			if sent[id] != want {
				t.Errorf("%s was sent after %v, want %v", id, sent[id], want)
			}
		}
		for i, o := range out {
			if o.err != nil || o.late != 0 || o.ttft != 7*time.Second || o.prompt != load.Known(3) || o.cached != load.Known(2) || o.completion != load.Known(1) {
				t.Errorf("request %d: %+v", i+1, o)
			}
		}
		if ended != len(out) {
			t.Errorf("done was called %d times, want %d", ended, len(out))
		}
	})
}

// TestLateIsWaiting: what a client that falls behind makes a request wait is part of its time to first token.
func TestLateIsWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := player{speed: 1, url: "http://gateway", transport: gatewayFunc(func(*http.Request) (*http.Response, error) {
			return stream(7*time.Second, tokenEvent, usageEvent(3, 2, 1), doneEvent), nil
		})}
		var o outcome
		p.send(t.Context(), 1, nil, time.Now().Add(-2*time.Second), &o)
		if o.err != nil || o.late != 2*time.Second || o.ttft != 9*time.Second {
			t.Errorf("%+v, want 2 s late and 9 s to the first token", o)
		}
	})
}

func TestPlayStopsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		p := player{speed: 1, url: "http://gateway", transport: gatewayFunc(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})}
		out := p.play(ctx, requests(0, 1, 60), func(*outcome) {})
		if got := []string{errorKind(out[0].err), errorKind(out[1].err), errorKind(out[2].err)}; !slices.Equal(got,
			[]string{"no whole answer in time", "no whole answer in time", errNotSent.Error()}) {
			t.Errorf("%q", got)
		}
	})
}

func TestAnswersThatAreErrors(t *testing.T) {
	for _, tt := range []struct {
		name string
		res  *http.Response
		err  error
		want string
	}{
		{"good", stream(0, tokenEvent, usageEvent(3, 0, 1), doneEvent), nil, ""},
		{"comments and empty lines", stream(0, ": ping\n\n", tokenEvent, "\r\n", usageEvent(3, 0, 1), doneEvent), nil, ""},
		{"no end", stream(0, tokenEvent, usageEvent(3, 0, 1)), nil, errBroken.Error()},
		{"nothing", stream(0), nil, errBroken.Error()},
		{"error inside", stream(0, tokenEvent, `data: {"error":{"message":"reset"}}`+"\n\n", doneEvent), nil, errBroken.Error()},
		{"a line without end", stream(0, "data: "+strings.Repeat("x", 2*maxEvent)), nil, errBroken.Error()},
		{"too few tokens", stream(0, tokenEvent, usageEvent(3, 0, 0), doneEvent), nil, errWrong.Error()},
		{"no usage", stream(0, tokenEvent, doneEvent), nil, errWrong.Error()},
		{"refused", &http.Response{StatusCode: 503, Body: io.NopCloser(strings.NewReader("busy"))}, nil, "status 503"},
		{"unreachable", nil, errors.New("dial tcp 127.0.0.1:3: connection refused"), "no answer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := player{speed: 1, url: "http://gateway", transport: gatewayFunc(func(*http.Request) (*http.Response, error) { return tt.res, tt.err })}
			got := ""
			if o := p.play(t.Context(), requests(0), func(*outcome) {})[0]; o.err != nil {
				got = errorKind(o.err)
			}
			if got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// TestUsageWithoutCachedTokens: what an engine does not tell is unknown, and so is the sum.
func TestUsageWithoutCachedTokens(t *testing.T) {
	for _, details := range []string{"", `,"prompt_tokens_details":null`, `,"prompt_tokens_details":{"cached_tokens":null}`} {
		var o outcome
		err := readAnswer(strings.NewReader(`data: {"usage":{"prompt_tokens":3,"completion_tokens":1`+details+"}}\n\n"+doneEvent), time.Now(), &o)
		if err != nil || o.cached.IsKnown() || !o.prompt.IsKnown() {
			t.Errorf("%s: %+v, %v", details, o, err)
		}
	}
}

func TestRequestBody(t *testing.T) {
	var got struct {
		Model         string
		Stream        bool
		StreamOptions struct {
			IncludeUsage bool `json:"include_usage"`
		} `json:"stream_options"`
		MaxTokens int `json:"max_tokens"`
		Prompt    []uint32
	}
	if err := json.Unmarshal(requestBody([]uint32{7, 128255, 0}, 9), &got); err != nil {
		t.Fatal(err)
	}
	if got.Model != Model || !got.Stream || !got.StreamOptions.IncludeUsage || got.MaxTokens != 9 || !slices.Equal(got.Prompt, []uint32{7, 128255, 0}) {
		t.Errorf("%+v", got)
	}
}

// FuzzReadAnswer: whatever a gateway sends, an answer without its end mark is no answer, and a token is needed for a time to
// the first token.
func FuzzReadAnswer(f *testing.F) {
	f.Add(tokenEvent + usageEvent(3, 2, 1) + doneEvent)
	f.Add(tokenEvent)
	f.Add(`data: {"error":{}}` + "\n" + doneEvent)
	f.Add(`data: {"usage":{"prompt_tokens":-1}}` + "\n\n" + doneEvent)
	f.Add("\n\r\ndata:\n: x\ndata: [DONE]")
	f.Fuzz(func(t *testing.T, text string) {
		var o outcome
		err := readAnswer(strings.NewReader(text), time.Now().Add(-time.Second), &o)
		if err == nil && !strings.Contains(text, "data: [DONE]") {
			t.Error("an answer without its end mark passed")
		}
		if (o.ttft > 0 || o.prompt.IsKnown()) && !strings.Contains(text, "data: ") {
			t.Error("figures out of nothing")
		}
	})
}
