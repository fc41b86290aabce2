package api

import (
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// TestPrefillAccount: a prompt counts as in prefill until the first byte of a stream, and an answer that comes as a whole until its
// end, of which it is known that nobody sees its first token.
func TestPrefillAccount(t *testing.T) {
	bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
		e := r.engines[0]
		account := func() load.Prefill { return e.worker.Load.Prefill(time.Now()) }
		next := make(chan struct{})
		e.handler = func(w http.ResponseWriter, _ *http.Request) {
			rc := startStream(w)
			for range 2 {
				<-next
				_, _ = io.WriteString(w, event("x"))
				_ = rc.Flush()
			}
			_, _ = io.WriteString(w, doneEvent)
		}
		resp, err := r.open(t.Context(), streamed(chatBody))
		if err != nil {
			t.Fatal(err)
		}
		if p := account(); p.Tokens == 0 || p.Tokens != e.worker.Load.PrefillTokens() || p.HeadUnseen {
			t.Errorf("before the first token: %+v of %d tokens", p, e.worker.Load.PrefillTokens())
		}
		next <- struct{}{}
		synctest.Wait()
		if p := account(); p.Tokens != 0 || e.worker.Load.Active() != 1 {
			t.Errorf("after the first token: %+v, %d active", p, e.worker.Load.Active())
		}
		next <- struct{}{}
		if _, err := io.ReadAll(resp.Body); err != nil {
			t.Fatal(err)
		}

		var whole load.Prefill
		e.handler = func(w http.ResponseWriter, _ *http.Request) {
			whole = account()
			_, _ = io.WriteString(w, okAnswer)
		}
		r.post(chatPath, chatBody)
		if whole.Tokens == 0 || !whole.HeadUnseen {
			t.Errorf("a whole answer: %+v", whole)
		}
		if p := account(); p.Tokens != 0 {
			t.Errorf("at rest: %+v", p)
		}
	})
}
