package indexd

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"

	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
)

// Options say what is followed and who may ask. Workers are needed; the zero value of the rest works.
type Options struct {
	// Listen is host:port, or unix:/path; a port of 0 is any free one. Empty: 127.0.0.1:50051, the port of SGLang's indexer.
	Listen string
	// Admin is host:port of the listener for metrics and health over HTTP; empty: none.
	Admin string
	// Workers are the engines. Decode engines are left out: nobody looks for a prefix there.
	Workers []config.Worker
	// Managers are the Cache Managers that are followed besides.
	Managers []config.Manager
	// Transport asks the engines what they are and where they publish; their keys are its matter. Nil: one without keys.
	Transport http.RoundTripper
	// Token and TLS are the server's; see indexer.Options. [Service.Present] changes them.
	Token string
	TLS   *tls.Config
	// Open says that everybody who reaches the listener may ask, though it is not on loopback.
	Open bool
	// MaxInFlight and MaxSnapshots bound what is under way; see indexer.Options.
	MaxInFlight, MaxSnapshots int
	// SnapshotFrom are who is asked at the start for what the engines hold (remote.Options), with SnapshotToken, and SnapshotTLS for https
	// endpoints; none: nobody.
	SnapshotFrom  []string
	SnapshotToken string
	SnapshotTLS   *tls.Config
	// Limits bound the indexes.
	Limits local.Options
	// Log gets what changes; nil: nowhere.
	Log *slog.Logger
}

// ErrExposed means that the listener could be reached from elsewhere, and that nothing says who may ask.
var ErrExposed = errors.New("a listener beyond loopback needs a token or client certificates, or to be open on purpose: whoever may ask can find out which prompts are in use")

func (o *Options) check() error {
	if len(o.Workers) == 0 {
		return errors.New("no engine to follow")
	}
	network, address := o.listen()
	if network == "unix" || o.Open || o.Token != "" || o.TLS != nil && o.TLS.ClientAuth == tls.RequireAndVerifyClientCert {
		return nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return ErrExposed
	}
	return nil
}

func (o *Options) listen() (network, address string) {
	if path, ok := strings.CutPrefix(o.Listen, "unix:"); ok {
		return "unix", path
	}
	if o.Listen == "" {
		return "tcp", "127.0.0.1:50051"
	}
	return "tcp", o.Listen
}
