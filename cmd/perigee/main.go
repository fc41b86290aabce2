// Command perigee is the one binary of Perigee: the gateway that picks inference engines, the simulated engines to try
// it on, and the tools around them. Each command is one file of this package, a kong struct with a Run method.
//
// Results go to stdout, logs to stderr. Exit codes: 0 done; 1 it failed while running; 2 wrong usage or configuration.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"reflect"
	"strings"

	"github.com/alecthomas/kong"
)

// Exit codes, as the package comment gives them; scripts rely on them.
const (
	exitDone  = 0
	exitRun   = 1
	exitUsage = 2
)

// cli is the whole command line, one field a command.
type cli struct {
	Serve       serveCmd       `cmd:"" help:"Run the gateway."`
	Cache       cacheCmd       `cmd:"" help:"Run the Cache Manager: pages of KV state in memory that engines of this host share."`
	Engine      engineCmd      `cmd:"" help:"Run simulated engines."`
	Index       indexCmd       `cmd:"" help:"Serve a prefix index to gateways."`
	Check       checkCmd       `cmd:"" help:"Judge configurations without starting anything."`
	Demo        demoCmd        `cmd:"" help:"Show the main job on this machine: a real trace through simulated engines."`
	Replay      replayCmd      `cmd:"" help:"Try policies on a trace of requests, in virtual time."`
	Explain     explainCmd     `cmd:"" help:"Ask a running gateway why a request went where it went."`
	Fingerprint fingerprintCmd `cmd:"" help:"Print by what content engines and Cache Managers know a model."`
	Version     versionCmd     `cmd:"" help:"Print the version and exit."`
}

// runContext is what every command gets to work with.
type runContext struct {
	// ctx ends when the command should give up at once; commands that drain install their own signal handling.
	ctx context.Context
	// args are the words behind the program's name, as they were typed.
	args           []string
	stdout, stderr io.Writer
	// log writes to stderr.
	log *slog.Logger
}

// exitError ends the program with a code and, unless empty, a message on stderr.
type exitError struct {
	code int
	msg  string
}

func (e exitError) Error() string { return e.msg }

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// run is main without the process around it, so that tests can call it. It returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cmd, code := parse(args, stdout, stderr)
	if cmd == nil {
		return code
	}
	rc := &runContext{
		ctx: ctx, args: args, stdout: stdout, stderr: stderr,
		log: slog.New(slog.NewTextHandler(stderr, nil)),
	}
	return exitCode(cmd.Run(rc), stderr)
}

// runner is one of the fields of cli.
type runner interface{ Run(rc *runContext) error }

// parse returns the command that the words ask for; nil if there is none to run, and the exit code then. The parser ends here: what it knows of all
// commands is 350 KiB, which a daemon would keep for as long as it runs.
func parse(args []string, stdout, stderr io.Writer) (cmd runner, code int) {
	exited := false
	parser, err := kong.New(grammar(args),
		kong.Name("perigee"),
		kong.Description("Sends each LLM request to the engine nearest to the state it needs."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(n int) { code, exited = n, true }),
		kong.UsageOnError(),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
	)
	if err != nil {
		fmt.Fprintln(stderr, "perigee:", err)
		return nil, exitRun
	}
	k, err := parser.Parse(args)
	if exited { // --help was asked for
		return nil, code
	}
	if err != nil {
		fmt.Fprintf(stderr, "perigee: %v\n(perigee --help lists the commands, perigee COMMAND --help the flags)\n", err)
		return nil, exitUsage
	}
	return k.Selected().Target.Addr().Interface().(runner), exitDone
}

// grammar is the command line as far as it is needed: with nothing but the command that the first word names, or with all if it names none. What is made
// of the others leaves holes between what a daemon keeps, as much as they took.
func grammar(args []string) any {
	if len(args) > 0 {
		for f := range reflect.TypeFor[cli]().Fields() {
			if strings.ToLower(f.Name) == args[0] {
				return reflect.New(reflect.StructOf([]reflect.StructField{f})).Interface()
			}
		}
	}
	return &cli{}
}

// exitCode says what a command's error means for the caller of the program, and prints it.
func exitCode(err error, stderr io.Writer) int {
	var e exitError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &e):
		if e.msg != "" {
			fmt.Fprintln(stderr, "perigee:", e.msg)
		}
		return e.code
	default:
		fmt.Fprintln(stderr, "perigee:", err)
		return exitRun
	}
}
