package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/perigee-llm/perigee/internal/cache/manager"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/explain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/followed"
)

// explainCmd asks a running gateway why requests went where they went.
type explainCmd struct {
	URL      string `name:"url" default:"http://127.0.0.1:30001" help:"The gateway's admin listener."`
	Request  string `placeholder:"ID" help:"The request to explain, by its x-request-id. Without it: the newest."`
	Manager  string `placeholder:"URL" help:"Ask a Cache Manager's admin listener instead what engines asked it for --request, or of --instance, what they got, and why no more."`
	Instance string `placeholder:"NAME" help:"With --manager: what this engine asked for last. SGLang does not say for which request it asks."`
	Prefixes bool   `help:"Say of each engine instead whether what is known of its prefix cache is exact, and if not why and since when."`
	KeyFile  string `name:"api-key-file" placeholder:"FILE" help:"A file with the API key that the admin listener asks for, in one line."`
	CAFile   string `name:"ca-file" placeholder:"FILE" help:"The authorities that an https URL is trusted by (PEM); without it: the system's."`
	Limit    int    `default:"5" help:"How many requests, the newest first; 0: as many as it tells at once, 1,024."`
	JSON     bool   `name:"json" help:"Print the gateway's JSON."`
}

// Help shows what an answer looks like.
func (explainCmd) Help() string {
	return `Prints the buckets in the order in which they were tried, and for each group the policy, the engines that it looked at
with their signals, the pick and its reason, or who was refused and by which limit; then what came of the request.
The gateway needs an admin listener: --admin-port, or server.admin.port in the file.

Examples:
  perigee explain
  perigee explain --url http://127.0.0.1:30001 --request 7f3a9c
  perigee explain --prefixes
  perigee explain --manager http://127.0.0.1:9091 --request 7f3a9c
  perigee explain --manager http://127.0.0.1:9091 --instance sglang-0`
}

// Limits of one question.
const (
	// explainTimeout bounds it: the gateway answers from memory.
	explainTimeout = 10 * time.Second
	// explainMaxBody bounds the answer, in bytes: the whole default log has about 4 MiB.
	explainMaxBody = 64 << 20
)

