package load_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet/fleettest"
	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/script"
)

// others are the accounts of a script's other gateways, by name.
type others map[string]*load.Account

func (o others) account(name string) *load.Account {
	if o[name] == nil {
		o[name] = load.NewAccount(0)
	}
	return o[name]
}

// peers runs one command:
//
//	account P most=N
//	told P E ID tokens= at= unseen=yes · gone P ID at= · all P E/ID/TOKENS… · heard P · silence D
//	prefilled GUARD · prefill E since= · accounts
func (w *world) peers(c *script.Command) bool {
	switch c.Name {
	case "account":
		w.others[c.Word()] = load.NewAccount(int(c.Int("most", 0)))
	case "told":
		a := w.others.account(c.Word())
		t := load.Told{Engine: w.engine(c), Prompt: load.Prompt{
			ID: uint64(c.ParseInt(c.Word())), Uncached: c.Int("tokens", 0), At: w.time(c), Unseen: c.Has("unseen") && c.Arg("unseen", "") == "yes",
		}}
		if !a.Sent(t) {
			c.Print("no room")
		}
	case "gone":
		a, id, at := w.others.account(c.Word()), uint64(c.ParseInt(c.Word())), time.Time{}
		if c.Has("at") {
			at = w.time(c)
		}
		a.Gone(id, at)
	case "all":
		a := w.others.account(c.Word())
		var list []load.Told
		for _, text := range c.Words() {
			part := strings.Split(text, "/")
			list = append(list, load.Told{Engine: w.named(part[0]), Prompt: load.Prompt{ID: uint64(c.ParseInt(part[1])), Uncached: c.ParseInt(part[2]), At: w.now}})
		}
		if !a.All(list) {
			c.Print("no room")
		}
	case "heard":
		w.others.account(c.Word()).Heard(w.now)
	case "silence":
		d := c.ParseDuration(c.Word())
		for _, name := range slices.Sorted(maps.Keys(w.others)) {
			if w.others[name].Expire(w.now, d) {
				c.Print(name, "is silent")
			}
		}
	case "prefilled":
		w.guards[c.Word()].Prefilled(w.now)
	case "prefill":
		e := w.engine(c)
		p := e.Prefill(fleettest.Epoch.Add(c.Duration("since", 0)))
		line := fmt.Sprintf("%d tokens, %d since (%d prompts of others)", p.Tokens, p.Since, p.OthersSince)
		if p.Tokens > 0 {
			line += fmt.Sprintf("; first %d, begun at %v", p.Head, p.HeadAt.Sub(fleettest.Epoch))
		}
		c.Print(line)
	case "accounts":
		for _, name := range slices.Sorted(maps.Keys(w.others)) {
			c.Print(name, strconv.Itoa(w.others[name].Len()))
		}
	default:
		return false
	}
	return true
}

func (w *world) time(c *script.Command) time.Time {
	if c.Has("at") {
		return fleettest.Epoch.Add(c.Duration("at", 0))
	}
	return w.now
}

// mirror is one gateway as another hears it: what it tells goes into an account over engines of the other's own, later.
type mirror struct {
	account *load.Account
	twin    map[*load.Engine]*load.Engine
	lose    func() bool
	post    *[]func()
}

func (m *mirror) Sent(e *load.Engine, p load.Prompt) {
	if !m.lose() {
		*m.post = append(*m.post, func() { m.account.Sent(load.Told{Engine: m.twin[e], Prompt: p}) })
	}
}

func (m *mirror) Gone(_ *load.Engine, id uint64, at time.Time) {
	if !m.lose() {
		*m.post = append(*m.post, func() { m.account.Gone(id, at) })
	}
}

// TestAccountsMirrorWhatIsTold: two gateways over the same engines see the same prompts in prefill, whatever happens at either, while
// nothing is lost; and after a loss as soon as a full list has come.
func TestAccountsMirrorWhatIsTold(t *testing.T) {
	rng := script.Rand(t)
	const gateways, engines = 2, 2
	for round := range 150 {
		lossy := round%2 == 1
		lose := func() bool { return lossy && rng.IntN(4) == 0 }
		var trackers [gateways]load.Tracker
		var fleet [gateways][engines]load.Engine
		var mirrors [gateways]*mirror
		var post []func()
		for g := range trackers {
			m := &mirror{account: load.NewAccount(0), twin: map[*load.Engine]*load.Engine{}, lose: lose, post: &post}
			for e := range engines {
				m.twin[&fleet[g][e]] = &fleet[1-g][e]
			}
			trackers[g].Observer, mirrors[g] = m, m
		}
		var guards []*load.Guard
		now := fleettest.Epoch
		for step := range 120 {
			now = now.Add(time.Second) // two at one moment may stand in either order
			switch g := rng.IntN(gateways); rng.IntN(7) {
			case 0, 1, 2:
				stage := load.StagePrefill
				if rng.IntN(4) == 0 {
					stage = load.StageDecode
				}
				guards = append(guards, trackers[g].Acquire(&fleet[g][rng.IntN(engines)], now, stage, rng.Int64N(100), nil))
			case 3:
				if len(guards) > 0 {
					guards[rng.IntN(len(guards))].Computes(rng.Int64N(60)-5, !lossy && rng.IntN(2) == 0)
				}
			case 4, 5:
				if len(guards) > 0 {
					guards[rng.IntN(len(guards))].Prefilled(now)
				}
			default:
				if len(guards) > 0 {
					guards[rng.IntN(len(guards))].Release()
				}
			}
			for len(post) > 0 { // hearing of one may make others known to be gone, which is told too
				next := post[0]
				post = post[1:]
				next()
			}
			if lossy {
				if step%20 < 19 {
					continue
				}
				for g, m := range mirrors {
					var all []load.Told
					for e := range engines {
						for _, p := range fleet[g][e].Prompts(nil) {
							all = append(all, load.Told{Engine: m.twin[&fleet[g][e]], Prompt: p})
						}
					}
					m.account.All(all)
				}
			}
			for e := range engines {
				a, b := fleet[0][e].Prefill(now.Add(-5*time.Second)), fleet[1][e].Prefill(now.Add(-5*time.Second))
				a.OthersSince, b.OthersSince = 0, 0 // theirs are not the same
				if lossy {
					a.HeadAt, b.HeadAt = time.Time{}, time.Time{} // when a lost one got its token nobody told
				}
				if a != b {
					t.Fatalf("round %d, step %d, engine %d: %+v at one, %+v at the other", round, step, e, a, b)
				}
			}
		}
		for g := range mirrors {
			mirrors[g].account.Clear()
			if n := mirrors[g].account.Len(); n != 0 {
				t.Fatalf("%d prompts after Clear", n)
			}
		}
		for _, g := range guards {
			g.Release()
		}
		for g := range fleet {
			for e := range engines {
				if p := fleet[g][e].Prefill(time.Time{}); p.Tokens != 0 || p.Head != 0 {
					t.Fatalf("round %d: left: %+v", round, p)
				}
			}
		}
	}
}
