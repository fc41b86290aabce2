package api

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
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

// after waits on the fake clock, or until the request ends.
func after(q *http.Request, d time.Duration) {
	select {
	case <-time.After(d):
	case <-q.Context().Done():
	}
}
