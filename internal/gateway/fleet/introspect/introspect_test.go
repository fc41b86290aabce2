package introspect_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/ask"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/introspect"
)

// fake is an engine: what it answers to each path, in turn; the last answer stays. An absent path is a 404.
//
//	"200 BODY", "503", "cut BODY", "reset", "hang"
type fake struct {
	answers map[string][]string
	asked   []string // path and, in tests that look at it, time
	began   time.Time
}

func (f *fake) RoundTrip(r *http.Request) (*http.Response, error) {
	path := r.URL.Path
	f.asked = append(f.asked, fmt.Sprintf("%s@%v", path, time.Since(f.began)))
	list := f.answers[path]
	if len(list) == 0 {
		list = []string{"404 {\"detail\":\"Not Found\"}"}
	}
	if len(list) > 1 {
		f.answers[path] = list[1:]
	}
	word, body, _ := strings.Cut(list[0], " ")
	resp := &http.Response{StatusCode: 200, ContentLength: -1, Body: io.NopCloser(strings.NewReader(body)), Request: r}
	switch word {
	case "hang":
		<-r.Context().Done()
		return nil, r.Context().Err()
	case "reset":
		return nil, errors.New("connection reset by peer")
	case "cut":
		resp.Body = io.NopCloser(io.MultiReader(strings.NewReader(body), iotest.ErrReader(io.ErrUnexpectedEOF)))
	default:
		if _, err := fmt.Sscan(word, &resp.StatusCode); err != nil {
			panic(err)
		}
	}
	return resp, nil
}

func read(t *testing.T, f *fake, target introspect.Target) (fleet.Spec, error) {
	t.Helper()
	f.began = time.Now()
	return introspect.Read(t.Context(), &http.Client{Transport: f}, target)
}

func show(s fleet.Spec) string {
	models := slices.Clone(s.Models)
	for i, m := range models {
		if slices.Contains(s.Adapters, m) {
			models[i] = m + ":" + s.Base() // an adapter and its base model
		}
	}
	text := fmt.Sprintf("%s %s models=%s ranks=%d context=%s port=%s version=%s", s.Kind, s.Stage, strings.Join(models, ","), s.Ranks, s.MaxContext, s.BootstrapPort, s.Version)
	if s.PageSize.IsKnown() {
		text += " page=" + s.PageSize.String()
	}
	if s.Bigram {
		text += " bigram"
	}
	return text
}

