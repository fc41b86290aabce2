// Command gateway measures what the gateway costs: the same load, in the same run, straight to a stub engine, through
// a plain httputil.ReverseProxy, and through perigee serve. It contacts loopback only.
//
// The targets take turns in every cell of every round, so that what else the machine does hits them alike; ratios are
// taken within a round, and the median of the rounds is shown. Quote the ratios: absolute figures belong to the machine.
//
// As fast as answers come each target has another load, the one that it can bear; with -rate all have the same.
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// options are the flags of a run.
type options struct {
	perigee  string
	beside   string
	also     []other
	extra    string
	rounds   int
	duration time.Duration
	warm     time.Duration
	bodies   []int
	conns    []int
	rate     float64
	modes    []string
	engines  int
	chunks   int
	jsonFile string
	logDir   string
	tls      bool
}

// other is a router of somebody else's.
type other struct{ name, command string }

// argv is the command with its port and its engines. The shell is replaced by the router, whose CPU time is counted by its process.
func (r other) argv(port int, engines []string) []string {
	command := strings.NewReplacer("{PORT}", strconv.Itoa(port), "{ENGINES}", "http://"+strings.Join(engines, " http://")).Replace(r.command)
	return []string{"sh", "-c", "exec " + command}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The stub and the plain proxy are this program too, each in a process of its own, so that their CPU time is
	// counted apart.
	err := dispatch(ctx, os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench-gateway:", err)
		os.Exit(1)
	}
}

// maxRate is more than loopback carries; each request that is due takes memory, sent or not.
const maxRate = 1e6

func parseOptions(args []string) (options, error) {
	var o options
	var bodies, conns, modes string
	fs := flag.NewFlagSet("bench-gateway", flag.ContinueOnError)
	fs.StringVar(&o.perigee, "perigee", "bin/perigee", "the binary to measure; empty: only the stub and the plain proxy")
	fs.StringVar(&o.beside, "beside", "", "another build of perigee, to be measured by turns with the first; empty: none")
	fs.Func("also", "another router, as `NAME=COMMAND`, may be given again; {PORT} stands for where it is to listen on 127.0.0.1, {ENGINES} for the engines' URLs", func(text string) error {
		name, command, ok := strings.Cut(text, "=")
		if !ok || name == "" || !strings.Contains(command, "{PORT}") {
			return errors.New("it is no NAME=COMMAND with {PORT}")
		}
		o.also = append(o.also, other{name, command})
		return nil
	})
	fs.StringVar(&o.extra, "perigee-args", "", "more flags for perigee serve, separated by spaces")
	fs.IntVar(&o.rounds, "rounds", 3, "rounds; an odd number has a true median")
	fs.DurationVar(&o.duration, "d", 2*time.Second, "measured time of one cell")
	fs.DurationVar(&o.warm, "warm", 300*time.Millisecond, "load before each cell that is not measured")
	fs.StringVar(&bodies, "bodies", "1024,32768", "sizes of the request body in bytes")
	fs.StringVar(&conns, "conns", "1,16,64", "client connections, each with one request at a time")
	fs.Float64Var(&o.rate, "rate", 0, "requests a second over all connections of a cell, sent when they are due and timed from then; 0: as fast as answers come")
	fs.StringVar(&modes, "modes", "json,stream", "json, stream or both")
	fs.IntVar(&o.engines, "engines", 4, "engines that the stub plays")
	fs.IntVar(&o.chunks, "chunks", 64, "events of a streamed answer")
	fs.BoolVar(&o.tls, "tls", false, "reach perigee over TLS and HTTP/1.1; all else is reached as it is")
	fs.StringVar(&o.jsonFile, "json", "", "write all rows and medians to this file")
	fs.StringVar(&o.logDir, "logs", ".cache/bench-gateway", "where the logs of the processes go")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	var err1, err2 error
	o.bodies, err1 = numbers("-bodies", bodies)
	o.conns, err2 = numbers("-conns", conns)
	var err3 error
	for _, m := range strings.Split(modes, ",") {
		if m != "json" && m != "stream" {
			err3 = fmt.Errorf("-modes: %q is neither json nor stream", m)
		}
		o.modes = append(o.modes, m)
	}
	if o.rounds < 1 || o.duration <= 0 || o.engines < 1 || o.chunks < 1 {
		err3 = errors.Join(err3, errors.New("-rounds, -d, -engines and -chunks must be positive"))
	}
	if !(o.rate >= 0 && o.rate <= maxRate) { // NaN is neither
		err3 = errors.Join(err3, fmt.Errorf("-rate: %v is not between 0 and %v", o.rate, maxRate))
	}
	return o, errors.Join(err1, err2, err3)
}

func numbers(name, list string) ([]int, error) {
	var out []int
	for _, s := range strings.Split(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%s: %q is not a positive number", name, s)
		}
		out = append(out, n)
	}
	return out, nil
}

// cell is one kind of load.
type cell struct {
	Mode  string `json:"mode"` // json or stream
	Body  int    `json:"body_bytes"`
	Conns int    `json:"conns"`
	// Rate is of requests a second over all connections; 0: as fast as answers come.
	Rate float64 `json:"rate,omitempty"`
}

func (c cell) String() string {
	s := fmt.Sprintf("%s %dB c%d", c.Mode, c.Body, c.Conns)
	if c.Rate > 0 {
		s += fmt.Sprintf(" %v/s", c.Rate)
	}
	return s
}

