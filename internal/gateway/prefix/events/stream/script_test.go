package stream

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/script"
)

// The scripts of testdata show what a machine decides. Each input prints the actions and, where it changes, the state.
//
//	new replay=BOOL held=N                     a machine
//	connect, broken ago=D, end, fail, dropped, renewed, close
//	live N… print=P, replayed N… print=P       batches; the print is the process's, 1 by default
//	apply N outcome=emptied|lossy              as live, with what is in the batch
//	wait D                                     time passes, with ticks at the deadlines
//	status
func TestScripts(t *testing.T) {
	script.Run(t, "testdata/*.txt", func(t *testing.T) script.Interpreter { return (&player{now: epoch}).do })
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

type player struct {
	m       *Machine
	now     time.Time
	said    string
	outcome Outcome
	ask     uint64
}

func (p *player) do(c *script.Command) bool {
	simple := map[string]InputKind{"connect": Connected, "end": ReplayEnd, "fail": ReplayBroken, "dropped": Dropped, "renewed": Renewed, "close": Closed}
	switch c.Name {
	case "new":
		p.m = New(p.now, c.Arg("replay", "true") == "true", Limits{Held: int(c.Int("held", 0))})
		p.said = ""
		p.state(c)
	case "live", "replayed", "apply":
		p.outcome = map[string]Outcome{"emptied": Emptied, "lossy": Lossy}[c.Arg("outcome", "")]
		kind := Live
		if c.Name == "replayed" {
			kind = Replayed
		}
		process := uint64(c.Int("print", 1))
		for _, w := range c.Words() {
			seq := c.ParseInt(w)
			p.step(c, Input{Kind: kind, Batch: Batch{Seq: seq, Print: process<<32 | uint64(seq), Payload: []byte{1}}})
		}
		p.outcome = Plain
	case "broken":
		p.step(c, Input{Kind: Broken, Heard: p.now.Add(-c.Duration("ago", 0))})
	case "wait":
		end := p.now.Add(c.ParseDuration(c.Word()))
		for d := p.m.Deadline(); !d.IsZero() && !d.After(end); d = p.m.Deadline() {
			p.now = d
			p.step(c, Input{Kind: Tick})
			if !p.m.Deadline().After(d) && !p.m.Deadline().IsZero() {
				c.Fatalf("the deadline stands still")
			}
		}
		p.now = end
	case "status":
		s := p.m.Status()
		c.Print(fmt.Sprintf("next=%d held=%d asking=%v applied=%d duplicates=%d not_held=%d gaps=%d asks=%d probes=%d losses=%d restarts=%d hides=%d",
			s.Next, s.Held, s.Asking, s.Applied, s.Duplicates, s.NotHeld, s.Gaps, s.Asks, s.Probes, s.Losses, s.Restarts, s.Hides))
	default:
		kind, ok := simple[c.Name]
		if !ok {
			return false
		}
		p.step(c, Input{Kind: kind})
	}
	return true
}

func (p *player) step(c *script.Command, in Input) {
	var words []string
	in.Ask = p.ask
	for _, a := range p.m.Step(p.now, in) {
		switch a.Kind {
		case Apply:
			words = append(words, fmt.Sprintf("apply:%d", a.Batch.Seq))
			if p.outcome == Lossy {
				words = append(words, "(doubt)")
			}
			for range p.m.Applied(p.now, p.outcome) {
				words = append(words, "mark:"+p.m.Trust().String())
			}
		case Drop:
			words = append(words, fmt.Sprintf("drop:%d", a.Batch.Seq))
		case Ask:
			p.ask = a.Ask
			words = append(words, fmt.Sprintf("ask:%d", a.From))
		case Mark:
			words = append(words, "mark:"+p.m.Trust().String())
		default:
			words = append(words, [...]string{Hide: "hide", Doubt: "doubt", Withdraw: "withdraw", Hangup: "hangup"}[a.Kind])
		}
	}
	if len(words) > 0 {
		c.Print(p.now.Sub(epoch).String()+":", strings.Join(words, " "))
	}
	p.state(c)
}

func (p *player) state(c *script.Command) {
	s := p.m.Status()
	text := s.State.String()
	if s.Why != None {
		text += " (" + s.Why.String() + ")"
	}
	if !s.Whole {
		text += ", partial (" + s.PartWhy.String() + ")"
	}
	if text != p.said {
		p.said = text
		c.Print("  ", text)
	}
}
