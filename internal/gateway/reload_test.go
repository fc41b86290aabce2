package gateway_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
	"github.com/perigee-llm/perigee/internal/gateway"
	"github.com/perigee-llm/perigee/internal/gateway/explain"
)

func newTestLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}

const reloadable = `
models: [{id: m, policy: round_robin, buckets: [{id: all, plain: {admission: {max_waiting_requests: 64}}}]}]
server: {port: 0, admin: {port: 0}}
discovery: {static: {workers: [{id: a, url: "%s"}, {id: b, url: "%s"}]}}
log: {level: info}
`

// picked sends a request and tells which engine answered it.
func (l *live) picked(c *http.Client) string {
	l.t.Helper()
	if status, body, err := send(l.t, c, "POST", l.URL()+"/v1/completions", oneRequest); status != 200 || err != nil {
		l.t.Fatal(status, body, err)
	}
	p := l.Explain().Records(explain.Query{Limit: 1})[0].Attempts
	return p[len(p)-1].Tries[0].Picked
}

// TestReload: what changed is told by its path; engines that stay keep their record, and groups whose policy stays keep their turn.
func TestReload(t *testing.T) {
	engines := startEngines(t, 3, enginehttp.VLLM)
	text := fmt.Sprintf(reloadable, engines[0].URL(), engines[1].URL())
	l := startLive(t, time.Hour, map[string]string{configFile: text})
	c := newClient(t)
	edit := func(from, to string) {
		t.Helper()
		if !strings.Contains(text, from) {
			t.Fatalf("%q is not in %s", from, text)
		}
		text = strings.Replace(text, from, to, 1)
		l.write(configFile, text)
	}
	l.mustReload("nothing is different")
	if got := l.picked(c); got != "a" {
		t.Errorf("the first goes to %s", got)
	}
	record := l.Registry().View().Get("a").Load

	edit("max_waiting_requests: 64", "max_waiting_requests: 32")
	edit("level: info", "level: debug")
	edit("server: {", "server: {max_attempts: 1, ")
	l.mustReload("models[0].buckets[0].plain.admission.max_waiting_requests: 64 → 32", "log.level: info → debug", "server.max_attempts: 3 → 1", "changes=3")
	if l.level.Level() != slog.LevelDebug || l.Config().Server.MaxAttempts != 1 {
		t.Error("the change is told and not made")
	}
	if got := l.picked(c); got != "a" {
		t.Errorf("a group with other limits begins anew, not at %s", got)
	}
	edit("id: m,", "id: m, aliases: [nick],")
	edit("max_attempts: 1", "max_attempts: 2")
	l.mustReload("models[0].aliases: none → [nick]")
	if got := l.picked(c); got != "b" {
		t.Errorf("a group that has not changed goes on with b, not %s", got)
	}

	edit(`{id: b, url: "`+engines[1].URL()+`"}`, `{id: c, url: "`+engines[2].URL()+`"}`)
	l.mustReload("discovery.static.workers[1]: none → c", "discovery.static.workers[1]: b → none")
	v := l.Registry().View()
	if v.Get("b") != nil || v.Get("c") == nil || !v.Get("c").Serves("m") || v.Get("a").Load != record {
		t.Error("the fleet is not what the configuration says")
	}
	if got := l.picked(c) + l.picked(c); got != "ac" && got != "ca" {
		t.Errorf("requests go to %s", got)
	}
	if _, page, err := send(t, c, "GET", l.AdminURL()+"/metrics", ""); err != nil || strings.Contains(page, `worker="b"`) || !strings.Contains(page, `perigee_worker_requests_total{mode="plain",model="m",outcome="success",worker="a"}`) {
		t.Errorf("the series are not those of the engines that there are: %v", err)
	}
	edit(engines[2].URL(), engines[1].URL())
	l.mustReload("discovery.static.workers[1].url: " + engines[2].URL() + " → " + engines[1].URL())
	if got := l.Registry().View().Get("c"); got.URL != engines[1].URL() || !got.Serves("m") {
		t.Errorf("the moved engine is %+v", got.Spec)
	}
	edit("id: m,", "id: n,")
	l.mustReload("models[0]: none → n", "models[0]: m → none")
	if _, page, err := send(t, c, "GET", l.AdminURL()+"/metrics", ""); err != nil || strings.Contains(page, `model="m"`) {
		t.Errorf("series of a model that is gone: %v", err)
	}
	edit("id: n,", "id: m,")
	l.mustReload("models[0]: none → m")
	edit(engines[1].URL(), "http://127.0.0.1:1") // nobody is there: it is registered without models, and holds nothing up for long
	l.mustReload("workers[1].url")
	if got := l.picked(c); got != "a" {
		t.Errorf("requests go to %s", got)
	}
}

