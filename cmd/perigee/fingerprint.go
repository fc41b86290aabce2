package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os/signal"
	"syscall"

	"github.com/perigee-llm/perigee/internal/cache/fingerprint"
)

// fingerprintCmd prints by what content engines and Cache Managers know models and adapters.
type fingerprintCmd struct {
	Paths []string `arg:"" name:"path" help:"Directories of models or adapters, or models that are one file."`
}

// Help shows what a run looks like.
func (fingerprintCmd) Help() string {
	return `Prints one line for each path: the digest, 64 hexadecimal digits, and the path. Engines that share KV pages must agree in it: it is
what "model.content" in a namespace says (docs/cache-identity.md), and what model_content of an engine's adapter may declare
so that the engine does not have to read its weights. It reads all of the files.

Example:
  perigee fingerprint /models/llama /models/adapters/sql`
}

// Run prints a line for each path. What cannot be fingerprinted is named on stderr, and makes the exit code 1, or 2 where there is no such path.
func (c *fingerprintCmd) Run(rc *runContext) error {
	ctx, stop := signal.NotifyContext(rc.ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	h := fingerprint.New(fingerprint.Options{})
	code := exitDone
	for _, path := range c.Paths {
		f, err := h.Path(ctx, path)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			fmt.Fprintf(rc.stdout, "%s  %s\n", f.Digest, path)
		default:
			fmt.Fprintf(rc.stderr, "perigee: %s: %v\n", path, err)
			if errors.Is(err, fs.ErrNotExist) {
				code = max(code, exitUsage)
			} else {
				code = max(code, exitRun)
			}
		}
	}
	if code != exitDone {
		return exitError{code: code}
	}
	return nil
}
