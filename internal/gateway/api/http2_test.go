package api

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// TestHTTP2 holds that over HTTP/2 an answer may take longer to come than a client may take to read, before its head and within,
// and that a client which reads nothing is still ended.
func TestHTTP2(t *testing.T) {
	quick := rigOptions{HTTP2: true, Settings: func(s *Settings) { s.ClientStall = 5 * time.Second; s.BodyStall = 5 * time.Second }}
	t.Run("whole", func(t *testing.T) {
		bubble(t, quick, func(t *testing.T, r *rig) {
			r.engines[0].handler = func(w http.ResponseWriter, q *http.Request) {
				after(q, 12*time.Second)
				_, _ = io.WriteString(w, okAnswer)
			}
			if a := r.post(chatPath, chatBody); a.status != 200 || a.body != okAnswer {
				t.Errorf("got %+v", a)
			}
		})
	})
	t.Run("stream", func(t *testing.T) {
		bubble(t, quick, func(t *testing.T, r *rig) {
			r.engines[0].handler = func(w http.ResponseWriter, q *http.Request) {
				rc := startStream(w)
				for range 3 {
					after(q, 12*time.Second)
					_, _ = io.WriteString(w, "data: {}\n\n")
					_ = rc.Flush()
				}
				_, _ = io.WriteString(w, doneEvent)
			}
			want := strings.Repeat("data: {}\n\n", 3) + doneEvent
			if a := r.post(chatPath, streamed(chatBody)); a.status != 200 || a.body != want || a.err != nil {
				t.Errorf("got %+v", a)
			}
		})
	})
	t.Run("a client that reads nothing", func(t *testing.T) {
		bubble(t, quick, func(t *testing.T, r *rig) {
			ended := make(chan struct{})
			r.engines[0].handler = func(w http.ResponseWriter, _ *http.Request) {
				defer close(ended)
				rc := startStream(w)
				for {
					if _, err := io.WriteString(w, "data: "+strings.Repeat("x", 8000)+"\n\n"); err != nil || rc.Flush() != nil {
						return
					}
				}
			}
			resp, err := r.client.Post("http://gateway"+chatPath, "application/json", strings.NewReader(streamed(chatBody)))
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			<-ended // the engine's connection is closed when the client's time is over
			if took := time.Since(began); took < 4*time.Second || took > 11*time.Second {
				t.Errorf("it took %v", took)
			}
			_, err = io.Copy(io.Discard, resp.Body)
			if err == nil {
				t.Error("the answer looks whole")
			}
			_ = resp.Body.Close()
			synctest.Wait()
			r.wantSlowReader(true)
		})
	})
}

// TestHTTP2SlowBody: a body may take longer to come than a client may take to read, as long as something of it comes.
func TestHTTP2SlowBody(t *testing.T) {
	for path, text := range map[string]string{chatPath: chatBody, "/tokenize": `{"model":"m","prompt":"hello"}`} {
		t.Run(path, func(t *testing.T) {
			o := rigOptions{HTTP2: true, Settings: func(s *Settings) { s.ClientStall = 5 * time.Second; s.BodyStall = 5 * time.Second }}
			modelBubble(t, measured(t), o, func(t *testing.T, r *rig) {
				in, out := io.Pipe()
				r.wg.Go(func() {
					for i := range text {
						_, _ = io.WriteString(out, text[i:i+1]) // what is wrong shows in the answer
						<-time.After(4 * time.Second / 8)
					}
					_ = out.Close()
				})
				resp, err := r.client.Post("http://gateway"+path, "application/json", in)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = resp.Body.Close() }()
				if got, err := io.ReadAll(resp.Body); resp.StatusCode != 200 || err != nil {
					t.Errorf("got %d %s, %v", resp.StatusCode, got, err)
				}
			})
		})
	}
}

// TestHTTP2ReadsNothing: a client without a window for its answer is ended by its time-out, whatever it asked for and however short the answer is.
func TestHTTP2ReadsNothing(t *testing.T) {
	for name, c := range map[string]struct {
		path, text string
		told       bool // of, as a slow reader
	}{
		"an answer":        {chatPath, chatBody, true},
		"a stream":         {chatPath, streamed(chatBody), true},
		"a refusal":        {chatPath, "{}", false},
		"few tokens":       {"/tokenize", `{"model":"m","prompt":"hello"}`, false},
		"many tokens":      {"/tokenize", `{"model":"m","prompt":"` + strings.Repeat("hello ", 5000) + `"}`, true},
		"no tokens":        {"/tokenize", `{"model":"m"}`, false},
		"a text":           {"/v1/detokenize", `{"model":"m","tokens":[1,2,3]}`, false},
		"another path":     {"/nothing", "", false},
		"a list of models": {"/v1/models", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			modelBubble(t, measured(t), rigOptions{HTTP2: true}, func(t *testing.T, r *rig) {
				ended := readsNothing(t, r, c.path, c.text)
				r.pass(clientStall - time.Second)
				select {
				case <-ended:
					t.Error("its time was not over")
				default:
				}
				r.pass(2 * time.Second)
				select {
				case <-ended:
				default:
					t.Error("it still holds its place")
				}
				r.atRest()
				want := ""
				if c.told {
					want = "1"
				}
				if got := r.metric(`slow_readers_total{model="m"}`); got != want {
					t.Errorf("%q slow readers, want %q", got, want)
				}
			})
		})
	}
}

// readsNothing sends a request over a connection of its own, with no window for the answer. What it returns is closed when the stream is ended.
func readsNothing(t *testing.T, r *rig, path, text string) <-chan struct{} {
	t.Helper()
	conn, err := r.public.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f := http2.NewFramer(conn, conn)
	ended := make(chan struct{})
	r.wg.Go(func() {
		defer func() { _ = conn.Close() }()
		for {
			got, err := f.ReadFrame()
			if err != nil {
				return
			}
			if _, is := got.(*http2.RSTStreamFrame); is {
				close(ended)
				return
			}
		}
	})
	method := http.MethodPost
	if text == "" {
		method = http.MethodGet
	}
	var block bytes.Buffer
	coder := hpack.NewEncoder(&block)
	for i, all := 0, []string{":method", method, ":scheme", "http", ":authority", "x", ":path", path}; i < len(all); i += 2 {
		if err := coder.WriteField(hpack.HeaderField{Name: all[i], Value: all[i+1]}); err != nil {
			t.Fatal(err)
		}
	}
	_, err = io.WriteString(conn, http2.ClientPreface)
	steps := []func() error{
		func() error { return f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}) },
		f.WriteSettingsAck,
		func() error {
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: text == ""})
		},
	}
	for ; len(text) > 1<<14; text = text[1<<14:] {
		part := []byte(text[:1<<14])
		steps = append(steps, func() error { return f.WriteData(1, false, part) })
	}
	if text != "" {
		rest := []byte(text)
		steps = append(steps, func() error { return f.WriteData(1, true, rest) })
	}
	for _, step := range steps {
		if err == nil {
			err = step()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return ended
}

// after waits on the fake clock, or until the request ends.
func after(q *http.Request, d time.Duration) {
	select {
	case <-time.After(d):
	case <-q.Context().Done():
	}
}
