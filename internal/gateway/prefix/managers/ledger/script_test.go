package ledger

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/wire"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
	"github.com/perigee-llm/perigee/internal/managerwire"
	"github.com/perigee-llm/perigee/internal/script"
)

// The scripts of testdata show what becomes of what a Manager says. Blocks are those of one prompt, 0 1 2 …, of 4 tokens each.
//
//	other                                      what follows is of another Manager, or of the first one again
//	new claims=N namespaces=N attachments=N    a ledger
//	engine NO url=U ranks=N | gone NO          an engine that publishes, and holds nothing
//	store NO from-to, clear NO                 what rank 0 of it holds on its device
//	say KIND …                                 an event of the next batch: stored, removed, cleared (ns= blocks= medium= model=),
//	                                           attached, detached (url= rank= instance= ns= media=), cost (medium= fixed= token= samples=), rubbish
//	connect, broken ago=D, dropped, fail, end, close, wait D
//	live N epoch=E, replayed N epoch=E         the batch that was said
//	snapshot epoch=E resume=N records=N        a header, then
//	chunk epoch=E                              what was said
//	look                                       what everybody has of the prompt, by tier
//	costs, status
func TestScripts(t *testing.T) {
	script.Run(t, "testdata/*.txt", func(t *testing.T) script.Interpreter { return newPlayer().do })
}

var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

type player struct {
	l      *Ledger
	store  *local.Store
	costs  *prefix.Costs
	ranks  map[int64][]*local.Rank
	now    time.Time
	said   []managerwire.Event
	broken bool // what is said has an event that cannot be read
	ask    uint64
	state  string
	other  *player // another Manager's, over the same indexes and prices
}

func newPlayer() *player {
	return &player{store: local.New(local.Options{}), costs: &prefix.Costs{}, ranks: map[int64][]*local.Rank{}, now: began}
}

func (p *player) do(c *script.Command) bool {
	switch c.Name {
	case "other":
		o := p.other
		if o == nil {
			o = &player{store: p.store, costs: p.costs, ranks: p.ranks}
			o.l = New(p.now, p.store, p.costs, Limits{})
		}
		was := *p
		was.other = nil
		*p = *o
		p.now, p.other = was.now, &was
	case "new":
		if p.l != nil {
			p.l.Step(p.now, Input{Kind: Closed})
		}
		p.l = New(p.now, p.store, p.costs, Limits{Claims: int(c.Int("claims", 0)), Namespaces: int(c.Int("namespaces", 0)), Attachments: int(c.Int("attachments", 0))})
	case "engine", "gone", "store", "clear":
		p.engine(c)
	case "say":
		p.say(c)
	case "connect":
		p.step(c, Input{Kind: Connected})
	case "broken":
		p.step(c, Input{Kind: Broken, Heard: p.now.Add(-c.Duration("ago", 0))})
	case "dropped":
		p.step(c, Input{Kind: Dropped})
	case "close":
		p.step(c, Input{Kind: Closed})
	case "end", "fail":
		p.step(c, Input{Kind: map[string]InputKind{"end": End, "fail": Failed}[c.Name], Ask: p.ask})
	case "live", "replayed":
		p.step(c, Input{Kind: map[string]InputKind{"live": Live, "replayed": Replayed}[c.Name], Seq: c.ParseInt(c.Word()), Payload: p.batch(c), Ask: p.ask})
	case "chunk":
		p.step(c, Input{Kind: Chunk, Payload: p.batch(c), Ask: p.ask})
	case "snapshot":
		h := wire.SnapshotHeader{Epoch: uint64(c.Int("epoch", 1)), Resume: uint64(c.Int("resume", 0)), Records: uint64(c.Int("records", 0))}
		p.step(c, Input{Kind: Snapshot, Header: h, Ask: p.ask})
	case "wait":
		p.wait(c)
	case "look":
		p.look(c)
	case "costs":
		p.showCosts(c)
	case "status":
		p.status(c)
	default:
		return false
	}
	return true
}

