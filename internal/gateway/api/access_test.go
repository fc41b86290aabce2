package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/keyring"
	"github.com/perigee-llm/perigee/internal/gateway/policy"
)

const (
	keyAll   = "sk-secret-of-team-a"
	keyOther = "sk-secret-of-team-b"
)

// ring returns keys by name: all may use everything, other one model under its alias, and none a model that is not there.
func ring(t *testing.T) *keyring.Ring {
	t.Helper()
	r, err := keyring.New([]keyring.Key{
		{Name: "all", Digest: keyring.DigestOf(keyAll)},
		{Name: "other", Digest: keyring.DigestOf(keyOther), Models: []string{"other"}},
		{Name: "by-alias", Digest: keyring.DigestOf("sk-alias"), Models: []string{"nick"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// everything returns all that was logged, with its attributes.
func (l *records) everything() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	for _, rec := range l.list {
		b.WriteString(rec.Message)
		for a := range rec.Attrs {
			b.WriteString(" " + a.String())
		}
		b.WriteString("\n")
	}
	return b.String()
}

// TestKeys: who may ask what, and what the answer says of it.
func TestKeys(t *testing.T) {
	const missing, wrong = `Bearer realm="perigee"`, `Bearer realm="perigee", error="invalid_token"`
	bearer := func(k string) []string { return []string{"Authorization", "Bearer " + k} }
	models := `"id":"m"`
	for _, c := range []struct {
		name, method, path, body string
		header                   []string
		status                   int
		challenge, contains      string
	}{
		{"no key", "POST", chatPath, chatBody, nil, 401, missing, `"code":"invalid_api_key"`},
		{"no key, no body", "GET", chatPath, "", nil, 401, missing, ""},
		{"wrong key", "POST", chatPath, chatBody, bearer("sk-wrong"), 401, wrong, `"code":"invalid_api_key"`},
		{"empty key", "POST", chatPath, chatBody, bearer(""), 401, wrong, ""},
		{"key of another kind", "POST", chatPath, chatBody, []string{"Authorization", "Basic " + keyAll}, 401, wrong, ""},
		{"bare key", "POST", chatPath, chatBody, []string{"Authorization", keyAll}, 401, wrong, ""},
		{"two keys", "POST", chatPath, chatBody, append(bearer(keyAll), bearer(keyAll)...), 401, wrong, ""},
		{"very long key", "POST", chatPath, chatBody, bearer(strings.Repeat("k", 8000)), 401, wrong, ""},
		{"key elsewhere", "POST", chatPath, chatBody, []string{"X-Api-Key", keyAll}, 401, missing, ""},
		{"key", "POST", chatPath, chatBody, bearer(keyAll), 200, "", ""},
		{"key, lower case", "POST", textPath, textBody, []string{"Authorization", "bearer  " + keyAll}, 200, "", ""},
		{"key by alias", "POST", chatPath, chatBody, bearer("sk-alias"), 200, "", ""},
		{"another model's key", "POST", chatPath, chatBody, bearer(keyOther), 404, "", `"code":"model_not_found"`},
		{"a model that is not there", "POST", chatPath, strings.Replace(chatBody, `"m"`, `"x"`, 1), bearer(keyOther), 404, "", `"code":"model_not_found"`},
		{"models", "GET", "/v1/models", "", bearer(keyAll), 200, "", models},
		{"models, none", "GET", "/v1/models", "", nil, 401, missing, ""},
		{"models, by alias", "GET", "/v1/models", "", bearer("sk-alias"), 200, "", models},
		{"metrics", "GET", "/metrics", "", nil, 401, missing, ""},
		{"metrics with a key", "GET", "/metrics", "", bearer(keyOther), 200, "", "perigee_guards"},
		{"flush", "POST", "/flush_cache", "", nil, 401, missing, ""},
		{"nothing there", "GET", "/x", "", nil, 401, missing, ""},
		{"nothing there with a key", "GET", "/x", "", bearer(keyAll), 404, "", ""},
		{"health", "GET", "/healthz", "", nil, 200, "", ""},
		{"ready", "GET", "/readyz", "", nil, 200, "", `{"ready":true}`},
		{"ready, a key makes no difference", "GET", "/readyz", "", bearer(keyAll), 200, "", `{"ready":true}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := rigOptions{Keys: ring(t), Aliases: []string{"nick"}, Models: []string{"other"}, Settings: func(s *Settings) { s.PublicMetrics = true }}
			bubble(t, o, func(t *testing.T, r *rig) {
				a := r.do(c.method, c.path, c.body, c.header...)
				if a.status != c.status || a.header.Get("WWW-Authenticate") != c.challenge || !strings.Contains(a.body, c.contains) {
					t.Errorf("got %d %v %s", a.status, a.header, a.body)
				}
				if c.status == 401 && len(r.engines[0].calls()) != 0 {
					t.Error("the request went on")
				}
				if said := r.access.everything() + r.logs.everything() + r.scrape("/metrics") + r.scrape("/debug/decisions") + a.body; strings.Contains(said, "sk-") {
					t.Errorf("a key is told: %s", said)
				}
			})
		})
	}
}

// TestModelsByKey: a key lists the models that it may use, and no others.
func TestModelsByKey(t *testing.T) {
	bubble(t, rigOptions{Keys: ring(t), Aliases: []string{"nick"}, Models: []string{"other"}}, func(t *testing.T, r *rig) {
		for key, want := range map[string]string{keyAll: "m nick other", keyOther: "other", "sk-alias": "m nick"} {
			a := r.do("GET", "/v1/models", "", "Authorization", "Bearer "+key)
			var got []string
			for _, name := range []string{"m", "nick", "other"} {
				if strings.Contains(a.body, `"id":"`+name+`"`) {
					got = append(got, name)
				}
			}
			if strings.Join(got, " ") != want {
				t.Errorf("%s lists %v", key, got)
			}
		}
	})
}

// TestKeyNames: the log and a metric have a key's name, also for what the key may not do, and none for a key that is not known.
func TestKeyNames(t *testing.T) {
	bubble(t, rigOptions{Keys: ring(t), Models: []string{"other"}}, func(t *testing.T, r *rig) {
		for _, c := range []struct {
			key, name string
			status    string
		}{{keyAll, "all", "200"}, {keyOther, "other", "404"}, {"sk-wrong", "", ""}} {
			r.post(chatPath, chatBody, "Authorization", "Bearer "+c.key)
			synctest.Wait()
			if got, _ := r.access.last()["key"].(string); got != c.name {
				t.Errorf("the log calls %s %q", c.key, got)
			}
			if got := r.metric(`api_key_requests_total{key="` + c.name + `",status_code="` + c.status + `"}`); c.name != "" && got != "1" {
				t.Errorf("the metric for %s is %q", c.name, got)
			}
		}
		if got := r.access.last()["model"]; got != nil {
			t.Errorf("a stranger's request is logged with model %v", got)
		}
		// A key that is gone takes its series with it.
		only, err := keyring.New([]keyring.Key{{Name: "other", Digest: keyring.DigestOf(keyOther)}})
		if err != nil {
			t.Fatal(err)
		}
		next := r.s.current.Load().Config
		next.Keys = only
		if err := r.s.Apply(next); err != nil {
			t.Fatal(err)
		}
		page := r.scrape("/metrics")
		if strings.Contains(page, `key="all"`) || !strings.Contains(page, `key="other"`) {
			t.Error("the series of the keys are not those of the keys that are there")
		}
	})
}

// TestAuthorizationStaysHere: an engine sees the client's Authorization only where it is not a key of ours, or by configuration; neither
// do aborts carry it.
func TestAuthorizationStaysHere(t *testing.T) {
	for _, c := range []struct {
		name    string
		keys    bool
		forward bool
		want    string
	}{{"no keys", false, false, "Bearer " + keyAll}, {"keys", true, false, ""}, {"keys, forwarded", true, true, "Bearer " + keyAll}} {
		t.Run(c.name, func(t *testing.T) {
			o := rigOptions{Specs: plain(1, fleet.SGLang), Settings: func(s *Settings) { s.ForwardAuthorization = c.forward }}
			if c.keys {
				o.Keys = ring(t)
			}
			bubble(t, o, func(t *testing.T, r *rig) {
				if a := r.post(chatPath, chatBody, "Authorization", "Bearer "+keyAll); a.status != 200 {
					t.Fatalf("%+v", a)
				}
				if got := r.engines[0].calls()[0].header.Get("Authorization"); got != c.want {
					t.Errorf("the engine saw %q", got)
				}
			})
		})
	}
}

// TestAdminKeys: the admin handler has keys of its own, which are never passed on, whatever is said of the public ones.
func TestAdminKeys(t *testing.T) {
	bubble(t, rigOptions{Settings: func(s *Settings) { s.ForwardAuthorization = true }}, func(t *testing.T, r *rig) {
		next := r.s.current.Load().Config
		next.AdminKeys = ring(t)
		if err := r.s.Apply(next); err != nil {
			t.Fatal(err)
		}
		ask := func(method, path, auth string) int {
			w, q := httptest.NewRecorder(), httptest.NewRequest(method, path, nil)
			if auth != "" {
				q.Header.Set("Authorization", auth)
			}
			r.s.Admin().ServeHTTP(w, q)
			return w.Code
		}
		for _, path := range []string{"/metrics", "/debug/workers", "/debug/decisions", "/flush_cache", "/x"} {
			if got := ask("GET", path, ""); got != 401 {
				t.Errorf("%s without a key: %d", path, got)
			}
		}
		if a, b, c := ask("GET", "/healthz", ""), ask("GET", "/readyz", ""), ask("GET", "/metrics", "Bearer "+keyAll); a != 200 || b != 200 || c != 200 {
			t.Errorf("health %d, ready %d, metrics with a key %d", a, b, c)
		}
		if got := ask("POST", "/flush_cache", "Bearer "+keyAll); got != 200 {
			t.Errorf("flush: %d", got)
		}
		for _, call := range r.engines[0].calls() {
			if len(call.header["Authorization"]) != 0 {
				t.Errorf("%s reached the engine with the operator's key", call.path)
			}
		}
		if len(r.engines[0].calls()) == 0 {
			t.Error("the engine was not flushed")
		}
		if a := r.post(chatPath, chatBody); a.status != 200 {
			t.Errorf("the public side asks for a key: %+v", a)
		}
	})
}

// TestRequestsEndUnderTheirConfiguration: what began before a change ends under the limits, keys and engines that it began with.
func TestRequestsEndUnderTheirConfiguration(t *testing.T) {
	bubble(t, rigOptions{Specs: plain(2, fleet.VLLM), Settings: func(s *Settings) { s.Stale, s.RequestTimeout = 100*time.Second, time.Hour }}, func(t *testing.T, r *rig) {
		arrived := make(chan struct{})
		leave := make(chan struct{})
		r.engines[0].handler = func(w http.ResponseWriter, q *http.Request) {
			close(arrived)
			<-leave
			panic(http.ErrAbortHandler) // the first engine breaks, so that another is looked for after the change
		}
		first := make(chan answer, 1)
		go func() { first <- r.post(chatPath, chatBody) }()
		<-arrived

		// The next configuration has no engines, a key, and a short life for requests.
		next := r.s.current.Load().Config
		empty, err := bucket.NewResolver([]*bucket.Bucket{bucket.NewPlain("none", 0, bucket.Range{}, bucket.NewGroup("m", fleet.Plain, []string{}, policy.NewRoundRobin(policy.Limits{})))})
		if err != nil {
			t.Fatal(err)
		}
		next.Models = []*Model{{ID: "m", Resolver: empty}}
		next.Settings.Stale = 5 * time.Second
		next.Keys = ring(t)
		if err := r.s.Apply(next); err != nil {
			t.Fatal(err)
		}
		for _, e := range r.engines {
			r.reg.Remove(e.id)
		}
		if a := r.post(chatPath, chatBody); a.status != 401 {
			t.Errorf("a new request without a key: %+v", a)
		}
		r.pass(50 * time.Second) // ten lives of the new configuration
		close(leave)
		if a := <-first; a.status != 200 {
			t.Errorf("the request of before: %+v", a)
		}
		if n := len(r.engines[1].calls()); n != 1 {
			t.Errorf("the second engine was asked %d times", n)
		}
		r.pass(20 * time.Second)
		r.s.retired.Lock()
		defer r.s.retired.Unlock()
		if n := len(r.s.retired.list); n != 0 {
			t.Errorf("%d configurations are kept though nothing is under way", n)
		}
	})
}

// TestApplyRefuses: an error changes nothing.
func TestApplyRefuses(t *testing.T) {
	bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
		before := r.s.current.Load()
		next := before.Config
		next.Models = append(next.Models, &Model{ID: "x", Aliases: []string{"m"}, Resolver: before.Models[0].Resolver})
		if err := r.s.Apply(next); err == nil || r.s.current.Load() != before || before.pinned.Load() != nil {
			t.Errorf("got %v", err)
		}
	})
}
