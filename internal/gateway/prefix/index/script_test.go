package index

import (
	"fmt"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/script"
)

// TestScripts runs testdata. Blocks have two tokens, and a letter is a token:
//
//	index [limit=N] [max=N]          begin anew
//	engine NAME [limit=N]            a holder, exact unless state=; e1.2 is rank 2 of engine 1
//	store NAME                       a Manager's namespace
//	attach|detach STORE ENGINE
//	stored NAME TEXT as=H,H [after=H] [tier=] [lora=] [salt=] [extras=X,] [group=N] [window=N] [recurrent=yes] [size=N]
//	stored NAME as=H,H               without tokens
//	removed NAME H,H [tier=host]     without a tier: from all
//	cleared|withdraw|doubt|settle|close NAME
//	mark NAME STATE
//	sweep [N]
//	lookup TEXT [lora=] [salt=]
//	about NAME
func TestScripts(t *testing.T) {
	script.Run(t, "testdata/*.txt", func(t *testing.T) script.Interpreter {
		s := &scripted{}
		s.begin(Config{})
		return s.do
	})
}

type scripted struct {
	ix      *Index
	names   map[string]Holder
	engines uint32
}

func (s *scripted) begin(c Config) {
	c.Model, c.BlockSize = "m", 2
	s.ix, s.names, s.engines = New(c), map[string]Holder{}, 0
}

func (s *scripted) do(c *script.Command) bool {
	switch c.Name {
	case "index":
		s.begin(Config{Limit: int(c.Int("limit", 0)), MaxBlocks: int(c.Int("max", 0))})
	case "engine":
		s.engine(c)
	case "store":
		name := c.Word()
		s.names[name] = s.ix.OpenStore()
		s.ix.Mark(s.names[name], Exact)
	case "attach":
		s.ix.Attach(s.holder(c), s.holder(c))
	case "detach":
		s.ix.Detach(s.holder(c), s.holder(c))
	case "stored":
		s.stored(c)
	case "removed":
		e := prefix.Event{Kind: prefix.Removed, Group: int(c.Int("group", 0))}
		h := s.holder(c)
		e.Hashes = parseHashes(c, strings.Split(c.Word(), ","))
		e.AnyTier = !c.Has("tier")
		e.Tier = tier(c)
		s.apply(c, h, &e)
	case "lookup":
		s.lookup(c)
	case "about":
		h := s.holder(c)
		c.Print(strings.TrimPrefix(fmt.Sprintf("%+v", s.ix.About(h)), ""))
	case "sweep":
		more := s.ix.Sweep(int(c.Int("blocks", 1<<20)))
		stats := s.ix.Stats()
		c.Print(fmt.Sprintf("more=%v blocks=%d sets=%d dead=%d", more, stats.Blocks, stats.Sets, stats.Dead))
	default:
		return s.change(c)
	}
	return true
}

func (s *scripted) change(c *script.Command) bool {
	switch c.Name {
	case "cleared":
		s.apply(c, s.holder(c), &prefix.Event{Kind: prefix.Cleared})
	case "withdraw":
		s.ix.Withdraw(s.holder(c))
	case "doubt":
		s.ix.Doubt(s.holder(c))
	case "settle":
		s.ix.Settle(s.holder(c))
	case "close":
		s.ix.Close(s.holder(c))
	case "mark":
		h, state := s.holder(c), c.Word()
		for _, x := range []State{Hidden, Partial, Exact} {
			if x.String() == state {
				s.ix.Mark(h, x)
				return true
			}
		}
		c.Fatalf("no such state")
	default:
		return false
	}
	return true
}

func (s *scripted) engine(c *script.Command) {
	name := c.Word()
	var engine uint32
	var rank int32
	if _, err := fmt.Sscanf(name, "e%d.%d", &engine, &rank); err != nil {
		if _, err := fmt.Sscanf(name, "e%d", &engine); err != nil {
			c.Fatalf("%v", err)
		}
	}
	h := s.ix.Open(engine, rank)
	s.names[name] = h
	s.ix.SetLimit(h, int(c.Int("limit", 0)))
	s.ix.Mark(h, Exact)
}

func (s *scripted) holder(c *script.Command) Holder {
	name := c.Word()
	h, there := s.names[name]
	if !there {
		c.Fatalf("nobody is called %s", name)
	}
	return h
}

func parseHashes(c *script.Command, list []string) (all []prefix.Hash) {
	for _, h := range list {
		all = append(all, prefix.Hash(c.ParseInt(h)))
	}
	return all
}

func tier(c *script.Command) prefix.Tier {
	name := c.Arg("tier", "device")
	for t := range prefix.Tier(prefix.Tiers) {
		if t.String() == name {
			return t
		}
	}
	c.Fatalf("no such tier")
	return 0
}

func text(s string) (tokens []uint32) {
	for _, r := range s {
		tokens = append(tokens, uint32(r))
	}
	return tokens
}

func (s *scripted) stored(c *script.Command) {
	e := prefix.Event{
		Tier: tier(c), LoRA: c.Arg("lora", ""), Salt: c.Arg("salt", ""), BlockSize: int(c.Int("size", 2)),
		Group: int(c.Int("group", 0)), Window: int(c.Int("window", 0)), Recurrent: c.Has("recurrent") && c.Arg("recurrent", "") == "yes",
		Hashes: parseHashes(c, c.List("as")), HasParent: c.Has("after"), Parent: prefix.Hash(c.Int("after", 0)),
	}
	h := s.holder(c)
	for _, t := range c.Words() {
		e.Tokens = append(e.Tokens, text(t)...)
	}
	for _, x := range c.List("extras") {
		e.Extras = append(e.Extras, []byte(x))
	}
	s.apply(c, h, &e)
}

// apply prints what is not as usual: a result other than applied, and counts that are not zero.
func (s *scripted) apply(c *script.Command, h Holder, e *prefix.Event) {
	out := s.ix.Apply(h, e)
	line := out.Result.String()
	for _, n := range []struct {
		name string
		n    int
	}{{"blocks", out.Blocks}, {"unknown", out.Unknown}, {"moved", out.Moved}, {"proven", out.Proven}} {
		if n.n != 0 {
			line += fmt.Sprintf(" %s=%d", n.name, n.n)
		}
	}
	c.Print(line)
}

// lookup prints a holder's depths as device/host/disk/external.
func (s *scripted) lookup(c *script.Command) {
	var m prefix.Match
	q := prefix.Query{Model: "m", LoRA: c.Arg("lora", ""), Salt: c.Arg("salt", ""), Tokens: text(strings.Join(c.Words(), ""))}
	s.ix.Lookup(&q, &m)
	var parts []string
	for _, h := range m.Held {
		name := fmt.Sprintf("e%d", h.Engine)
		if h.Rank != 0 {
			name += fmt.Sprintf(".%d", h.Rank)
		}
		if d := h.Depth; d[0] == d[3] {
			parts = append(parts, fmt.Sprintf("%s=%d", name, d[0]))
		} else {
			parts = append(parts, fmt.Sprintf("%s=%d/%d/%d/%d", name, d[0], d[1], d[2], d[3]))
		}
	}
	if parts == nil {
		parts = []string{"nobody"}
	}
	for _, e := range m.Blind {
		parts = append(parts, fmt.Sprintf("blind=e%d", e))
	}
	c.Print(parts...)
}