// row is one cell of one target in one round.
type row struct {
	Round  int    `json:"round"`
	Target string `json:"target"`
	Cell   cell   `json:"cell"`
	result
}

// target is where load can be sent. proc is nil for the stub itself, whose CPU time is of no interest.
type target struct {
	name  string
	addrs []string
	proc  *process
	tls   *tls.Config // nil: it is reached without
}

func benchMain(ctx context.Context, args []string) error {
	o, err := parseOptions(args)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.logDir, 0o755); err != nil {
		return err
	}
	targets, stop, err := startTargets(ctx, o)
	defer stop()
	if err != nil {
		return err
	}
	rows, err := measure(ctx, o, targets)
	if err != nil {
		return err
	}
	sums := summarise(rows)
	printTable(os.Stdout, sums)
	if o.jsonFile == "" {
		return nil
	}
	text, err := json.MarshalIndent(map[string]any{"rows": rows, "medians": sums}, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(o.jsonFile, append(text, '\n'), 0o644)
}

// startTargets starts the stub, the plain proxy and perigee. Its stop function ends whatever was started, also after
// an error.
func startTargets(ctx context.Context, o options) (targets []target, stop func(), err error) {
	var started []*process
	stop = func() {
		for _, p := range slices.Backward(started) { // the stub last: proxies would complain that it is gone
			p.stop()
		}
	}
	self, err := os.Executable()
	if err != nil {
		return nil, stop, err
	}
	run := func(name string, argv ...string) (*process, string, error) {
		p, line, err := startProcess(ctx, name, o.logDir, argv)
		if p != nil {
			started = append(started, p)
		}
		return p, line, err
	}
	_, line, err := run("stub", self, "stub", "-engines", strconv.Itoa(o.engines), "-chunks", strconv.Itoa(o.chunks))
	if err != nil {
		return nil, stop, err
	}
	engines := strings.Fields(line)
	targets = append(targets, target{name: "direct", addrs: engines})

	proxy, line, err := run("proxy", append([]string{self, "proxy"}, engines...)...)
	if err != nil {
		return nil, stop, err
	}
	targets = append(targets, target{name: "proxy", addrs: []string{strings.TrimSpace(line)}, proc: proxy})

	secure, clients := strings.Fields(o.extra), (*tls.Config)(nil)
	if o.tls {
		flags, over, err := makeCertificate(o.logDir)
		if err != nil {
			return nil, stop, err
		}
		secure, clients = append(secure, flags...), over
	}
	for _, b := range []struct{ name, path string }{{"beside", o.beside}, {"perigee", o.perigee}} {
		if b.path == "" {
			continue
		}
		port, err := freePort()
		if err != nil {
			return nil, stop, err
		}
		argv := []string{b.path, "serve", "--host", "127.0.0.1", "--port", strconv.Itoa(port),
			"--model-id", modelID, "--policy", "round_robin", "--worker-urls"}
		for _, e := range engines {
			argv = append(argv, "http://"+e)
		}
		p, _, err := run(b.name, append(argv, secure...)...)
		if err != nil {
			return nil, stop, err
		}
		targets = append(targets, target{b.name, []string{"127.0.0.1:" + strconv.Itoa(port)}, p, clients})
	}
	for _, r := range o.also {
		port, err := freePort()
		if err != nil {
			return nil, stop, err
		}
		p, err := launch(r.name, o.logDir, r.argv(port, engines))
		if err != nil {
			return nil, stop, err
		}
		started = append(started, p)
		targets = append(targets, target{name: r.name, addrs: []string{"127.0.0.1:" + strconv.Itoa(port)}, proc: p})
	}
	for _, t := range targets {
		if err := waitServing(ctx, t); err != nil {
			return nil, stop, err
		}
	}
	return targets, stop, nil
}

// waitServing sends single requests until one is answered: a gateway may still be reading its engines when it listens.
func waitServing(ctx context.Context, t target) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		err := askOnce(ctx, t.addrs[0], t.tls)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s at %s never answered: %w", t.name, t.addrs[0], err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// measure runs every cell of every round on every target.
func measure(ctx context.Context, o options, targets []target) ([]row, error) {
	var cells []cell
	for _, mode := range o.modes {
		for _, body := range o.bodies {
			for _, conns := range o.conns {
				cells = append(cells, cell{mode, body, conns, o.rate})
			}
		}
	}
	total := time.Duration(o.rounds*len(cells)*len(targets)) * (o.duration + o.warm)
	fmt.Fprintf(os.Stderr, "%d rounds of %d cells on %d targets: about %v\n", o.rounds, len(cells), len(targets), total.Round(time.Second))
	var rows []row
	for round := range o.rounds {
		for i, c := range cells {
			for k := range targets {
				// Another target goes first each time: the first of a turn meets what the last one left.
				t := targets[(k+round+i)%len(targets)]
				r, err := runCell(ctx, o, c, t)
				if err != nil {
					return nil, fmt.Errorf("%s, %v: %w", t.name, c, err)
				}
				rows = append(rows, row{round + 1, t.name, c, r})
			}
		}
		fmt.Fprintf(os.Stderr, "round %d of %d done\n", round+1, o.rounds)
	}
	return rows, nil
}
