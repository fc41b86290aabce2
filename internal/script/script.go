// Package script runs text scripts with their answers, in tests: a file is blocks of commands, each followed by "----" and
// by what the commands print. `go test -update` writes the present answers into the files; read the difference before
// committing it.
//
// It promises that nothing in a script is passed over: a command that the interpreter does not know, an argument that it
// does not read and a number that does not parse fail the test and are named.
package script

import (
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write what the scripts print into their files")

// Interpreter runs one command. It prints to c, and returns false if it does not know the command.
type Interpreter func(c *Command) bool

// Command is one line of a script: a name, words, and key=value arguments.
type Command struct {
	// Name is the first word, Line the whole line.
	Name, Line string
	// T fails at the command's place; see Fatalf.
	T *testing.T

	where string
	out   *strings.Builder
	words []string
	args  map[string]string
	read  map[string]bool
	taken int
}

// Run runs every file that matches the pattern, each as a subtest, its commands with a fresh interpreter that begin returns.
func Run(t *testing.T, pattern string, begin func(t *testing.T) Interpreter) {
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no script matches %s: %v", pattern, err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) { runFile(t, f, begin(t)) })
	}
}

func runFile(t *testing.T, file string, do Interpreter) {
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	line, commands := 0, true // the second: what we read are commands, not answers
	for text := range strings.Lines(string(raw)) {
		line++
		text = strings.TrimRight(text, "\n")
		switch {
		case text == "":
			commands = true
		case !commands:
			continue // the old answer
		case text == "----":
			commands = false
		}
		got.WriteString(text + "\n")
	}
	answered := answer(t, file, got.String(), do)
	switch {
	case *update:
		if err := os.WriteFile(file, []byte(answered), 0o644); err != nil {
			t.Fatal(err)
		}
	case answered != string(raw):
		t.Errorf("%s: other answers (- want, + got); if they are right, run go test -update\n%s", file, difference(string(raw), answered))
	}
}

// answer runs a file without answers, and returns it with them.
func answer(t *testing.T, file, questions string, do Interpreter) string {
	var got, out strings.Builder
	for text := range strings.Lines(questions) {
		got.WriteString(text)
		text = strings.TrimSpace(text)
		switch {
		case text == "----":
			got.WriteString(out.String())
			out.Reset()
		case text == "" && out.Len() > 0:
			t.Fatalf("%s: commands without ---- print:\n%s", file, out.String())
		case text == "" || text[0] == '#':
		default:
			run(t, file, text, &out, do)
		}
	}
	if out.Len() > 0 {
		t.Fatalf("%s: the last commands have no ----, and print:\n%s", file, out.String())
	}
	return got.String()
}

func run(t *testing.T, file, text string, out *strings.Builder, do Interpreter) {
	fields := strings.Fields(text)
	c := &Command{Name: fields[0], Line: text, T: t, where: file, out: out, args: map[string]string{}, read: map[string]bool{}}
	for _, f := range fields[1:] {
		if k, v, ok := strings.Cut(f, "="); ok {
			c.args[k] = v
		} else {
			c.words = append(c.words, f)
		}
	}
	if !do(c) {
		c.Fatalf("unknown command")
	}
	if c.taken < len(c.words) {
		c.Fatalf("nobody reads %q", c.words[c.taken])
	}
	for k := range c.args {
		if !c.read[k] {
			c.Fatalf("nobody reads %s=", k)
		}
	}
}

// Fatalf fails the test at the command.
func (c *Command) Fatalf(format string, args ...any) {
	c.T.Helper()
	c.T.Fatalf(c.where+": "+c.Line+": "+format, args...)
}

// Print adds a line to the answer.
func (c *Command) Print(parts ...string) { c.out.WriteString(strings.Join(parts, " ") + "\n") }

// Word takes the next word that is no key=value, and fails if there is none.
func (c *Command) Word() string {
	if c.taken == len(c.words) {
		c.Fatalf("a word is missing")
	}
	c.taken++
	return c.words[c.taken-1]
}

// Words takes all words that are left.
func (c *Command) Words() []string {
	w := c.words[c.taken:]
	c.taken = len(c.words)
	return w
}

// Rewind gives the words back, for another interpreter to read.
func (c *Command) Rewind() { c.taken = 0 }

// Has tells whether the argument is given, and leaves it to be read.
func (c *Command) Has(key string) bool { _, ok := c.args[key]; return ok }

// Arg reads a key=value argument, or the default.
func (c *Command) Arg(key, def string) string {
	c.read[key] = true
	if v, ok := c.args[key]; ok {
		return v
	}
	return def
}

// Int reads a number, or the default.
func (c *Command) Int(key string, def int64) int64 {
	if !c.Has(key) {
		return def
	}
	return c.ParseInt(c.Arg(key, ""))
}

// ParseInt reads a number, "max" and "min" being the ends of int64.
func (c *Command) ParseInt(s string) int64 {
	switch s {
	case "max":
		return 1<<63 - 1
	case "min":
		return -1 << 63
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		c.Fatalf("%v", err)
	}
	return n
}

// Duration reads a duration, or the default.
func (c *Command) Duration(key string, def time.Duration) time.Duration {
	if !c.Has(key) {
		return def
	}
	return c.ParseDuration(c.Arg(key, ""))
}

// ParseDuration reads a duration as Go writes it.
func (c *Command) ParseDuration(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		c.Fatalf("%v", err)
	}
	return d
}

// List reads a comma-separated list: nil if the argument is not given, empty and not nil if its value is.
func (c *Command) List(key string) []string {
	switch v := c.Arg(key, "\x00"); v {
	case "\x00":
		return nil
	case "":
		return []string{}
	default:
		return strings.Split(v, ",")
	}
}

// difference shows the lines that differ, with the blocks' places kept: enough for files whose commands are the same.
func difference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	var b strings.Builder
	for len(w) > 0 && len(g) > 0 && w[len(w)-1] == g[len(g)-1] {
		w, g = w[:len(w)-1], g[:len(g)-1]
	}
	at := 0
	for at < len(w) && at < len(g) && w[at] == g[at] {
		at++
	}
	for _, l := range w[max(0, at-4):at] {
		b.WriteString("  " + l + "\n")
	}
	for _, l := range w[at:] {
		b.WriteString("- " + l + "\n")
	}
	for _, l := range g[at:] {
		b.WriteString("+ " + l + "\n")
	}
	return b.String()
}