func (p *player) step(c *script.Command, in Input) {
	for _, a := range p.l.Step(p.now, in) {
		if a.Hangup {
			c.Print(p.at(), "hangup")
			continue
		}
		p.ask = a.Ask
		c.Print(p.at(), "ask", [...]string{"whether", "missing", "everything"}[a.Need], "from", strconv.FormatInt(a.From, 10))
	}
	s := p.l.Status()
	state := s.Stream.State.String()
	if w := s.Stream.Why.String(); w != "" {
		state += " (" + w + ")"
	}
	if !s.Stream.Whole {
		state += ", partial (" + s.Stream.PartWhy.String() + ")"
	}
	if s.CutOff != NoExcess {
		state += ", cut off: " + string(s.CutOff)
	}
	if state != p.state {
		p.state = state
		c.Print(p.at(), state)
	}
}

func (p *player) at() string { return p.now.Sub(began).String() + ":" }

func (p *player) wait(c *script.Command) {
	end := p.now.Add(c.ParseDuration(c.Word()))
	for d := p.l.Deadline(); !d.IsZero() && !d.After(end); d = p.l.Deadline() {
		p.now = d
		p.step(c, Input{Kind: Tick})
		if !p.l.Deadline().IsZero() && !p.l.Deadline().After(d) {
			c.Fatalf("due for ever")
		}
	}
	p.now = end
}

func (p *player) engine(c *script.Command) {
	no := c.ParseInt(c.Word())
	switch c.Name {
	case "engine":
		e := local.Engine{No: uint32(no), URL: c.Arg("url", ""), Base: "m"}
		for rank := range int32(c.Int("ranks", 1)) {
			r := p.store.Open(e, rank)
			r.Mark(index.Exact)
			p.ranks[no] = append(p.ranks[no], r)
		}
	case "gone":
		for _, r := range p.ranks[no] {
			r.Close()
		}
		delete(p.ranks, no)
	case "store":
		from, to := span(c, c.Word())
		e := &prefix.Event{Kind: prefix.Stored, BlockSize: 4, Tokens: tokens(4 * to)[4*from:]}
		for i := from; i < to; i++ {
			e.Hashes = append(e.Hashes, prefix.Hash(1000*no+int64(i)))
		}
		if from > 0 {
			e.Parent, e.HasParent = prefix.Hash(1000*no+int64(from)-1), true
		}
		if o := p.ranks[no][0].Apply(e); o.Result != index.Applied {
			c.Fatalf("%+v", o)
		}
	case "clear":
		p.ranks[no][0].Apply(&prefix.Event{Kind: prefix.Cleared})
	}
}

func tokens(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(i)
	}
	return out
}

// span reads a range as 2-5, both included, or 2; the second is behind it.
func span(c *script.Command, s string) (from, to int) {
	a, b, two := strings.Cut(s, "-")
	from = int(c.ParseInt(a))
	if to = from + 1; two {
		to = int(c.ParseInt(b)) + 1
	}
	return from, to
}

var media = map[string]managerwire.Medium{"": managerwire.NoMedium, "cpu": managerwire.CPU, "disk": managerwire.Disk, "external": managerwire.External}

