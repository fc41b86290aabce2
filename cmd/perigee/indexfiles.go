package main

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/perigee-llm/perigee/internal/gateway/indexd"
)

// indexFiles are what the index's own files hold: what gateways must present, and by what they know the index. Those that the flags name have
// a content; so what is there stays there.
type indexFiles struct {
	token string
	tls   *tls.Config
}

func (c *indexCmd) files(rc *runContext) (f indexFiles, err error) {
	if c.TokenFile != "" {
		if f.token, err = secret(rc, c.TokenFile); err != nil {
			return f, err
		}
	}
	f.tls, err = c.tls()
	return f, err
}

// reload reads the files anew, has the service take all of them or none, and returns those that it goes by now. The log gets one line.
func (c *indexCmd) reload(rc *runContext, s *indexd.Service, old indexFiles) indexFiles {
	var faults bytes.Buffer
	quiet := *rc
	quiet.stderr = &faults
	err := c.regular()
	next := old
	if err == nil {
		next, err = c.files(&quiet)
	}
	if err != nil {
		rc.log.Error("the index's files were read anew and have faults; nothing has changed", "err", err, "faults", strings.TrimSpace(faults.String()))
		return old
	}
	changes := next.changes(old)
	if len(changes) == 0 {
		rc.log.Info("the index's files were read anew: nothing is different")
		return old
	}
	s.Present(next.token, next.tls)
	rc.log.Info("the index's files were read anew", "changed", strings.Join(changes, ", "))
	return next
}

// regular refuses files that a read could wait for, as pipes are: nothing would end such a wait.
func (c *indexCmd) regular() error {
	for _, file := range []string{c.TokenFile, c.TLSCertFile, c.TLSKeyFile, c.TLSClientCAFile} {
		if file == "" {
			continue
		}
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is not a file", file)
		}
	}
	return nil
}

// changes names what is different. A key is that of its certificate, so that it changes with that.
func (f indexFiles) changes(old indexFiles) (out []string) {
	if f.token != old.token {
		out = append(out, "token")
	}
	if f.tls == nil {
		return out
	}
	if !slices.EqualFunc(f.tls.Certificates[0].Certificate, old.tls.Certificates[0].Certificate, bytes.Equal) {
		out = append(out, "certificate")
	}
	if !f.tls.ClientCAs.Equal(old.tls.ClientCAs) {
		out = append(out, "client authorities")
	}
	return out
}
