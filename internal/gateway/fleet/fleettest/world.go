// Package fleettest is a fleet that test scripts drive: engines come, report, get requests, fail and leave at times that the
// script sets. The package exists so that the tests of policies and of buckets speak of fleets in the same words.
//
// It promises that an argument which a script does not give is unknown to the code under test, never zero.
package fleettest

import (
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/script"
)

// Epoch is when every World begins; the code under test never asks what time it is.
var Epoch = time.Unix(1_800_000_000, 0)

// World is one script's fleet. It belongs to one test.
type World struct {
	Reg     *fleet.Registry
	Tracker load.Tracker
	Now     time.Time
	// Workers are all that were ever registered, the latest of each id.
	Workers map[string]*fleet.Worker

	held map[string][]*load.Guard
}

// New returns an empty fleet at Epoch whose breakers open after two failures for ten seconds.
func New() *World {
	return &World{
		Reg: fleet.NewRegistry(fleet.BreakerConfig{Threshold: 2, CoolDown: 10 * time.Second}, 0), Now: Epoch,
		Workers: map[string]*fleet.Worker{}, held: map[string][]*load.Guard{},
	}
}

// Do runs one command, and returns false if it is none of these:
//
//	at D                                   the time is D after Epoch
//	engine ID… stage= models=a,b ranks= url=   register; models is m if not given
//	report ID… rank= at= running= waiting= uncached= used= total= capacity= maxrunning= tokens= busy=
//	forget ID…                             drop the reports
//	inflight ID N stage= tokens=           acquire or release guards until N are held
//	trip ID…                               fail until the breaker opens
//	recover ID…                            one success
//	remove ID…
func (w *World) Do(c *script.Command) bool {
	switch c.Name {
	case "at":
		w.Now = Epoch.Add(c.ParseDuration(c.Word()))
	case "engine":
		spec := fleet.Spec{
			URL: c.Arg("url", ""), Kind: fleet.SGLang, Stage: w.Stage(c), Models: c.List("models"), Ranks: int(c.Int("ranks", 1)),
		}
		if spec.Models == nil {
			spec.Models = []string{"m"}
		}
		for _, spec.ID = range c.Words() {
			w.Workers[spec.ID] = w.Reg.Put(spec)
		}
	case "report":
		r := RankReport(c, w.Now)
		rank := int(c.Int("rank", 0))
		for _, id := range c.Words() {
			if !w.worker(c, id).Load.Observe(rank, r) {
				c.Print("report of", id, "not used")
			}
		}
	case "forget":
		for _, id := range c.Words() {
			w.worker(c, id).Load.Forget()
		}
	case "inflight":
		w.inFlight(c, c.Word(), int(c.ParseInt(c.Word())))
	case "trip":
		for _, id := range c.Words() {
			w.trip(c, w.worker(c, id))
		}
	case "recover":
		for _, id := range c.Words() {
			t, ok := w.Reg.Claim(w.worker(c, id), w.Now)
			if !ok {
				c.Fatalf("the breaker of %s refuses", id)
			}
			w.Reg.Done(t, fleet.Success, w.Now)
		}
	case "remove":
		for _, id := range c.Words() {
			if !w.Reg.Remove(id) {
				c.Fatalf("no engine %s", id)
			}
		}
	default:
		return false
	}
	return true
}

// Stage reads stage=, plain if it is not given.
func (w *World) Stage(c *script.Command) fleet.Stage {
	name := c.Arg("stage", "plain")
	for s := fleet.Plain; s <= fleet.Decode; s++ {
		if s.String() == name {
			return s
		}
	}
	c.Fatalf("no stage %s", name)
	return 0
}

func (w *World) worker(c *script.Command, id string) *fleet.Worker {
	x := w.Workers[id]
	if x == nil {
		c.Fatalf("no engine %s", id)
	}
	return x
}

func (w *World) inFlight(c *script.Command, id string, n int) {
	stage := load.StagePrefill
	if w.Stage(c) == fleet.Decode {
		stage = load.StageDecode
	}
	e, tokens := w.worker(c, id).Load, c.Int("tokens", 1)
	for len(w.held[id]) < n {
		w.held[id] = append(w.held[id], w.Tracker.Acquire(e, w.Now, stage, tokens, nil))
	}
	for _, g := range w.held[id][n:] {
		g.Release()
	}
	w.held[id] = w.held[id][:n]
}

func (w *World) trip(c *script.Command, x *fleet.Worker) {
	for range 100 {
		if s, _ := w.Reg.Breaker(x); s == fleet.Open {
			return
		}
		if t, ok := w.Reg.Claim(x, w.Now); ok {
			w.Reg.Done(t, fleet.Failure, w.Now)
		}
	}
	c.Fatalf("the breaker of %s does not open", x.ID)
}

// RankReport reads a report's figures from a command's arguments; at= is when it was asked for, now if not given.
func RankReport(c *script.Command, now time.Time) load.RankReport {
	count := func(key string) load.Count {
		if !c.Has(key) {
			return load.Count{}
		}
		return load.Known(c.Int(key, 0))
	}
	at := now
	if c.Has("at") {
		at = Epoch.Add(c.Duration("at", 0))
	}
	return load.RankReport{
		At: at, Running: count("running"), Waiting: count("waiting"), WaitingUncached: count("uncached"), Used: count("used"),
		Total: count("total"), Capacity: count("capacity"), MaxRunning: count("maxrunning"),
		PrefillTokens: count("tokens"), PrefillBusy: count("busy"),
	}
}
