package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// Options say whom a source asks. Endpoints and Engines are needed.
type Options struct {
	// Endpoints are http://host:port, https://host:port or unix:/path, the preferred one first.
	Endpoints []string
	// Engines returns the engines that serve a model (as a request names it): their numbers (fleet.Worker.No) by their base URLs as they were
	// registered. The map is not changed by anybody; it is called once for each endpoint that a look-up asks.
	Engines func(model string) map[string]uint32
	// Costs gets what restores of what Cache Managers hold take, as the service says (Index only). It is the caller's. Nil: nobody wants to know.
	Costs *prefix.Costs
	// Timeout is how long a look-up may take. 0 means 100 ms, the reference's: a prefill that is saved takes longer, one that is lost
	// while waiting does not.
	Timeout time.Duration
	// MaxInFlight is how many look-ups may be out at once. 0 means 32, the reference's: it bounds what a stuck service can hold.
	MaxInFlight int
	// Secrets returns what is presented, and who is believed. It is asked with each call and each handshake, so what it returns may change;
	// connections that there are stay. Nil: the zero value of [Secrets].
	Secrets func() Secrets
	// Hooks are told what happens.
	Hooks Hooks
	// Log gets when an endpoint fails and when it answers again, not each look-up; nil: nowhere.
	Log *slog.Logger
	// DialContext makes connections, for tests. Nil: the network's.
	DialContext func(ctx context.Context, address string) (net.Conn, error)
}

// Outcome says how a look-up, or one endpoint's part in it, ended. It labels metrics: besides the reasons of prefix.Unavailable there are
// the three here.
type Outcome string

// The outcomes of a source that answered or refused.
const (
	Hit      Outcome = "hit"
	Miss     Outcome = "miss"
	Rejected Outcome = "rejected"
)

// Hooks are told what happens, by the goroutine that looks up; they must not block. Each may be nil.
type Hooks struct {
	// LookedUp is told of each look-up that is over.
	LookedUp func(o Outcome, took time.Duration)
	// Tried is told of each endpoint that was asked in a look-up; there is one for each, unless the look-up was over a bound of ours.
	Tried func(endpoint string, o Outcome, took time.Duration)
	// Distrusted is told how many engines of an answer were made blind because it said of them what cannot be.
	Distrusted func(endpoint string, engines int)
}

func (o Options) withDefaults() Options {
	o.Timeout = cmp.Or(o.Timeout, 100*time.Millisecond)
	o.MaxInFlight = cmp.Or(o.MaxInFlight, 32)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Secrets == nil {
		o.Secrets = func() Secrets { return Secrets{} }
	}
	h := &o.Hooks
	if h.LookedUp == nil {
		h.LookedUp = func(Outcome, time.Duration) {}
	}
	if h.Tried == nil {
		h.Tried = func(string, Outcome, time.Duration) {}
	}
	if h.Distrusted == nil {
		h.Distrusted = func(string, int) {}
	}
	return o
}

// check returns all faults of the options.
func (o *Options) check() error {
	var errs []error
	if len(o.Endpoints) == 0 {
		errs = append(errs, errors.New("no endpoint"))
	}
	for _, e := range o.Endpoints {
		if _, _, err := target(e); err != nil {
			errs = append(errs, err)
		}
	}
	if o.Engines == nil {
		errs = append(errs, errors.New("nobody says which engines there are"))
	}
	if o.Timeout < 0 || o.MaxInFlight < 0 {
		errs = append(errs, errors.New("a bound below zero"))
	}
	return errors.Join(errs...)
}

// ParseEndpoints takes a comma-separated list apart, as the configuration has it. The errors name the endpoint.
func ParseEndpoints(list string) (endpoints []string, err error) {
	var errs []error
	for e := range strings.SplitSeq(list, ",") {
		e = strings.TrimSpace(e)
		if _, _, err := target(e); err != nil {
			errs = append(errs, err)
		}
		endpoints = append(endpoints, e)
	}
	return endpoints, errors.Join(errs...)
}

// target returns what is dialled for an endpoint, and whether with TLS.
func target(endpoint string) (address string, secure bool, err error) {
	if path, ok := strings.CutPrefix(endpoint, "unix:"); ok {
		if path == "" {
			return "", false, fmt.Errorf("endpoint %q has no path", endpoint)
		}
		return endpoint, false, nil
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
		return "", false, fmt.Errorf("endpoint %q is not http://host:port, https://host:port or unix:/path", endpoint)
	}
	port := cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	return net.JoinHostPort(u.Hostname(), port), u.Scheme == "https", nil
}
