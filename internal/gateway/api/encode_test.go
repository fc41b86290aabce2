package api

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/tokens"
)

// TestEncodersAreBounded: while all places are taken a long text waits, a short one does not; who waits too long is measured by bytes, or
// told to come back.
func TestEncodersAreBounded(t *testing.T) {
	modelBubble(t, measured(t), rigOptions{Settings: func(s *Settings) { s.MaxBuffered = 64 << 20 }}, func(t *testing.T, r *rig) {
		long := strings.Repeat("hello ", longText/6+1)
		for range cap(r.s.encoders) {
			r.s.encoders <- struct{}{}
		}
		timed := func(path, text string, status int) time.Duration {
			t.Helper()
			began := time.Now()
			if a := r.post(path, text); a.status != status {
				t.Errorf("%s: %d %s", path, a.status, a.body)
			}
			return time.Since(began)
		}
		if took := timed("/tokenize", `{"model":"m","prompt":"hello"}`, 200); took != 0 {
			t.Errorf("a short text waited for %v", took)
		}
		if took := timed(chatPath, strings.Replace(chatBody, "hello", long, 1), 200); took != measurePatience {
			t.Errorf("a completion waited for %v", took)
		}
		if got := r.access.last()["input_source"]; got != "estimated" {
			t.Errorf("its length is %v", got)
		}
		r.wantNotEncoded(reasonNoPlace, "1")
		if took := timed("/v1/tokenize", `{"model":"m","prompt":"`+long+`"}`, 503); took != testSettings().RequestTimeout {
			t.Errorf("the question for tokens waited for %v", took)
		}
		if took := timed("/detokenize", `{"model":"m","tokens":[`+strings.Repeat("1,", longText)+`1]}`, 503); took != testSettings().RequestTimeout {
			t.Errorf("the question for text waited for %v", took)
		}
		<-r.s.encoders
		time.AfterFunc(time.Second, func() { <-r.s.encoders })
		r.s.encoders <- struct{}{}
		if took := timed("/v1/tokenize", `{"model":"m","prompt":"`+long+`"}`, 200); took != time.Second {
			t.Errorf("it was let in after %v, and the place was free after 1s", took)
		}
		for range cap(r.s.encoders) - 1 { // those that the test took; the requests have given theirs back
			<-r.s.encoders
		}
		for series, want := range map[string]string{
			`responses_total{method="POST",route="/v1/tokenize",status_code="503"}`: "1",
			`responses_total{method="POST",route="/tokenize",status_code="200"}`:    "1",
			`requests_total{method="POST",route="/v1/tokenize"}`:                    "2",
			`refused_total{code="gateway_overloaded"}`:                              "2",
		} {
			if got := r.metric(series); got != want {
				t.Errorf("%s is %q, want %s", series, got, want)
			}
		}
	})
}

// TestNoCompressedBodies: a coding is named, and not taken for broken JSON.
func TestNoCompressedBodies(t *testing.T) {
	bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
		r.wantError(r.post(chatPath, "\x1f\x8b\x08", "Content-Encoding", "gzip"), 415, "unsupported_content_encoding")
		if a := r.post(chatPath, chatBody, "Content-Encoding", "identity"); a.status != 200 {
			t.Errorf("identity: %d", a.status)
		}
	})
}

// TestChunkedRequestsEndTheConnection: a proxy before us may have read another end than we did (RFC 9112, 6.3).
func TestChunkedRequestsEndTheConnection(t *testing.T) {
	bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
		smuggled := "0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
		c, in := r.raw("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n" + smuggled)
		text := r.rest(in)
		if !strings.HasPrefix(text, "HTTP/1.1 400 ") || !strings.Contains(text, "\r\nConnection: close\r\n") || strings.Count(text, "HTTP/1.1") != 1 {
			t.Errorf("got %q", text)
		}
		_ = c.Close()
	})
}

