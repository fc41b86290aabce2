// Package introspect asks an engine what it is: its family, its role, the models it serves, its ranks and its limits.
//
// It promises that a fact is either the engine's own, or discovery's, or unknown; that an answer with a field of the wrong
// type is refused instead of guessed at, while fields that we do not read may be anything; and that an engine which cannot
// be used in its role is said to be so in a class of its own. Nothing is kept between calls; Read may be called at once
// from any goroutine.
package introspect

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/ask"
)

// Target is an engine as discovery knows it.
type Target struct {
	// ID names the worker; see [fleet.Spec].
	ID string
	// URL is the engine's base, http or https, without a trailing slash.
	URL string
	// Stage is the role that discovery gives the engine; the zero value is plain. It holds until the engine says another.
	Stage fleet.Stage
}

// Unknown is what is registered of an engine that did not answer yet: its id, its URL and its role, and no model, so that
// it gets no traffic.
func (t Target) Unknown() fleet.Spec { return fleet.Spec{ID: t.ID, URL: t.URL, Stage: t.Stage} }

// ErrUnroutable means that the engine said what it is, and that it cannot serve its role as it stands. The [fleet.Spec]
// that comes with it is true, and has no models.
var ErrUnroutable = errors.New("unroutable")

const (
	// attempts, attemptTimeout and the pauses are sgl-router's: three questions of two seconds each outlast a restart of
	// the engine's HTTP workers, and a dead engine is known as dead within seven seconds.
	attempts       = 3
	attemptTimeout = 2 * time.Second
	firstPause     = 100 * time.Millisecond // doubled for the next

	// maxBody bounds each answer, in bytes. SGLang's /server_info has 556 keys and some 30 KiB; a list of models grows
	// by 200 bytes with each adapter.
	maxBody = 1 << 20
)

// Read asks the engine what it is.
//
//   - /server_info is SGLang's, and says nearly everything. vLLM has none, or under that name something else.
//   - /v1/models has the model ids, adapters included, the longest sequence, and in owned_by the engine's family. An
//     engine of another family is [fleet.UnknownKind] and gets requests.
//   - /version is vLLM's.
//
// Each question is asked up to three times while it is worth it. The errors are the classes of package ask and
// [ErrUnroutable]; only with the latter is the Spec not zero. vLLM does not say here how many ranks it has: its load does.
func Read(ctx context.Context, client *http.Client, t Target) (fleet.Spec, error) {
	var (
		info    serverInfo
		list    modelList
		version string
	)
	err := question(ctx, client, t.URL, "/server_info", func(b []byte) (err error) { info, err = parseServerInfo(b); return err })
	if err != nil && !ask.Absent(err) {
		return fleet.Spec{}, err
	}
	err = question(ctx, client, t.URL, "/v1/models", func(b []byte) (err error) { list, err = parseModels(b); return err })
	if err != nil && !(ask.Absent(err) && info.sglang) {
		return fleet.Spec{}, err
	}
	if kind(info, list) == fleet.VLLM {
		err = question(ctx, client, t.URL, "/version", func(b []byte) error { version = parseVersion(b); return nil })
		if err != nil && !errors.Is(err, ask.ErrStatus) { // it is for people, so a refusal hides nothing that we need
			return fleet.Spec{}, err
		}
	}
	return assemble(t, info, list, version)
}

// question asks for one path until there is an answer or asking is no use.
func question(ctx context.Context, client *http.Client, base, path string, use func([]byte) error) error {
	pause := firstPause
	for attempt := 1; ; attempt++ {
		one, cancel := context.WithTimeout(ctx, attemptTimeout)
		err := ask.Get(one, client, base+path, "application/json", maxBody, use)
		cancel()
		if err == nil {
			return nil
		}
		err = fmt.Errorf("GET %s: %w", path, err)
		if attempt == attempts || !ask.Retryable(err) || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
		pause *= 2
	}
}