// workers lists the engines. (What they say of themselves may come in at any time.)
func (l *live) workers() string {
	var b strings.Builder
	for w := range l.Registry().View().All() {
		fmt.Fprintln(&b, w.ID, w.URL)
	}
	return b.String()
}

// TestReloadIsAllOrNothing: whatever is wrong, everything is told and nothing changes.
func TestReloadIsAllOrNothing(t *testing.T) {
	engines := startEngines(t, 2, enginehttp.VLLM)
	text := fmt.Sprintf(reloadable, engines[0].URL(), engines[1].URL())
	l := startLive(t, time.Hour, map[string]string{configFile: text})
	before, fleetBefore := l.Config(), l.workers()
	change := strings.NewReplacer("max_waiting_requests: 64", "max_waiting_requests: 1", "level: info", "level: debug", "id: b,", "id: c,").Replace(text)
	refused := 0
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"not YAML", "{", []string{"not YAML"}},
		{"empty", "", []string{"the file is empty"}},
		{"two faults", change + "breaker: {threshold: 0}\nloadd: {}\n", []string{"breaker.threshold: 0 is out of range", "loadd: is not a known key", "faults=2"}},
		{"not built", strings.Replace(change, "policy: round_robin", "policy: sticky", 1), []string{"not built yet"}},
		{"no such key file", strings.Replace(change, "server: {", "server: {api_keys: {file: $DIR/none}, ", 1), []string{"none: cannot be read"}},
		{"no certificate", strings.Replace(change, "server: {", "server: {tls: {cert_file: $DIR/c, key_file: $DIR/k}, ", 1), []string{"k: cannot be read"}},
		{"no engine key", strings.Replace(change, "static: {", "static: {api_key_file: $DIR/none, ", 1), []string{"none: cannot be read"}},
		{"another port", strings.Replace(change, "server: {port: 0,", "server: {port: 1, host: localhost,", 1), []string{"this change needs a restart", "server.port: 0 → 1", "server.host: 127.0.0.1 → localhost"}},
		{"no admin listener", strings.Replace(change, "admin: {port: 0}", "admin: {}", 1), []string{"server.admin.port: 0 → none"}},
		{"breaker", change + "breaker: {threshold: 9}\n", []string{"breaker.threshold: 3 → 9"}},
		{"load", change + "load: {poll_interval: 2s}\n", []string{"load.poll_interval: 1s → 2s"}},
		{"log format", strings.Replace(change, "level: debug", "format: json", 1), []string{"log.format: text → json"}},
	} {
		l.write(configFile, c.text)
		said, err := l.reload()
		if !errors.Is(err, gateway.ErrRefused) {
			t.Errorf("%s: %v", c.name, err)
		}
		refused++
		for _, want := range append(c.want, "nothing has changed") {
			if !strings.Contains(said, want) {
				t.Errorf("%s: %q is not in\n%s", c.name, want, said)
			}
		}
		if l.Config() != before || l.workers() != fleetBefore || l.level.Level() != slog.LevelInfo {
			t.Fatalf("%s: something has changed", c.name)
		}
	}
	if err := os.Remove(l.path(configFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.reload(); !errors.Is(err, gateway.ErrRefused) {
		t.Errorf("without a file: %v", err)
	}
	refused++
	_, page, _ := send(t, newClient(t), "GET", l.AdminURL()+"/metrics", "")
	for _, want := range []string{fmt.Sprintf(`perigee_config_reloads_total{outcome="refused"} %d`, refused), "perigee_config_last_reload_successful 0"} {
		if !strings.Contains(page, want) {
			t.Errorf("%s is not in the metrics", want)
		}
	}
	l.write(configFile, change)
	l.mustReload("log.level: info → debug")
	if _, page, _ = send(t, newClient(t), "GET", l.AdminURL()+"/metrics", ""); !strings.Contains(page, "perigee_config_last_reload_successful 1") || !strings.Contains(page, `perigee_config_reloads_total{outcome="applied"} 1`) {
		t.Error("success is not in the metrics")
	}
}

// TestWatch: every file that counts is noticed, and a refused configuration is read again when any file that it named changes.
func TestWatch(t *testing.T) {
	engines := startEngines(t, 2, enginehttp.VLLM)
	text := fmt.Sprintf(reloadable, engines[0].URL(), engines[1].URL())
	keyed := strings.Replace(text, "server: {", "server: {api_keys: {file: $DIR/keys.yaml}, ", 1)
	l := startLive(t, 2*time.Millisecond, map[string]string{configFile: text})
	const applied, refused, same = "the configuration was reloaded", "has faults; nothing has changed", "nothing is different"
	step := func(name, text, want string) {
		t.Helper()
		l.write(name, text)
		l.noKeys(l.log.await(want))
	}
	step(configFile, text+"client_fields: {default: strip}\n", applied)
	step(configFile, text+"\n# a comment\n", applied)
	step(configFile, text, same)
	step(configFile, "{", refused)
	step(configFile, keyed, refused) // there is no file of keys
	step("keys.yaml", "version: 1\nkeys: [{name: a, key: sk-0123456789abcdef}]\n", applied)
	step("keys.yaml", "version: 1\n", refused)
	step("keys.yaml", "version: 1\nkeys: [{name: b, key: sk-0123456789abcdef}]\n", applied)
	if err := os.Chmod(l.path("keys.yaml"), 0o644); err != nil {
		t.Fatal(err)
	}
	l.log.await("everybody on this machine can read it")
	if err := os.Remove(l.path(configFile)); err != nil {
		t.Fatal(err)
	}
	l.log.await(refused)
	step(configFile, keyed, same)
	l.RequestReload()
	l.log.await(same)
}

func TestReloadWithoutSource(t *testing.T) {
	g := startGateway(t, oneModel, startEngines(t, 2, enginehttp.VLLM))
	if err := g.Reload(t.Context()); err == nil {
		t.Error("reloaded from nowhere")
	}
	g.RequestReload() // does nothing
}

// TestReloadStorm: a hundred configurations while requests run. Engines come and go, all of them at once too; no request fails for that.
func TestReloadStorm(t *testing.T) {
	const storms = 100
	engines := startEngines(t, 3, enginehttp.SGLang)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	sets := [][]int{{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 1, 2}}
	text := func() string {
		var workers, names []string
		moved := rng.IntN(3) // an id is not always the same engine
		for _, i := range sets[rng.IntN(len(sets))] {
			workers = append(workers, fmt.Sprintf(`{id: w%d, url: "%s"}`, i, engines[(i+moved)%3].URL()))
			names = append(names, fmt.Sprintf("w%d", i))
		}
		members := ""
		if rng.IntN(2) == 0 {
			members = ", workers: [" + strings.Join(names, ", ") + "]"
		}
		policies := []string{"round_robin", "random", "power_of_two", "load_based"}
		return fmt.Sprintf("models: [{id: m, buckets: [{id: b%d, plain: {policy: %s%s}}]}]\nserver: {port: 0, max_body_bytes: %dMiB, api_keys: {file: $DIR/keys.yaml}}\ndiscovery: {static: {workers: [%s]}}\n",
			rng.IntN(3), policies[rng.IntN(4)], members, 1+rng.IntN(9), strings.Join(workers, ", "))
	}
	keys := func() string {
		return fmt.Sprintf("version: 1\nkeys: [{name: ours, key: sk-0123456789abcdef}, {name: other-%d, key: sk-00112233445566%d}]\n", rng.IntN(3), 10+rng.IntN(9))
	}
	l := startLive(t, time.Hour, map[string]string{configFile: text(), "keys.yaml": keys()})
	var stop atomic.Bool
	var served atomic.Int64
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			c := newClient(t)
			for !stop.Load() {
				body := oneRequest
				if i%2 == 0 {
					body = `{"model":"m","prompt":[1,2,3],"max_tokens":20,"stream":true}`
				}
				if err := l.ask(c, body); err != nil {
					t.Error(err)
					return
				}
				served.Add(1)
			}
		})
	}
	for range storms {
		l.write(configFile, text())
		l.write("keys.yaml", keys())
		if said, err := l.reload(); err != nil {
			t.Errorf("%v\n%s", err, said)
		}
	}
	stop.Store(true)
	wg.Wait()
	if served.Load() < storms {
		t.Errorf("%d requests in %d reloads: that was no load", served.Load(), storms)
	}
	t.Logf("%d requests", served.Load())
}

// ask sends one request with the key and reads its answer to the end.
func (l *live) ask(c *http.Client, body string) error {
	req, err := http.NewRequestWithContext(l.t.Context(), "POST", l.URL()+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer sk-0123456789abcdef")
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		return fmt.Errorf("%s: %s: %w", resp.Status, text, err)
	}
	return nil
}