// TestOddMethods: what the mux would answer in text is in the envelope.
func TestOddMethods(t *testing.T) {
	bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
		for line, want := range map[string]string{
			"CONNECT engine:80 HTTP/1.1": "HTTP/1.1 405 ",
			"GET * HTTP/1.1":             "HTTP/1.1 404 ",
		} {
			c, in := r.raw(line + "\r\nHost: x\r\nConnection: close\r\n\r\n")
			if text := r.rest(in); !strings.HasPrefix(text, want) || !strings.Contains(text, `{"error":{`) {
				t.Errorf("%s: %q", line, text)
			}
			_ = c.Close()
		}
	})
}

// TestEncodingCounts: what encoding works with counts while it is at it, in half of what requests may hold; where that has no room the length is estimated,
// and marked so. A question for tokens for which it never has room is too large.
func TestEncodingCounts(t *testing.T) {
	long := strings.Repeat("hello ", longText/6+1)
	prompt, values := `{"model":"m","prompt":"`+long+`"}`, `{"model":"m","messages":[{"role":"user","content":"x","more":[`+strings.Repeat("0,", 32<<10)+`0]}]}`
	for _, c := range []struct {
		buffered                      int64
		source, valuesSource, refused string
		counted                       string
	}{
		{64 << 20, "encoded", "rendered", "", ""},
		{16 << 20, "encoded", "estimated", "", "1"},
		{4 << 20, "estimated", "estimated", "request_too_large", "2"},
	} {
		o := rigOptions{Settings: func(s *Settings) { s.MaxBuffered, s.MaxBody = c.buffered, 1<<20 }}
		modelBubble(t, measured(t), o, func(t *testing.T, r *rig) {
			for _, q := range [][3]string{{"/v1/completions", prompt, c.source}, {chatPath, values, c.valuesSource}} {
				if a := r.post(q[0], q[1]); a.status != 200 {
					t.Errorf("%s: %+v", q[0], a)
				}
				if last := r.access.last(); last["input_source"] != q[2] {
					t.Errorf("%d MiB: %s is %v", c.buffered>>20, q[0], last["input_source"])
				}
			}
			if a := r.post("/tokenize", prompt); a.header.Get(headerErrorCode) != c.refused {
				t.Errorf("%d MiB: %+v", c.buffered>>20, a)
			}
			if n := r.s.buffered.Load(); n != 0 {
				t.Errorf("%d bytes are held", n)
			}
			r.wantNotEncoded(reasonNoMemory, c.counted)
		})
	}
}

// TestIDsCount: the ids of an input that are kept for its prefix, and their text where they are forwarded, count until the answer begins, and not behind it. Where ids that came
// as such have no room they are not looked up.
func TestIDsCount(t *testing.T) {
	const n = longText / 6
	long := strings.Repeat("hello ", n+1)
	given := `{"model":"m","prompt":[` + strings.Repeat("1,", n) + `1],"stream":true}`
	for _, c := range []struct {
		name, path, sent string
		forward          bool
		buffered         int64
		least            int64 // bytes of each token
		notEncoded       string
	}{
		{"a prompt", textPath, `{"model":"m","prompt":"` + long + `","stream":true}`, false, 64 << 20, idBytes, ""},
		{"a conversation that is forwarded", chatPath, streamed(strings.Replace(chatBody, "hello", long, 1)), true, 64 << 20, idBytes + idText, ""},
		{"ids", textPath, given, false, 64 << 20, idBytes, ""},
		{"ids without room", textPath, given, false, 80 << 10, 0, "1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			model := func(to *Model) { measured(t)(to); to.Prefixes, to.ForwardIDs = true, c.forward }
			o := rigOptions{Specs: plain(1, fleet.SGLang), Settings: func(s *Settings) { s.MaxBuffered = c.buffered }}
			modelBubble(t, model, o, func(t *testing.T, r *rig) {
				held, a := r.heldBefore(c.path, c.sent)
				if held -= int64(len(c.sent)); a.status != 200 {
					t.Errorf("got %+v", a)
				}
				ids := r.access.last()["input_tokens"].(int64)
				if held < c.least*ids || held > c.least*ids*5/4+4096 { // a list grows by a quarter at a time
					t.Errorf("%d bytes are held beside the body for %d ids", held, ids)
				}
				r.wantNotEncoded(reasonNoMemory, c.notEncoded)
			})
		})
	}
}

