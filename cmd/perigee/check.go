package main

import (
	"encoding/json"
	"fmt"

	"github.com/perigee-llm/perigee/internal/gateway"
	"github.com/perigee-llm/perigee/internal/gateway/config"
)

// checkCmd judges gateway configurations without starting anything.
type checkCmd struct {
	Files   []string `arg:"" name:"file" help:"Configuration files, as perigee serve --config takes them."`
	Secrets bool     `name:"secrets" help:"Read the files of keys, certificates and tokenizers that they name, too."`
	JSON    bool     `name:"json" help:"Print one list of faults for a machine."`
}

// Help shows what a run looks like.
func (checkCmd) Help() string {
	return `Prints every fault of every file, one a line, as file:line:column: path: what; cure.
Exit code 2 when there is an error; warnings alone are 0. Files of keys, certificates and tokenizers that a configuration
names are read only with --secrets: they may not be on the machine that judges it.

Example:
  perigee check examples/buckets.yaml`
}

// jsonFault is one fault in the output of check --json.
type jsonFault struct {
	File     string `json:"file"`
	Line     int    `json:"line,omitempty"`
	Column   int    `json:"column,omitempty"`
	Path     string `json:"path,omitempty"`
	Severity string `json:"severity"` // error or warning
	What     string `json:"what"`
	Cure     string `json:"cure,omitempty"`
}

// Run prints the faults and ends with exit code 2 when any of them is an error.
func (c *checkCmd) Run(rc *runContext) error {
	failed := false
	list := []jsonFault{}
	for _, name := range c.Files {
		cfg, faults := config.ParseFile(name)
		if cfg != nil && c.Secrets {
			faults = append(faults, gateway.CheckFiles(cfg)...)
		}
		failed = failed || len(faults.Errors()) > 0
		for _, f := range faults {
			severity := "error"
			if f.Warning {
				severity = "warning"
			}
			list = append(list, jsonFault{f.File, f.Line, f.Column, f.Path, severity, f.What, f.Cure})
			if !c.JSON {
				fmt.Fprintln(rc.stdout, f)
			}
		}
		if len(faults.Errors()) == 0 && !c.JSON {
			fmt.Fprintln(rc.stdout, summary(name, cfg))
		}
	}
	if c.JSON {
		enc := json.NewEncoder(rc.stdout)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		if err := enc.Encode(list); err != nil {
			return err
		}
	}
	if failed {
		return exitError{code: exitUsage}
	}
	return nil
}

// summary says in one line what a configuration that can be used holds.
func summary(name string, c *config.Config) string {
	buckets := 0
	for i := range c.Models {
		buckets += len(c.Models[i].Buckets)
	}
	workers := 0
	if c.Discovery.Static != nil {
		workers = len(c.Discovery.Static.Workers)
	}
	return fmt.Sprintf("%s: ok: %s, %s, %s", name, count(len(c.Models), "model"), count(buckets, "bucket"), count(workers, "worker"))
}

// count writes a number and its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