func (p *player) say(c *script.Command) {
	e := managerwire.Event{Rank: managerwire.AllRanks, Media: managerwire.AllMedia}
	copy(e.Namespace[:], c.Arg("ns", ""))
	engine := func() {
		e.Engine, e.Rank, e.Instance = c.Arg("url", "http://one"), int32(c.Int("rank", managerwire.AllRanks)), uint64(c.Int("instance", 1))
	}
	blocks := func() {
		model := c.Arg("model", "m")
		keys := chain.Root{Model: model, BlockSize: 4}.Key().Append(nil, tokens(400), 4)
		from, to := span(c, c.Arg("blocks", "0"))
		if e.Chain = keys[from:to]; from > 0 {
			e.Parent = keys[from-1]
		}
		e.Model, e.BlockSize = model, 4
	}
	switch kind := c.Word(); kind {
	case "stored":
		e.Kind, e.Medium = managerwire.BlockStored, media[c.Arg("medium", "cpu")]
		blocks()
	case "removed":
		e.Kind, e.Medium = managerwire.BlockRemoved, media[c.Arg("medium", "")]
		blocks()
	case "cleared":
		e.Kind = managerwire.AllBlocksCleared
	case "attached":
		e.Kind = managerwire.Attached
		engine()
		if c.Has("media") {
			e.Media = 0
			for _, m := range strings.Split(c.Arg("media", ""), ",") {
				e.Media |= 1 << media[m] &^ 1
			}
		}
	case "detached":
		e.Kind = managerwire.Detached
		engine()
	case "cost":
		e.Kind, e.Medium, e.Samples = managerwire.Cost, media[c.Arg("medium", "cpu")], uint32(c.Int("samples", 10))
		engine()
		if e.Fixed = float64(c.Int("fixed", 0)) / 1e6; c.Has("void") {
			e.Fixed = map[string]float64{"nan": math.NaN(), "inf": math.Inf(1), "negative": -1}[c.Arg("void", "")]
		}
		e.PerToken = float64(c.Int("token", 0)) / 1e6
	case "rubbish":
		p.broken = true
		return
	default:
		c.Fatalf("say %s", kind)
	}
	p.said = append(p.said, e)
}

// batch is what was said. Rubbish stands at its end: a removal without a namespace.
func (p *player) batch(c *script.Command) []byte {
	b := managerwire.AppendBatch(nil, managerwire.Head{Epoch: uint64(c.Int("epoch", 1)), Manager: "host"}, p.said)
	if p.broken {
		one := managerwire.AppendBatch(nil, managerwire.Head{Epoch: uint64(c.Int("epoch", 1))}, []managerwire.Event{{Kind: managerwire.BlockRemoved}})
		b = []byte(strings.Replace(string(one), "\xa9namespace", "\xa9namespite", 1))
	}
	p.said, p.broken = nil, false
	return b
}

func (p *player) look(c *script.Command) {
	var m prefix.Match
	if err := p.store.Lookup(c.T.Context(), &prefix.Query{Model: "m", Tokens: tokens(400)}, &m); err != nil {
		c.Fatalf("%v", err)
	}
	if len(m.Held) == 0 {
		c.Print("nobody has anything")
	}
	for _, h := range m.Held {
		line := fmt.Sprintf("%d/%d:", h.Engine, h.Rank)
		for t := range h.Depth {
			line += fmt.Sprintf(" %d", h.Depth[t]/4)
		}
		c.Print(line)
	}
}

func (p *player) showCosts(c *script.Command) {
	for no := range uint32(10) {
		for t, r := range p.costs.Of(no) {
			if r.Samples > 0 {
				s, ok := r.Restore(1000, p.now)
				c.Print(fmt.Sprintf("%d %s: %v s for 1000 tokens, counts %v", no, prefix.Tier(t), s, ok))
			}
		}
	}
}

func (p *player) status(c *script.Command) {
	s := p.l.Status()
	k := s.Counts
	c.Print(fmt.Sprintf("epoch %d next %d; %d namespaces, %d attachments, %d claims", s.Epoch, s.Stream.Next, s.Namespaces, s.Attachments, s.Claims))
	c.Print(fmt.Sprintf("applied %d, duplicates %d, gaps %d, losses %d, restarts %d, hides %d; snapshots %d, bad %d, foreign %d, resyncs %d; strays %d, bad %v and %d batches",
		s.Stream.Applied, s.Stream.Duplicates, s.Stream.Gaps, s.Stream.Losses, s.Stream.Restarts, s.Stream.Hides, k.Snapshots, k.BadSnapshots, k.Foreign, k.Resyncs, k.Strays, k.Bad, k.BadBatches))
}