// TestDearConversations: a short request of which the template makes a long text has a place for that and what it works with counts, as with a long request. Without
// them its length is estimated, and a question for its tokens refused.
func TestDearConversations(t *testing.T) {
	m := tinyModel(t, `{% for m in messages %}{{ m.content | tojson(indent=4) }}{% endfor %}`)
	nested := strings.Repeat("[", 200) + "1" + strings.Repeat(",1", 200) + strings.Repeat("]", 200)
	dear := `{"model":"m","messages":[{"role":"user","content":` + nested + `}]}`
	for _, c := range []struct {
		buffered                int64
		held                    int64 // by others
		taken                   bool  // all places
		source, reason, refused string
	}{
		{1 << 30, 0, false, "rendered", "", ""},
		{1 << 30, 500 << 20, false, "estimated", reasonNoMemory, "gateway_overloaded"},
		{64 << 20, 0, false, "estimated", reasonNoMemory, "request_too_large"},
		{1 << 30, 0, true, "estimated", reasonNoPlace, "gateway_overloaded"},
	} {
		o := rigOptions{Settings: func(s *Settings) { s.MaxBuffered = c.buffered }}
		modelBubble(t, func(to *Model) { to.Tokens = m }, o, func(t *testing.T, r *rig) {
			r.s.buffered.Add(c.held)
			if c.taken {
				for range cap(r.s.encoders) {
					r.s.encoders <- struct{}{}
				}
			}
			if a := r.post(chatPath, chatBody); a.status != 200 || r.access.last()["input_source"] != "rendered" {
				t.Errorf("%+v: an ordinary one: %d, %v", c, a.status, r.access.last()["input_source"])
			}
			if a := r.post(chatPath, dear); a.status != 200 || r.access.last()["input_source"] != c.source {
				t.Errorf("%+v: %d, %v", c, a.status, r.access.last()["input_source"])
			}
			if a := r.post("/tokenize", dear); a.header.Get(headerErrorCode) != c.refused {
				t.Errorf("%+v: %d %v", c, a.status, a.header)
			}
			if c.reason != "" {
				r.wantNotEncoded(c.reason, "1")
			}
			if c.taken {
				for range cap(r.s.encoders) {
					<-r.s.encoders
				}
			}
			r.s.buffered.Add(-c.held)
			r.atRest()
		})
	}
}

// TestQuestionsCount: what a question to an engine is made with counts, too. Where there is no room for it none is asked.
func TestQuestionsCount(t *testing.T) {
	values := `{"model":"m","messages":[{"role":"user","content":"x","more":[` + strings.Repeat("0,", 32<<10) + `0]}]}`
	for buffered, source := range map[int64]string{64 << 20: "engine", 16 << 20: "estimated"} {
		o := rigOptions{Settings: func(s *Settings) { s.MaxBuffered, s.MaxBody = buffered, 1<<20 }}
		modelBubble(t, asking, o, func(t *testing.T, r *rig) {
			r.engines[0].handler = counter(`{"count":17}`)
			if a := r.post(chatPath, values); a.status != 200 || r.access.last()["input_source"] != source {
				t.Errorf("%d MiB: %d, %v", buffered>>20, a.status, r.access.last()["input_source"])
			}
			r.atRest()
		})
	}
}

// TestQuestionThatPanics: it gives its place back, as whatever else panics does.
func TestQuestionThatPanics(t *testing.T) {
	s := &Server{encoders: newEncoders()}
	e := encoding{c: &call{s: s, asked: &asked{}}}
	if !s.encoders.enter(t.Context(), longText, 0) {
		t.Fatal("no place")
	}
	e.size = longText
	defer func() {
		if recover() == nil || len(s.encoders) != 0 {
			t.Errorf("%d places are kept", len(s.encoders))
		}
	}()
	e.question(nil, nil)
}

