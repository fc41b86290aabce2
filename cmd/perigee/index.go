package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/indexd"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/remote"
)

// indexCmd serves a prefix index until a signal ends it.
type indexCmd struct {
	Listen     string      `default:"127.0.0.1:50051" placeholder:"ADDR" help:"Where gateways ask: host:port, or unix:/path. Port 0: any free one, printed."`
	ConfigFile config.Once `name:"config" placeholder:"FILE" help:"A gateway's configuration: its discovery says which engines there are, and its managers which Cache Managers."`
	WorkerURLs config.List `name:"worker-urls" placeholder:"URL..." help:"The engines, as the gateways name them: several after one flag, separated by commas, or the flag again."`

	EngineAPIKeyFile config.Once `name:"engine-api-key-file" placeholder:"FILE" help:"A file with the key that engines ask for; with --worker-urls."`

	Admin string `placeholder:"ADDR" help:"host:port of a listener for /metrics, /healthz and /readyz. Off when not given."`

	TokenFile       string `placeholder:"FILE" help:"A file with the token that gateways must present."`
	TLSCertFile     string `name:"tls-cert-file" placeholder:"FILE" help:"The listener's certificate (PEM); with --tls-key-file."`
	TLSKeyFile      string `name:"tls-key-file" placeholder:"FILE" help:"Its private key (PEM)."`
	TLSClientCAFile string `name:"tls-client-ca-file" placeholder:"FILE" help:"Gateways must present a certificate of one of these authorities (PEM)."`
	Open            bool   `help:"Let everybody ask who reaches the listener, also beyond loopback."`

	SnapshotFrom      string `placeholder:"URL,..." help:"Who is asked at the start for what the engines hold: other index services, or gateways that serve theirs."`
	SnapshotTokenFile string `placeholder:"FILE" help:"A file with the token for them."`
	SnapshotCAFile    string `name:"snapshot-ca-file" placeholder:"FILE" help:"The authorities by which those of them with https are known (PEM); the system's when not given."`
	SnapshotCertFile  string `placeholder:"FILE" help:"The certificate that is shown to those of them with https that ask for one (PEM); with --snapshot-key-file."`
	SnapshotKeyFile   string `placeholder:"FILE" help:"Its private key (PEM)."`

	MaxInFlight  int `help:"Look-ups that may be under way at once; beyond, they are refused. 0: 64."`
	MaxSnapshots int `help:"Snapshots that may be under way at once. 0: 2."`
	MaxClaims    int `help:"Blocks that one rank of an engine may claim; one that claims more is left out. 0: 4194304."`

	hangupsForTesting chan os.Signal // nil in production: the process's own
}

// Help shows what a run looks like.
func (indexCmd) Help() string {
	return `Follows the engines' KV events and answers gateways' look-ups over gRPC (perigee.index.v1), so that the gateways keep no index of
their own. Prints one line on stdout when it accepts calls. SIGTERM and SIGINT end it. SIGHUP has the files of the token, the
certificate, its key and the client authorities read anew: all of them are taken, or none when one has a fault; the log says which.

Examples:
  perigee index --worker-urls http://10.0.0.1:8000 http://10.0.0.2:8000
  perigee index --config gateway.yaml --listen 0.0.0.0:50051 --token-file /run/secrets/index

docs/prefix-index-service.md says what it answers, and who should be able to ask.`
}

// grace is how long look-ups that are under way may take to end: ten times what a gateway waits.
const grace = time.Second