func file(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func models(entries ...string) string {
	return `200 {"object":"list","data":[` + strings.Join(entries, ",") + `]}`
}

func TestRead(t *testing.T) {
	const (
		vllm    = `{"id":"m","owned_by":"vllm","parent":null,"max_model_len":4096}`
		adapter = `{"id":"lora-a","owned_by":"vllm","parent":"m","max_model_len":null}`
		sglang  = `{"id":"m","owned_by":"sglang","max_model_len":2048}`
	)
	info := func(fields string) string { return `200 {"served_model_name":"m",` + fields + `"x":{"any":[1]}}` }
	for _, c := range []struct {
		name                  string
		stage                 fleet.Stage
		info, models, version string // "": 404
		want                  string
		err                   error
	}{
		{name: "sglang", info: info(`"disaggregation_mode":"null","disaggregation_bootstrap_port":8998,"dp_size":2,"version":"0.5.23","context_length":null,`), models: models(sglang),
			want: "sglang plain models=m ranks=2 context=2048 port=unknown version=0.5.23"},
		{name: "sglang as it was captured", info: "200 " + strings.Replace(file(t, "sglang_0.5.23_server_info_kept_keys.json"), "{", `{"served_model_name":"tiny","disaggregation_mode":"null","dp_size":1,"version":"0.5.23",`, 1),
			models: "200 " + file(t, "sglang_0.5.23_models.json"), want: "sglang plain models=tiny ranks=1 context=2048 port=unknown version=0.5.23"},
		{name: "pages", info: info(`"page_size":64,"speculative_algorithm":"eagle3",`), want: "sglang plain models=m ranks=0 context=unknown port=unknown version= page=64 bigram"},
		{name: "pages without guessing", info: info(`"page_size":1,"speculative_algorithm":"NGRAM",`), want: "sglang plain models=m ranks=0 context=unknown port=unknown version= page=1"},
		{name: "no page at all", info: info(`"page_size":0,`), err: ask.ErrMalformed},
		{name: "the smaller limit counts", info: info(`"context_length":1024,`), models: models(sglang), want: "sglang plain models=m ranks=0 context=1024 port=unknown version="},
		{name: "model_path stands in", info: `200 {"model_path":"/models/m"}`, want: "sglang plain models=/models/m ranks=0 context=unknown port=unknown version="},
		{name: "null and empty names too", info: `200 {"served_model_name":null,"model_path":"p"}`, want: "sglang plain models=p ranks=0 context=unknown port=unknown version="},
		{name: "plain overrides discovery", stage: fleet.Prefill, info: info(`"disaggregation_mode":"null",`), want: "sglang plain models=m ranks=0 context=unknown port=unknown version="},
		{name: "decode", info: info(`"disaggregation_mode":"decode","disaggregation_bootstrap_port":8998,`), want: "sglang decode models=m ranks=0 context=unknown port=unknown version="},
		{name: "prefill", info: info(`"disaggregation_mode":"prefill","disaggregation_bootstrap_port":8998,`), want: "sglang prefill models=m ranks=0 context=unknown port=8998 version="},
		{name: "prefill without a port", info: info(`"disaggregation_mode":"prefill",`), want: "sglang prefill models= ranks=0 context=unknown port=unknown version=", err: introspect.ErrUnroutable},
		{name: "prefill with port 0", info: info(`"disaggregation_mode":"prefill","disaggregation_bootstrap_port":0,`), want: "sglang prefill models= ranks=0 context=unknown port=unknown version=", err: introspect.ErrUnroutable},
		{name: "prefill with a silly port", info: info(`"disaggregation_mode":"prefill","disaggregation_bootstrap_port":65536,`), want: "sglang prefill models= ranks=0 context=unknown port=unknown version=", err: introspect.ErrUnroutable},
		{name: "no mode keeps discovery's", stage: fleet.Decode, info: info(``), want: "sglang decode models=m ranks=0 context=unknown port=unknown version="},
		{name: "null mode keeps discovery's", stage: fleet.Decode, info: info(`"disaggregation_mode":null,`), want: "sglang decode models=m ranks=0 context=unknown port=unknown version="},
		{name: "unknown mode keeps discovery's, which needs its port", stage: fleet.Prefill, info: info(`"disaggregation_mode":"both","disaggregation_bootstrap_port":9,`), want: "sglang prefill models=m ranks=0 context=unknown port=9 version="},
		{name: "keys are case-sensitive", info: `200 {"Served_Model_Name":"x","served_model_name":"m"}`, want: "sglang plain models=m ranks=0 context=unknown port=unknown version="},
		{name: "a port that nobody needs may be anything", info: info(`"disaggregation_mode":"null","disaggregation_bootstrap_port":"x",`), want: "sglang plain models=m ranks=0 context=unknown port=unknown version="},
		{name: "silly ranks are unknown", info: info(`"dp_size":5000,`), want: "sglang plain models=m ranks=0 context=unknown port=unknown version="},
		{name: "sglang that hides /server_info", models: models(sglang), want: "sglang plain models=m ranks=0 context=2048 port=unknown version="},

		{name: "vllm", models: models(vllm, adapter), version: `200 {"version":"0.32.0"}`, want: "vllm plain models=m,lora-a:m ranks=0 context=4096 port=unknown version=0.32.0"},
		{name: "vllm prefill needs no port", stage: fleet.Prefill, models: models(vllm), want: "vllm prefill models=m ranks=0 context=4096 port=unknown version="},
		{name: "vllm in development mode", info: `200 {"vllm_config":"…"}`, models: models(vllm), version: "200 7", want: "vllm plain models=m ranks=0 context=4096 port=unknown version="},
		{name: "vllm that keeps its version to itself", models: models(vllm), version: "403", want: "vllm plain models=m ranks=0 context=4096 port=unknown version="},
		{name: "another family", models: models(`{"id":"m","owned_by":"library"}`), want: "unknown plain models=m ranks=0 context=unknown port=unknown version="},
		{name: "a family that says nothing", models: models(`{"id":"m"}`), want: "unknown plain models=m ranks=0 context=unknown port=unknown version="},
		{name: "a model twice", models: models(vllm, vllm), want: "vllm plain models=m ranks=0 context=4096 port=unknown version="},
		{name: "no models", models: models(), want: "unknown plain models= ranks=0 context=unknown port=unknown version=", err: introspect.ErrUnroutable},

		{name: "no engine", err: ask.ErrStatus},
		{name: "server_info refused", info: "401", models: models(vllm), err: ask.ErrStatus},
		{name: "models refused", info: info(``), models: "403", err: ask.ErrStatus},
		{name: "server_info is a list", info: `200 []`, err: ask.ErrMalformed},
		{name: "server_info is null", info: `200 null`, err: ask.ErrMalformed},
		{name: "server_info is a page", info: `200 <html>`, err: ask.ErrMalformed},
		{name: "a name that is none", info: `200 {"served_model_name":7}`, err: ask.ErrMalformed},
		{name: "a mode that is none", info: info(`"disaggregation_mode":1,`), err: ask.ErrMalformed},
		{name: "ranks that are none", info: info(`"dp_size":"two",`), err: ask.ErrMalformed},
		{name: "no ranks at all", info: info(`"dp_size":0,`), err: ask.ErrMalformed},
		{name: "half a rank", info: info(`"dp_size":1.5,`), err: ask.ErrMalformed},
		{name: "a prefill's port that is none", info: info(`"disaggregation_mode":"prefill","disaggregation_bootstrap_port":"x",`), err: ask.ErrMalformed},
		{name: "models without a list", models: `200 {"data":null}`, err: ask.ErrMalformed},
		{name: "models with a map", models: `200 {"data":{}}`, err: ask.ErrMalformed},
		{name: "a model that is a string", models: models(`"m"`), err: ask.ErrMalformed},
		{name: "a model without an id", models: models(`{"owned_by":"vllm"}`), err: ask.ErrMalformed},
		{name: "a length that is none", models: models(`{"id":"m","max_model_len":-1}`), err: ask.ErrMalformed},
		{name: "more models than an engine has", models: models(strings.Repeat(`{"id":"m"},`, 4096) + `{"id":"m"}`), err: ask.ErrMalformed},
		{name: "too long", models: "200 " + strings.Repeat(" ", 1<<20) + "1", err: ask.ErrTooLarge},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fake{answers: map[string][]string{}}
			for path, a := range map[string]string{"/server_info": c.info, "/v1/models": c.models, "/version": c.version} {
				if a != "" {
					f.answers[path] = []string{a}
				}
			}
			got, err := read(t, f, introspect.Target{ID: "e", URL: "http://engine:1", Stage: c.stage})
			if !errors.Is(err, c.err) || (err != nil) != (c.err != nil) {
				t.Fatalf("err %v, want %v", err, c.err)
			}
			if c.want == "" {
				if d := cmp.Diff(fleet.Spec{}, got, cmp.Comparer(fleet.Spec.Equal)); d != "" {
					t.Errorf("a failed read says something: %s", d)
				}
				return
			}
			if got.ID != "e" || got.URL != "http://engine:1" {
				t.Errorf("got id %q, url %q", got.ID, got.URL)
			}
			if d := cmp.Diff(c.want, show(got)); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestRetries holds how often and when a question is asked again.
func TestRetries(t *testing.T) {
	const ok = `200 {"served_model_name":"m"}`
	for _, c := range []struct {
		name    string
		answers []string
		asked   string // of /server_info
		err     error
	}{
		{"reset once", []string{"reset", ok}, "0s 100ms", nil},
		{"reset twice", []string{"reset", "reset", ok}, "0s 100ms 300ms", nil},
		{"reset always", []string{"reset"}, "0s 100ms 300ms", ask.ErrUnreachable},
		{"5xx, then cut", []string{"500", `cut {"served_model_name":"m"}`, ok}, "0s 100ms 300ms", nil},
		{"cut always, though it parses", []string{"cut " + strings.TrimPrefix(ok, "200 ")}, "0s 100ms 300ms", ask.ErrUnreachable},
		{"hangs", []string{"hang"}, "0s 2.1s 4.3s", ask.ErrUnreachable},
		{"4xx is final", []string{"400", ok}, "0s", ask.ErrStatus},
		{"bad JSON is final", []string{"200 {", ok}, "0s", ask.ErrMalformed},
		{"a redirect is final", []string{"302", ok}, "0s", ask.ErrStatus},
		{"too long is final", []string{"200 " + strings.Repeat(" ", 1<<20) + "1", ok}, "0s", ask.ErrTooLarge},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{answers: map[string][]string{"/server_info": c.answers}}
				_, err := read(t, f, introspect.Target{ID: "e", URL: "http://engine:1"})
				if !errors.Is(err, c.err) || (err != nil) != (c.err != nil) {
					t.Errorf("err %v, want %v", err, c.err)
				}
				var times []string
				for _, a := range f.asked {
					if at, ok := strings.CutPrefix(a, "/server_info@"); ok {
						times = append(times, at)
					}
				}
				if got := strings.Join(times, " "); got != c.asked {
					t.Errorf("asked at %s, want %s", got, c.asked)
				}
			})
		})
	}
}

// TestGivesUp: a caller that leaves does not wait for the pauses.
func TestGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
		defer cancel()
		f := &fake{answers: map[string][]string{"/server_info": {"reset"}}, began: time.Now()}
		_, err := introspect.Read(ctx, &http.Client{Transport: f}, introspect.Target{URL: "http://engine:1"})
		if !errors.Is(err, ask.ErrUnreachable) || time.Since(f.began) != 150*time.Millisecond || len(f.asked) != 2 {
			t.Errorf("after %v: %v, asked %v", time.Since(f.began), err, f.asked)
		}
	})
}