// Run asks and prints.
func (c *explainCmd) Run(rc *runContext) error {
	base, err := adminURL(c.URL)
	if err != nil {
		return exitError{exitUsage, "explain: " + err.Error()}
	}
	if c.Limit < 0 || c.Limit > explain.MaxLimit {
		return exitError{exitUsage, fmt.Sprintf("explain: --limit is a number from 0 to %d", explain.MaxLimit)}
	}
	ctx, cancel := context.WithTimeout(rc.ctx, explainTimeout)
	defer cancel()
	if c.Manager != "" {
		return c.manager(ctx, rc.stdout)
	}
	if c.Prefixes {
		return c.prefixes(ctx, rc.stdout, base)
	}
	text, err := c.ask(ctx, base, "/debug/decisions", c.query())
	if err != nil {
		return fmt.Errorf("explain: %w", err)
	}
	var answer struct {
		Decisions []explain.Record `json:"decisions"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return fmt.Errorf("explain: %s does not answer as a gateway of this version does: %w", base, err)
	}
	if len(answer.Decisions) == 0 && c.Request != "" {
		return exitError{exitRun, fmt.Sprintf("explain: the gateway remembers no request %q: it never came, was refused before an engine was looked for, or is too long ago", c.Request)}
	}
	return c.print(rc.stdout, text, answer.Decisions)
}

func (c *explainCmd) print(w io.Writer, text []byte, records []explain.Record) error {
	var b bytes.Buffer
	switch {
	case c.JSON:
		if err := json.Indent(&b, bytes.TrimSpace(text), "", "  "); err != nil {
			return err
		}
		b.WriteByte('\n')
	case len(records) == 0:
		b.WriteString("the gateway has had no request yet\n")
	default:
		for i := range records {
			if i > 0 {
				b.WriteString("\n")
			}
			b.WriteString(records[i].Text())
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

// manager prints what a Cache Manager was asked for a request.
func (c *explainCmd) manager(ctx context.Context, w io.Writer) error {
	base, err := adminURL(c.Manager)
	if err != nil || c.Request == "" && c.Instance == "" {
		return exitError{exitUsage, "explain: --manager is the URL of a Cache Manager's admin listener, such as http://127.0.0.1:9091, and wants --request or --instance"}
	}
	text, err := c.ask(ctx, base, "/explain", url.Values{"request": {c.Request}, "instance": {c.Instance}})
	if err != nil {
		return fmt.Errorf("explain: %w", err)
	}
	var queries []manager.QueryExplanation
	if err := json.Unmarshal(text, &queries); err != nil {
		return fmt.Errorf("explain: %s does not answer as a Cache Manager of this version does: %w", base, err)
	}
	if len(queries) == 0 {
		return exitError{exitRun, fmt.Sprintf("explain: the Cache Manager remembers no query of request %q and instance %q: the engine never asked, under another id, or too long ago", c.Request, c.Instance)}
	}
	var b bytes.Buffer
	if c.JSON {
		b.Write(text)
	}
	for i := range queries {
		if !c.JSON {
			b.WriteString(queries[i].Text())
		}
	}
	_, err = w.Write(b.Bytes())
	return err
}

// prefixes prints how each engine's KV events are followed.
func (c *explainCmd) prefixes(ctx context.Context, w io.Writer, base string) error {
	text, err := c.ask(ctx, base, "/debug/prefixes", nil)
	if err != nil {
		return fmt.Errorf("explain: %w", err)
	}
	var answer followed.Answer
	if err := json.Unmarshal(text, &answer); err != nil {
		return fmt.Errorf("explain: %s does not answer as a gateway of this version does: %w", base, err)
	}
	var b bytes.Buffer
	switch {
	case c.JSON:
		if err := json.Indent(&b, bytes.TrimSpace(text), "", "  "); err != nil {
			return err
		}
		b.WriteByte('\n')
	case len(answer.Streams) == 0:
		b.WriteString("no engine's events are followed: no policy in use asks who holds which prefix, or there is no engine yet\n")
	}
	if !c.JSON {
		for i := range answer.Streams {
			b.WriteString(answer.Streams[i].Text(time.Now()))
		}
		for i := range answer.Managers {
			b.WriteString(answer.Managers[i].Text(time.Now()))
		}
	}
	_, err = w.Write(b.Bytes())
	return err
}

// adminURL checks the base and takes a trailing slash off.
func adminURL(text string) (string, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return "", fmt.Errorf("--url: %w", err)
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return "", fmt.Errorf("--url: %q is no http or https URL such as http://127.0.0.1:30001", text)
	case u.RawQuery != "" || u.Fragment != "":
		return "", fmt.Errorf("--url: %q has more than a base: leave out what follows the path", text)
	}
	return strings.TrimRight(text, "/"), nil
}

// query says which decisions are wanted.
func (c *explainCmd) query() url.Values {
	q := url.Values{}
	if c.Request != "" {
		q.Set("request", c.Request)
	}
	limit := c.Limit
	if limit == 0 {
		limit = explain.MaxLimit
	}
	q.Set("limit", strconv.Itoa(limit))
	return q
}

// ask fetches a path of the admin listener.
func (c *explainCmd) ask(ctx context.Context, base, path string, q url.Values) ([]byte, error) {
	where := base + path
	if len(q) > 0 {
		where += "?" + q.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, where, nil)
	if err != nil {
		return nil, err
	}
	start, flag := "start the gateway with --admin-port", "--url"
	if c.Manager != "" {
		start, flag = "start perigee cache with --admin", "--manager"
	}
	transport := &http.Transport{DisableKeepAlives: true}
	if err := c.secure(req, transport); err != nil {
		return nil, err
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("nothing listens on %s: %s, and give its address as %s", base, start, flag)
		}
		return nil, fmt.Errorf("%s: %w", base, err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, explainMaxBody+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: the answer broke off: %w", base, err)
	case res.StatusCode == http.StatusUnauthorized:
		return nil, fmt.Errorf("%s asks for an API key, or for another one: give it with --api-key-file", base)
	case res.StatusCode == http.StatusNotFound:
		return nil, fmt.Errorf("%s has no %s: it is not the admin listener; %s", base, path, start)
	case res.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s answers %s", base, res.Status)
	case len(text) > explainMaxBody:
		return nil, fmt.Errorf("%s: the answer is over %d MiB; ask with --limit", base, explainMaxBody>>20)
	}
	return text, nil
}

// secure puts in the key and the authorities that were given.
func (c *explainCmd) secure(req *http.Request, transport *http.Transport) error {
	if c.KeyFile != "" {
		key, faults := config.ReadEngineKey(c.KeyFile) // the same one line
		if err := faults.Err(); err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+key)
	}
	if c.CAFile != "" {
		text, err := os.ReadFile(c.CAFile)
		if err != nil {
			return err
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(text) {
			return fmt.Errorf("--ca-file: there is no certificate in %s", c.CAFile)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return nil
}