// TestAnswersToQuestions: an engine lists a number for each token at most, and the rest is not read.
func TestAnswersToQuestions(t *testing.T) {
	modelBubble(t, asking, rigOptions{}, func(t *testing.T, r *rig) {
		for length, source := range map[int]string{templateTokens: "engine", 2 * askedToken * templateTokens: "estimated"} {
			r.engines[0].handler = counter(`{"tokens":"` + strings.Repeat("x", length) + `","count":17}`)
			if a := r.post(textPath, textBody); a.status != 200 || r.access.last()["input_source"] != source {
				t.Errorf("%d bytes: %d, %v", length, a.status, r.access.last()["input_source"])
			}
		}
	})
}

// wantNotEncoded checks how many requests' inputs were not encoded for a reason.
func (r *rig) wantNotEncoded(reason, want string) {
	r.t.Helper()
	if got := r.metric(`inputs_not_encoded_total{model="m",reason="` + reason + `"}`); got != want {
		r.t.Errorf("%q inputs were not encoded for %s, want %q", got, reason, want)
	}
}

// TestEncodingNeeds: what docs/operations.md says of long texts: how much one counts, and how many there is room for by default.
func TestEncodingNeeds(t *testing.T) {
	for _, c := range []struct{ text, needs, atOnce int64 }{{1, 34, 15}, {4, 106, 4}} {
		got := encodingNeeds(int(c.text<<20)) >> 20
		if got != c.needs || 512/got != c.atOnce {
			t.Errorf("%d MiB of text: %d MiB, %d at once", c.text, got, 512/got)
		}
	}
}

// TestHoldWork: all who hold work at once have half of what may be held, and never more.
func TestHoldWork(t *testing.T) {
	const work = 10
	s := &Server{}
	v := &served{}
	v.Settings.MaxBuffered = 2 * work
	var most atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			c := &call{s: s, v: v}
			for range 200_000 {
				if !c.holdWork(work) {
					continue
				}
				if n := s.buffered.Load(); n > most.Load() {
					most.Store(n)
				}
				c.giveBack(work)
			}
		})
	}
	wg.Wait()
	if n := most.Load(); n > work {
		t.Errorf("%d bytes were held, and half of what may be is %d", n, work)
	}
	if n := s.buffered.Load(); n != 0 {
		t.Errorf("%d bytes are held", n)
	}
}

// TestLongWords: a text with a word that nobody writes is not encoded. Its length is estimated, and said to be.
func TestLongWords(t *testing.T) {
	word := strings.Repeat("a", tokens.MaxWord+1)
	modelBubble(t, measured(t), rigOptions{Settings: func(s *Settings) { s.MaxBody, s.MaxBuffered = 1<<20, 1<<30 }}, func(t *testing.T, r *rig) {
		prompt, chat := `{"model":"m","prompt":"x `+word+`"}`, strings.Replace(chatBody, "hello", word, 1)
		for _, q := range [][2]string{{"/v1/completions", prompt}, {chatPath, chat}} {
			if a := r.post(q[0], q[1]); a.status != 200 {
				t.Fatalf("%+v", a)
			}
			if last := r.access.last(); last["input_source"] != "estimated" || last["input_exact"] == true || last["input_tokens"].(int64) < tokens.MaxWord/4 {
				t.Errorf("%s: %v", q[0], last)
			}
		}
		r.wantNotEncoded(reasonLongWord, "2")
		r.wantError(r.post("/tokenize", prompt), 400, "bad_request")
		r.wantError(r.post("/tokenize", `{"model":"m","messages":[{"role":"user","content":"`+word+`"}]}`), 400, "bad_request")
		if a := r.post("/tokenize", `{"model":"m","prompt":"`+word[1:]+`"}`); a.status != 200 {
			t.Errorf("a word of the greatest length: %d %.100s", a.status, a.body)
		}
	})
}