// Run starts the service and waits.
func (c *indexCmd) Run(rc *runContext) error {
	hangups := c.hangupsForTesting
	if hangups == nil {
		hangups = make(chan os.Signal, 1) // one that waits will see what a second would
		signal.Notify(hangups, syscall.SIGHUP)
		defer signal.Stop(hangups)
	}
	o, err := c.options(rc)
	if err != nil {
		return err
	}
	s, err := indexd.Start(o)
	if errors.Is(err, indexd.ErrExposed) {
		return exitError{exitUsage, "index: " + err.Error() + "; give --token-file, --tls-client-ca-file or --open"}
	}
	if err != nil {
		return fmt.Errorf("index: %w", err)
	}
	defer s.Close(grace)
	line := "perigee indexes on " + s.Addr()
	if a := s.AdminAddr(); a != "" {
		line += ", admin on http://" + a
	}
	if _, err := fmt.Fprintln(rc.stdout, line); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(rc.ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	files := indexFiles{o.Token, o.TLS}
	for {
		select {
		case <-ctx.Done():
			if err := ctx.Err(); !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		case err := <-s.Failed():
			return err
		case <-hangups:
			files = c.reload(rc, s, files)
		}
	}
}

func (c *indexCmd) options(rc *runContext) (o indexd.Options, err error) {
	if c.MaxInFlight < 0 || c.MaxSnapshots < 0 || c.MaxClaims < 0 {
		return o, exitError{exitUsage, "index: a bound below zero"}
	}
	cfg, faults := c.config()
	for _, f := range faults {
		fmt.Fprintln(rc.stderr, f)
	}
	if cfg == nil {
		return o, exitError{exitUsage, "the index was not started: its configuration has faults"}
	}
	if cfg.Discovery.Static == nil {
		return o, exitError{exitUsage, "index: only a static list of engines is followed"}
	}
	o = indexd.Options{
		Listen: c.Listen, Admin: c.Admin, Workers: cfg.Discovery.Static.Workers, Managers: cfg.Managers, Open: c.Open, MaxInFlight: c.MaxInFlight, MaxSnapshots: c.MaxSnapshots,
		Limits: local.Options{Limit: c.MaxClaims}, Log: rc.log,
	}
	if o.Transport, err = engineKeys(rc, o.Workers); err != nil {
		return o, err
	}
	if err := c.snapshot(rc, &o); err != nil {
		return o, err
	}
	files, err := c.files(rc)
	o.Token, o.TLS = files.token, files.tls
	return o, err
}

// snapshot says who is asked at the start, and what is presented to them.
func (c *indexCmd) snapshot(rc *runContext, o *indexd.Options) (err error) {
	tlsFiles := c.SnapshotCAFile + c.SnapshotCertFile + c.SnapshotKeyFile
	if c.SnapshotFrom == "" {
		if c.SnapshotTokenFile+tlsFiles != "" {
			return exitError{exitUsage, "index: the files of --snapshot-… have no effect without --snapshot-from"}
		}
		return nil
	}
	if o.SnapshotFrom, err = remote.ParseEndpoints(c.SnapshotFrom); err != nil {
		return exitError{exitUsage, "index: --snapshot-from: " + err.Error()}
	}
	if c.SnapshotTokenFile != "" {
		if o.SnapshotToken, err = secret(rc, c.SnapshotTokenFile); err != nil {
			return err
		}
	}
	if tlsFiles == "" {
		return nil
	}
	o.SnapshotTLS = &tls.Config{MinVersion: tls.VersionTLS12}
	if (c.SnapshotCertFile == "") != (c.SnapshotKeyFile == "") {
		return exitError{exitUsage, "index: --snapshot-cert-file and --snapshot-key-file belong together"}
	}
	if c.SnapshotCertFile != "" {
		pair, err := keyPair(c.SnapshotCertFile, c.SnapshotKeyFile)
		if err != nil {
			return err
		}
		o.SnapshotTLS.Certificates = []tls.Certificate{pair}
	}
	if c.SnapshotCAFile != "" {
		o.SnapshotTLS.RootCAs, err = authorities(c.SnapshotCAFile)
	}
	return err
}

// keyPair reads a certificate and its key.
func keyPair(cert, key string) (tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return pair, exitError{exitUsage, "index: " + strings.TrimPrefix(err.Error(), "tls: ")}
	}
	return pair, nil
}

// authorities reads the certificates of those who vouch for others.
func authorities(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, exitError{exitUsage, "index: " + err.Error()}
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, exitError{exitUsage, "index: " + file + " has no certificate"}
	}
	return pool, nil
}

// config is that of a gateway: the file's, or one made of the flags, of which the engines alone count.
func (c *indexCmd) config() (*config.Config, config.Faults) {
	f := config.Flags{ConfigFile: c.ConfigFile, WorkerURLs: c.WorkerURLs, EngineAPIKeyFile: c.EngineAPIKeyFile}
	if len(c.ConfigFile.Given) == 0 {
		f.ModelID = config.Once{Given: []string{"any"}} // the engines say themselves what they serve
	}
	return f.Config()
}

// secret reads a file with a token or a key, under the rules for engines' keys.
func secret(rc *runContext, file string) (string, error) {
	key, faults := config.ReadEngineKey(file)
	for _, f := range faults {
		fmt.Fprintln(rc.stderr, f)
	}
	if key == "" {
		return "", exitError{exitUsage, "index: " + file + " has no usable secret"}
	}
	return key, nil
}

// engineKeys returns what presents the engines' keys to them, nil if there are none.
func engineKeys(rc *runContext, workers []config.Worker) (http.RoundTripper, error) {
	read := map[string]string{}
	byURL := map[string]string{}
	for _, w := range workers {
		if w.APIKeyFile == "" {
			continue
		}
		if read[w.APIKeyFile] == "" {
			key, err := secret(rc, w.APIKeyFile)
			if err != nil {
				return nil, err
			}
			read[w.APIKeyFile] = key
		}
		byURL[w.URL] = read[w.APIKeyFile]
	}
	if len(byURL) == 0 {
		return nil, nil
	}
	return indexd.WithKeys(byURL), nil
}

func (c *indexCmd) tls() (*tls.Config, error) {
	if (c.TLSCertFile == "") != (c.TLSKeyFile == "") || c.TLSClientCAFile != "" && c.TLSCertFile == "" {
		return nil, exitError{exitUsage, "index: --tls-cert-file and --tls-key-file belong together, and --tls-client-ca-file to both"}
	}
	if c.TLSCertFile == "" {
		return nil, nil
	}
	pair, err := keyPair(c.TLSCertFile, c.TLSKeyFile)
	if err != nil {
		return nil, err
	}
	t := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if c.TLSClientCAFile != "" {
		t.ClientAuth = tls.RequireAndVerifyClientCert
		if t.ClientCAs, err = authorities(c.TLSClientCAFile); err != nil {
			return nil, err
		}
	}
	return t, nil
}
