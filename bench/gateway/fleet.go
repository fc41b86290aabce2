package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"
)

// fleetMain measures what a fleet costs by its size: the CPU time of a gateway that has nothing to do but ask its engines for their load, and
// the CPU time of a request beyond that. A gateway of each size has its turn in each round.
func fleetMain(ctx context.Context, args []string) error {
	var s single
	fs := flag.NewFlagSet("fleet", flag.ContinueOnError)
	s.flags(fs)
	sizes := fs.String("engines", "4,64,1000", "sizes of the fleet")
	idle := fs.Duration("idle", 20*time.Second, "how long the idle gateway is watched")
	load := fs.Duration("d", 5*time.Second, "measured time under load; 0: none")
	conns := fs.Int("conns", 16, "client connections, each with one request at a time")
	rounds := fs.Int("rounds", 3, "rounds")
	policies := fs.String("policies", "round_robin", "policies that need neither events nor a tokenizer, each with a gateway of its own")
	if err := fs.Parse(args); err != nil {
		return err
	}
	list, err := numbers("-engines", *sizes)
	if err != nil {
		return err
	}
	extra := s.extra
	fmt.Printf("%-14s %6s %8s %14s %12s %14s %9s\n", "policy", "round", "engines", "idle, cores", "requests/s", "CPU µs/request", "others")
	for round := range *rounds {
		for _, n := range list {
			for _, p := range strings.Split(*policies, ",") {
				s.extra = "--policy " + p + " " + extra
				fmt.Printf("%-14s ", p)
				if err := s.fleetOnce(ctx, round+1, n, *idle, *load, cell{Mode: "json", Body: 1024, Conns: *conns}); err != nil {
					return fmt.Errorf("%s, %d engines: %w", p, n, err)
				}
			}
		}
	}
	return nil
}

func (s *single) fleetOnce(ctx context.Context, round, engines int, idle, load time.Duration, c cell) (err error) {
	defer s.stop()
	if err := s.start(ctx, engines); err != nil {
		return err
	}
	if err := pause(ctx, 3*time.Second); err != nil { // the engines were asked what they are, and what that left behind is collected
		return err
	}
	before := usage(s.proc)
	if err := pause(ctx, idle); err != nil {
		return err
	}
	after := usage(s.proc)
	cores := (after.target - before.target) / idle.Seconds()
	others := (after.busy - before.busy - (after.own - before.own)) / idle.Seconds()
	if load == 0 {
		fmt.Printf("%6d %8d %13.2f%% %12s %14s %9.2f\n", round, engines, 100*cores, "", "", others)
		return nil
	}
	r, err := runCell(ctx, options{warm: time.Second, duration: load}, c, target{name: "perigee", addrs: []string{s.addr}, proc: s.proc})
	if err != nil {
		return err
	}
	perRequest := r.CPUPer1k/1000 - cores*load.Seconds()/float64(r.Requests)
	fmt.Printf("%6d %8d %13.2f%% %12.0f %14.1f %9.2f\n", round, engines, 100*cores, r.RPS, perRequest*1e6, r.Others)
	return nil
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
