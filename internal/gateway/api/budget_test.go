package api

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestTokenQuestionsCount: what questions for tokens have in memory counts among what all requests may hold, while they wait for a place and while
// their clients read nothing.
func TestTokenQuestionsCount(t *testing.T) {
	const most = 44 << 20
	o := rigOptions{Settings: func(s *Settings) { s.MaxBuffered = most }}
	ids := `{"model":"m","tokens":[` + strings.Repeat("100,", 200_000) + `1]}`
	for path, b := range map[string]string{
		"/tokenize":   `{"model":"m","prompt":"` + strings.Repeat("~ ", 200_000) + `"}`,
		"/detokenize": ids,
	} {
		t.Run("waiting"+path, func(t *testing.T) {
			modelBubble(t, measured(t), o, func(t *testing.T, r *rig) {
				for range cap(r.s.encoders) {
					r.s.encoders <- struct{}{}
				}
				const n = 64
				answers := make(chan answer, n)
				for range n {
					go func() { answers <- r.post(path, b) }()
					synctest.Wait()
				}
				wait := int64(n - len(answers))
				if held := r.s.buffered.Load(); wait == 0 || held > most || held < wait*int64(len(b)-64) {
					t.Errorf("%d wait, and hold %d bytes", wait, held)
				}
				for range cap(r.s.encoders) {
					<-r.s.encoders
				}
				for range n {
					if a := <-answers; a.status == 503 {
						r.wantError(a, 503, "gateway_overloaded")
					} else if a.status != 200 {
						t.Errorf("got %d %.100s", a.status, a.body)
					}
				}
			})
		})
		t.Run("slow"+path, func(t *testing.T) {
			modelBubble(t, measured(t), o, func(t *testing.T, r *rig) {
				conn, in := r.raw("POST " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " + itoa(len(b)) + "\r\n\r\n" + b)
				r.pass(clientStall - time.Second)
				held := r.s.buffered.Load()
				a := readAnswer(in)
				if a.status != 200 || a.err != nil {
					t.Fatalf("got %d %.100s, %v", a.status, a.body, a.err)
				}
				var got struct {
					Text   string
					Tokens []uint32
				}
				if err := json.Unmarshal([]byte(a.body), &got); err != nil {
					t.Fatal(err)
				}
				if want := int64(4*len(got.Tokens) + len(got.Text)); held < want || held > 2*want {
					t.Errorf("an answer of %d bytes holds %d", want, held)
				}
				_ = conn.Close()
				r.pass(time.Second)
			})
		})
	}
}

// TestAnswersInJSON: what is written in pieces is what encoding/json writes.
func TestAnswersInJSON(t *testing.T) {
	for _, s := range []string{
		"", "a", `"\` + "\x00\n<>&\u2028", strings.Repeat("é€😀", 3000), strings.Repeat("\x01", 9000), strings.Repeat("\xff", 3000),
		strings.Repeat("x", quotedAtOnce-1) + "😀", strings.Repeat("x", quotedAtOnce-2) + "\x80\x80\x80\x80\x80\x80",
	} {
		rec := httptest.NewRecorder()
		c := &call{w: rec, r: httptest.NewRequest("POST", "/", nil), v: &served{}, rc: *http.NewResponseController(rec)}
		a := c.beginJSON()
		a.quoted(s)
		a.end()
		if want, _ := json.Marshal(s); rec.Body.String() != string(want) {
			t.Errorf("%.40q is %.80s, want %.80s", s, rec.Body, want)
		}
	}
}

// TestDeclaredBodiesDoNotCount: clients that send a head, and hardly more, leave room for others.
func TestDeclaredBodiesDoNotCount(t *testing.T) {
	for _, sent := range []string{"", "{"} {
		bubble(t, rigOptions{Settings: func(s *Settings) { s.MaxBody, s.MaxBuffered = 32<<20, 64<<20 }}, func(t *testing.T, r *rig) {
			const n = 512
			for range n {
				c, _ := r.raw("POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nContent-Length: 33000000\r\n\r\n" + sent)
				defer func() { _ = c.Close() }()
			}
			synctest.Wait()
			if held := r.s.buffered.Load(); held > n*(onItsWord+1) || sent == "" && held > n*chunk {
				t.Errorf("with %q of their bodies here %d requests hold %d bytes", sent, n, held)
			}
			if a := r.post(chatPath, chatBody); a.status != 200 {
				t.Errorf("another gets %d %s", a.status, a.body)
			}
		})
	}
}

// TestMemoryByBody is the table of what a body takes at most while it comes, by its size, and holds that a declared one takes exactly that. Beside
// it a request has what it is scanned into, which does not depend on the size.
func TestMemoryByBody(t *testing.T) {
	for _, c := range []struct{ size, declared, undeclared int }{
		{1 << 10, chunk + 1<<10, chunk + 1<<10},
		{32 << 10, chunk + 32<<10 + 1, 3 * 32 << 10},
		{1 << 20, 256<<10 + 5 + 1<<20 + 1, 3 << 20},
		{32 << 20, 16<<20 + 341 + 32<<20 + 1, 2*32<<20 + 1},
	} {
		serves := func(t *testing.T, budget int, undeclared bool) (ok bool) {
			bubble(t, rigOptions{Settings: func(s *Settings) { s.MaxBody, s.MaxBuffered = 32<<20, int64(budget) }}, func(t *testing.T, r *rig) {
				text := `{"model":"m","prompt":"` + strings.Repeat("x", c.size-25) + `"}`
				req := r.request(t.Context(), "POST", textPath, text)
				if undeclared {
					req.Body, req.ContentLength = io.NopCloser(strings.NewReader(text)), -1
				}
				resp, err := r.client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				ok = resp.StatusCode == 200
			})
			return ok
		}
		t.Run(itoa(c.size), func(t *testing.T) {
			if !serves(t, c.declared, false) {
				t.Errorf("declared, it takes more than %d", c.declared)
			}
			if serves(t, c.declared-1, false) {
				t.Errorf("declared, it takes less than %d", c.declared)
			}
			if !serves(t, c.undeclared, true) {
				t.Errorf("undeclared, it takes more than %d", c.undeclared)
			}
		})
	}
}
