package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// fleetMain measures what a fleet costs by its size: the CPU time of a gateway that has nothing to do but ask its engines for their load, and
// the CPU time of a request beyond that. The gateways of one policy run side by side and are asked by turns, since what a machine does from minute to
// minute is more than what the size of a fleet does. Another build has its turns beside the first, and one is compared with the other as the sizes are.
func fleetMain(ctx context.Context, args []string) error {
	var f fleets
	fs := flag.NewFlagSet("fleet", flag.ContinueOnError)
	f.flags(fs)
	fs.StringVar(&f.other, "beside", "", "another build of perigee, to be measured by turns with the first; empty: none")
	sizes := fs.String("engines", "4,64,1000", "sizes of the fleet")
	idle := fs.Duration("idle", 20*time.Second, "how long the idle gateways are watched")
	fs.DurationVar(&f.load, "d", time.Second, "measured time of a turn under load; 0: none")
	conns := fs.Int("conns", 16, "client connections, each with one request at a time")
	fs.IntVar(&f.rounds, "rounds", 5, "turns of each gateway")
	policies := fs.String("policies", "round_robin", "policies that need neither events nor a tokenizer, one after the other")
	if err := fs.Parse(args); err != nil {
		return err
	}
	list, err := numbers("-engines", *sizes)
	if err != nil {
		return err
	}
	if *idle <= 0 || f.rounds <= 0 {
		return errors.New("-idle and -rounds have to be more than 0")
	}
	f.cell = cell{Mode: "json", Body: 1024, Conns: *conns}
	fmt.Printf("medians of %d turns, least and most in brackets; beside: the CPU time of a request beside that among %d engines, of each turn; of it: beside that of %s\n",
		f.rounds, list[0], cmp.Or(f.other, "another build"))
	fmt.Printf("%-14s %8s %12s %12s %26s %22s %22s %7s\n", "policy", "engines", "idle, cores", "requests/s", "CPU µs/request", "beside", "of it", "others")
	for _, p := range strings.Split(*policies, ",") {
		of := f
		of.extra = "--policy " + p + " " + f.extra
		if err := of.measure(ctx, list, *idle); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		of.print(p)
	}
	return nil
}

// fleets are gateways of one policy, each before a fleet of its own.
type fleets struct {
	single        // what all are started with
	other  string // the path of another build; empty: none
	load   time.Duration
	rounds int
	cell   cell
	all    []*fleetOf // with another build, its own before that of each size
}

// fleetOf is one of them, and what was measured of it; a turn of it has the same place in each list.
type fleetOf struct {
	single
	engines          int
	idle             float64   // cores
	cpu, rps, others []float64 // seconds a request without what an idle gateway takes; a second; cores
}

func (f *fleets) measure(ctx context.Context, engines []int, idle time.Duration) error {
	for _, n := range engines {
		for _, build := range f.builds() {
			g := &fleetOf{single: f.single, engines: n}
			g.perigee, g.logDir = build, filepath.Join(f.logDir, strconv.Itoa(len(f.all)))
			f.all = append(f.all, g)
			defer g.stop()
			if err := g.start(ctx, n); err != nil {
				return err
			}
		}
	}
	if err := pause(ctx, 3*time.Second); err != nil { // the engines were asked what they are, and what that left behind is collected
		return err
	}
	before := f.cpuNow()
	if err := pause(ctx, idle); err != nil {
		return err
	}
	for i, after := range f.cpuNow() {
		f.all[i].idle = (after - before[i]) / idle.Seconds()
	}
	if f.load == 0 {
		return nil
	}
	for round := range f.rounds {
		for k := range f.all {
			g := f.all[(k+round)%len(f.all)] // another goes first each time: the first meets what the last one left
			r, err := runCell(ctx, options{warm: 200 * time.Millisecond, duration: f.load}, f.cell, target{name: "perigee", addrs: []string{g.addr}, proc: g.proc})
			if err != nil {
				return fmt.Errorf("%d engines: %w", g.engines, err)
			}
			g.cpu = append(g.cpu, r.CPUPer1k/1000-g.idle*f.load.Seconds()/float64(r.Requests))
			g.rps, g.others = append(g.rps, r.RPS), append(g.others, r.Others)
		}
	}
	return nil
}

// builds are the paths of what is measured before a fleet of each size.
func (f *fleets) builds() []string {
	if f.other == "" {
		return []string{f.perigee}
	}
	return []string{f.other, f.perigee}
}

func (f *fleets) cpuNow() (all []float64) {
	for _, g := range f.all {
		all = append(all, usage(g.proc).target)
	}
	return all
}

func (f *fleets) print(policy string) {
	builds := len(f.builds())
	for i, g := range f.all {
		fmt.Printf("%-14s %8d %11.2f%%", policy, g.engines, 100*g.idle)
		if f.load > 0 {
			of := ""
			if first := f.all[i-i%builds]; first != g {
				of = beside(g, first)
			}
			fmt.Printf(" %12.0f %26s %22s %22s %7.2f", median(g.rps), spread(g.cpu, 1e6, 1), beside(g, f.all[i%builds]), of, median(g.others))
		}
		fmt.Println()
	}
}

// beside writes the CPU time of one's requests beside the other's, of each turn.
func beside(g, other *fleetOf) string {
	all := slices.Clone(g.cpu)
	for i := range all {
		all[i] /= other.cpu[i]
	}
	return spread(all, 1, 3)
}

// spread writes the median of figures, times unit, with the least and the most of them.
func spread(all []float64, unit float64, digits int) string {
	all = slices.Clone(all) // whose order says which turn a figure is of, and which median changes
	return fmt.Sprintf("%.*f (%.*f–%.*f)", digits, unit*median(all), digits, unit*slices.Min(all), digits, unit*slices.Max(all))
}

// modes are what this program does beside the comparison with a plain proxy, by their names; stub and proxy are processes of the others.
var modes = map[string]func(context.Context, []string) error{
	"stub": stubMain, "proxy": proxyMain, "streams": streamsMain, "fleet": fleetMain,
}

func dispatch(ctx context.Context, args []string) error {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		return benchMain(ctx, args)
	}
	run := modes[args[0]]
	if run == nil {
		return errors.New("no such measurement: " + args[0])
	}
	return run(ctx, args[1:])
}
