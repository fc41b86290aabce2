// Command eval judges what a driver has measured: whether the service levels and regression budgets that a plan declares hold, with and without Perigee.
//
//	eval check PLAN                        is it a plan? prints its SHA-256
//	eval judge -plan PLAN -run RUN -out PREFIX   writes PREFIX.json and PREFIX.md; exit code 3 if a rule fails
//
// A run names the plan that it was made by, by its hash: it is judged by no other. Drivers are beside this file; what they write is Run.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/perigee-llm/perigee/bench/eval/judge"
)

// Exit codes, for scripts.
const (
	exitBroken = 1 // it could not be judged
	exitUsage  = 2
	exitFailed = 3 // judged, and a rule does not hold
)

func main() {
	failed, err := run(os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, "usage: eval check PLAN | eval judge -plan PLAN -run RUN -out PREFIX")
		os.Exit(exitUsage)
	case err != nil:
		fmt.Fprintln(os.Stderr, "eval:", err)
		os.Exit(exitBroken)
	case failed:
		os.Exit(exitFailed)
	}
}

var errUsage = errors.New("usage")

func run(args []string, out io.Writer) (failed bool, err error) {
	if len(args) == 2 && args[0] == "check" {
		_, sum, err := readPlan(args[1])
		if err == nil {
			fmt.Fprintln(out, sum)
		}
		return false, err
	}
	if len(args) == 0 || args[0] != "judge" {
		return false, errUsage
	}
	f := flag.NewFlagSet("judge", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	planFile, runFile, prefix := f.String("plan", "", ""), f.String("run", "", ""), f.String("out", "", "")
	if f.Parse(args[1:]) != nil || *planFile == "" || *runFile == "" || *prefix == "" || f.NArg() > 0 {
		return false, errUsage
	}
	plan, sum, err := readPlan(*planFile)
	if err != nil {
		return false, err
	}
	r, err := readRun(*runFile, plan, sum)
	if err != nil {
		return false, fmt.Errorf("%s: %w", *runFile, err)
	}
	result := newResult(plan, r)
	raw, err := marshal(result)
	if err != nil {
		return false, err
	}
	if err := os.WriteFile(*prefix+".json", raw, 0o644); err != nil {
		return false, err
	}
	var md bytes.Buffer
	writeMarkdown(&md, plan, r, result)
	if err := os.WriteFile(*prefix+".md", md.Bytes(), 0o644); err != nil {
		return false, err
	}
	for _, v := range result.Verdicts {
		fmt.Fprintf(out, "%-8s %s\n", v.Verdict, describe(v.Rule))
		failed = failed || v.Verdict == judge.Fail
	}
	return failed, nil
}

// readPlan reads a plan and gives its hash in hexadecimal digits. What is not in a plan's schema is a fault: a rule that was misspelt would not be judged.
func readPlan(name string) (*judge.Plan, string, error) {
	raw, err := os.ReadFile(name)
	if err != nil {
		return nil, "", err
	}
	var p judge.Plan
	if err := decode(raw, &p); err != nil {
		return nil, "", fmt.Errorf("%s: %w", name, err)
	}
	if err := p.Validate(); err != nil {
		return nil, "", fmt.Errorf("%s:\n%w", name, err)
	}
	sum := sha256.Sum256(raw)
	return &p, hex.EncodeToString(sum[:]), nil
}

func decode(raw []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("more than one value")
	}
	return nil
}
