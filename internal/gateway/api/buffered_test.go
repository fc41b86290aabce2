package api

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestBodiesTogether holds that all request bodies together take no more than they may, declared or not, and that what is refused
// for it is told when to come again.
func TestBodiesTogether(t *testing.T) {
	few := rigOptions{Settings: func(s *Settings) { s.MaxBuffered = 100 << 10 }}
	bubble(t, few, func(t *testing.T, r *rig) {
		free := make(chan struct{})
		r.engines[0].handler = func(w http.ResponseWriter, _ *http.Request) {
			<-free
			_, _ = io.WriteString(w, okAnswer)
		}
		big := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", 60<<10) + `"}]}`
		first := make(chan answer, 1)
		go func() { first <- r.post(chatPath, big) }()
		synctest.Wait()
		for _, undeclared := range []bool{false, true} {
			var body io.Reader = strings.NewReader(big)
			if undeclared {
				body = io.MultiReader(body) // hides its length
			}
			resp, err := r.client.Post("http://gateway"+chatPath, "application/json", body)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "1" || !strings.Contains(string(text), `"gateway_overloaded"`) {
				t.Errorf("undeclared %v: %d %s", undeclared, resp.StatusCode, text)
			}
		}
		close(free)
		if a := <-first; a.status != 200 {
			t.Errorf("the first got %+v", a)
		}
		synctest.Wait()
		if a := r.post(chatPath, big); a.status != 200 {
			t.Errorf("afterwards: %+v", a)
		}
		r.pass(time.Second)
	})
}
