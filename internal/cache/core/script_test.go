package core

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/internal/cache/planning"
	"github.com/perigee-llm/perigee/internal/cache/storage/dram"
	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/script"
)

// TestScripts runs the core through scripts; coreScript.do lists the commands.
func TestScripts(t *testing.T) {
	script.Run(t, "testdata/scripts/*.txt", func(*testing.T) script.Interpreter { return new(coreScript).do })
}

type coreScript struct {
	c   *Core
	now Time
}

// do runs one command; a session is a number, or number@epoch:
//
//	new total=N instance=N spec=N queries=N publishes=N sessions=N identity=N wait=D ttl=D patience=D resident=SCOPE:N,… share=SCOPE:N,… query=SCOPE:N,… routes=built
//	at D                                   time passes, without a tick
//	register S inst=NAME ns=NAME scope=N query=N arenas=ID:SLOTS:BYTES,… layout=ARENA:BYTES+BYTES,… instead=ID,…
//	lost S · fenced S
//	publish S op=N part=N group=N scope=N A B<A C id=TEXT chain=none      blocks follow each other unless they name their parent
//	learned S A B<A C
//	seal S SLOT sum=N · abandon S SLOT
//	query S TICKET GROUP:A,B,… mode=prefix|exact|discover|warm scope=N consumers=N prio=N wait=D
//	poll S TICKET · cancel S TICKET
//	start S LEASE consumer=N · copied S LEASE consumer=N outcome=done|failed|mismatch bad=N · release S LEASE
//	offer S POOL bytes=N mem=N
//	publish-from S SLOT@POOL:OFFSET+LENGTH/… … · in-done COPY SUM|failed …
//	restore-into S LEASE POOL:OFFSET+LENGTH/… … consumer=N · out-done COPY outcome=… good=N
//	fetch S GROUP:A,B,… POOL:OFFSET+LENGTH/… … all=1 scope=N
//	backed NS A B<A group=N parts=N at=OFFSET · unbacked NS A group=N at=OFFSET · read-done N outcome=…
//	tick · flush [ns=NAME] from=N most=N · empty ARENA from=N most=N · evict ARENA N · usage · copies · counts
func (s *coreScript) do(c *script.Command) bool {
	switch c.Name {
	case "new":
		s.create(c)
		return true
	case "at":
		s.now = c.ParseDuration(c.Word())
		return true
	case "usage":
		u := s.c.Usage()
		c.Print(fmt.Sprintf("pool %d free %d blocks %d reserved %d leased %d orphaned %d pinned %d granted %d quarantined %d",
			u.Pool, u.Free, u.Blocks, u.Reserved, u.Leased, u.Orphaned, u.Pinned, u.Granted, u.Quarantined))
		return true
	case "counts":
		st := s.c.Stats()
		for mode, n := range st.Asked {
			if st.Queries[mode] > 0 {
				c.Print(fmt.Sprintf("mode %d: %d queries, %d in memory, %d below, %d absent, %d unserved", mode, st.Queries[mode], n[InMemory], n[Below], n[Absent], n[Unserved]))
			}
		}
		for r := range st.Saves {
			c.Print(fmt.Sprintf("by route %d: %d saves of %d bytes in %v, %d loads of %d in %v", r,
				st.Saves[r].Count, st.Saves[r].Bytes, st.Saves[r].Time, st.Loads[r].Count, st.Loads[r].Bytes, st.Loads[r].Time))
		}
		c.Print(fmt.Sprintf("residence %.3gs, shared reads %d, failed %d", st.Residence, st.SharedReads, st.FailedReads))
		return true
	case "copies":
		u := s.c.Usage()
		c.Print(fmt.Sprintf("copies %d pools %d offered %d", u.Copies, u.Pools, u.Offered))
		return true
	}
	ev := s.event(c)
	if ev == nil {
		return false
	}
	ev, ours := spoilable(ev)
	all := s.c.Step(s.now, ev, nil)
	for _, b := range ours { // nothing of it is kept
		spoil(b)
	}
	for _, a := range all {
		c.Print(text(a))
	}
	if wrong := s.c.Check(); wrong != "" {
		c.Fatalf("%s", wrong)
	}
	return true
}

func (s *coreScript) create(c *script.Command) {
	cfg := Config{
		Epoch:   uint64(c.Int("epoch", scriptEpoch)),
		Budgets: Budgets{Total: c.Int("total", 0), Instance: c.Int("instance", 0), Speculative: c.Int("spec", 0), Offered: c.Int("offered", 0)},
		Limits: Limits{
			SessionQueries: int(c.Int("queries", 0)), Wait: c.Duration("wait", 0), LeaseTTL: c.Duration("ttl", 0),
			Patience: c.Duration("patience", 0), Publishes: int(c.Int("publishes", 0)), Sessions: int(c.Int("sessions", 0)), Identity: int(c.Int("identity", 0)),
			Copies: int(c.Int("copies", 0)), Pieces: int(c.Int("pieces", 0)), SessionPools: int(c.Int("pools", 0)),
		},
		Scopes: map[Scope]ScopeBudget{},
		Routes: planning.Only(planning.FromMemory, planning.FromDisk),
	}
	if c.Arg("routes", "") == "built" {
		cfg.Routes = 0
	}
	for key, set := range map[string]func(*ScopeBudget, int64){
		"resident": func(b *ScopeBudget, n int64) { b.Resident = n },
		"share":    func(b *ScopeBudget, n int64) { b.Share = n },
		"query":    func(b *ScopeBudget, n int64) { b.Query = n },
	} {
		for _, e := range c.List(key) {
			id, n, _ := strings.Cut(e, ":")
			b := cfg.Scopes[Scope(c.ParseInt(id))]
			set(&b, c.ParseInt(n))
			cfg.Scopes[Scope(c.ParseInt(id))] = b
		}
	}
	s.c, s.now = New(cfg, dram.LRU{}), 0
}

func (s *coreScript) event(c *script.Command) Event {
	switch c.Name {
	case "register":
		return registerOf(c)
	case "lost":
		return &Lost{sessionArg(c)}
	case "fenced":
		return &Fenced{sessionArg(c)}
	case "publish":
		return publishOf(c)
	case "learned":
		return learnedOf(c)
	case "seal":
		return &Sealed{sessionArg(c), slotArg(c), uint64(c.Int("sum", 0))}
	case "abandon":
		return &Abandoned{sessionArg(c), slotArg(c)}
	case "query":
		return queryOf(c)
	case "poll":
		return &Poll{sessionArg(c), ticketArg(c)}
	case "cancel":
		return &Cancel{sessionArg(c), ticketArg(c)}
	case "start":
		return &Start{Session: sessionArg(c), Lease: leaseArg(c), Consumer: uint32(c.Int("consumer", 0))}
	case "copied":
		return &Copied{sessionArg(c), leaseArg(c), uint32(c.Int("consumer", 0)), outcomeArg(c), uint32(c.Int("bad", 0))}
	case "release":
		return &Release{sessionArg(c), leaseArg(c)}
	case "read-done":
		return &ReadDone{ReadID(c.ParseInt(c.Word())), outcomeArg(c)}
	case "tick":
		return &Tick{}
	case "flush":
		return &Flush{Namespace(hashOf(c.Arg("ns", ""))), partArg(c)}
	case "empty":
		return &Empty{uint32(c.ParseInt(c.Word())), partArg(c)}
	case "evict":
		return &Evict{uint32(c.ParseInt(c.Word())), int(c.ParseInt(c.Word()))}
	}
	if ev := copyOf(c); ev != nil {
		return ev
	}
	return belowOf(c)
}

func copyOf(c *script.Command) Event {
	switch c.Name {
	case "offer":
		e := &OfferPool{Session: sessionArg(c), Pool: uint32(c.ParseInt(c.Word())), Bytes: uint64(c.Int("bytes", 0))}
		e.Memory[0] = uint64(c.Int("mem", int64(e.Pool)))
		return e
	case "publish-from":
		e := &PublishFrom{Session: sessionArg(c)}
		for _, w := range c.Words() {
			slot, pieces, _ := strings.Cut(w, "@")
			n := numbers(c, slot, ".")
			e.Slots = append(e.Slots, SlotRef{n[0], n[1], n[2]})
			addPage(c, &e.Pages, pieces)
		}
		return e
	case "restore-into":
		e := &RestoreInto{Session: sessionArg(c), Lease: leaseArg(c), Consumer: uint32(c.Int("consumer", 0))}
		for _, w := range c.Words() {
			addPage(c, &e.Pages, w)
		}
		return e
	case "fetch":
		e := &Fetch{Session: sessionArg(c), Scope: Scope(c.Int("scope", 0)), All: c.Int("all", 0) == 1}
		g, names, _ := strings.Cut(c.Word(), ":")
		e.Group = uint32(c.ParseInt(g))
		for _, n := range strings.Split(names, ",") {
			e.Hashes = append(e.Hashes, hashOf(n))
		}
		for _, w := range c.Words() {
			addPage(c, &e.Pages, w)
		}
		return e
	case "in-done":
		e := &InDone{Copy: CopyID(c.ParseInt(c.Word()))}
		for _, w := range c.Words() {
			p := CopiedPage{OK: w != "failed"}
			if p.OK {
				p.Checksum = uint64(c.ParseInt(w))
			}
			e.Pages = append(e.Pages, p)
		}
		return e
	case "out-done":
		return &OutDone{CopyID(c.ParseInt(c.Word())), outcomeArg(c), uint32(c.Int("good", 0))}
	}
	return nil
}

// addPage adds a page of pieces POOL:OFFSET+LENGTH/….
func addPage(c *script.Command, p *Pages, text string) {
	pieces := strings.Split(text, "/")
	p.Counts = append(p.Counts, uint32(len(pieces)))
	for _, w := range pieces {
		pool, at, _ := strings.Cut(w, ":")
		n := strings.Split(at, "+")
		offset, err := strconv.ParseUint(n[0], 10, 64)
		if err != nil {
			c.Fatalf("%s: %v", w, err)
		}
		p.Pieces = append(p.Pieces, Piece{uint32(c.ParseInt(pool)), uint32(c.ParseInt(n[1])), offset})
	}
}

func belowOf(c *script.Command) Event {
	switch c.Name {
	case "backed":
		ns, name, parent := c.Word(), c.Word(), ""
		name, parent, _ = strings.Cut(name, "<")
		e := &Backed{Namespace: Namespace(hashOf(ns)), Group: uint32(c.Int("group", 0)), Hash: hashOf(name), Parent: hashOf(parent), Chain: chainOf(name)}
		e.Extent = Extent{Offset: uint64(c.Int("at", 0)), Length: 1}
		for i := range c.Int("parts", 1) {
			e.Checksums = append(e.Checksums, uint64(i+1))
		}
		return e
	case "unbacked":
		return &Unbacked{Namespace: Namespace(hashOf(c.Word())), Hash: hashOf(c.Word()), Group: uint32(c.Int("group", 0)), Extent: Extent{Offset: uint64(c.Int("at", 0)), Length: 1}}
	}
	return nil
}

func registerOf(c *script.Command) Event {
	e := &Register{
		Session: sessionArg(c), Instance: c.Arg("inst", "engine"), Namespace: Namespace(hashOf(c.Arg("ns", "m"))),
		Scope: Scope(c.Int("scope", 0)), QueryBytes: c.Int("query", 0),
	}
	for _, a := range c.List("arenas") {
		n := numbers(c, a, ":")
		e.Arenas = append(e.Arenas, Arena{n[0], n[1], n[2]})
	}
	for _, id := range c.List("instead") {
		e.Instead = append(e.Instead, uint32(c.ParseInt(id)))
	}
	for _, g := range c.List("layout") {
		a, parts, _ := strings.Cut(g, ":")
		e.Layout = append(e.Layout, Group{uint32(c.ParseInt(a)), numbers(c, parts, "+")})
	}
	return e
}

func publishOf(c *script.Command) Event {
	e := &Publish{Session: sessionArg(c), Op: uint64(c.Int("op", 0)), Part: uint32(c.Int("part", 0)), Scope: Scope(c.Int("scope", 0))}
	group, id, last, unnamed := uint32(c.Int("group", 0)), c.Arg("id", ""), "", c.Arg("chain", "") == "none"
	for _, w := range c.Words() {
		name, parent, named := strings.Cut(w, "<")
		if !named {
			parent = last
		}
		b := Block{Group: group, Hash: hashOf(name), Parent: hashOf(parent), Identity: []byte(id)}
		if !unnamed {
			b.Chain, b.ParentChain = chainOf(name), parentChainOf(parent)
		}
		e.Blocks = append(e.Blocks, b)
		last = name
	}
	return e
}

// parentChainOf is the name of what a block continues: none if it begins a prompt.
func parentChainOf(parent string) chain.Key {
	if parent == "" {
		return chain.Key{}
	}
	return chainOf(parent)
}

func learnedOf(c *script.Command) Event {
	e, last := &Learned{Session: sessionArg(c)}, ""
	for _, w := range c.Words() {
		name, parent, named := strings.Cut(w, "<")
		if !named {
			parent = last
		}
		e.Blocks = append(e.Blocks, LearnedBlock{Hash: hashOf(name), Chain: chainOf(name), Parent: parentChainOf(parent)})
		last = name
	}
	return e
}

func queryOf(c *script.Command) Event {
	e := &Query{
		Session: sessionArg(c), Ticket: ticketArg(c), Scope: Scope(c.Int("scope", 0)), Consumers: uint32(c.Int("consumers", 1)),
		Priority: int32(c.Int("prio", 0)), Wait: c.Duration("wait", 0),
		Mode: Mode(slices.Index([]string{"prefix", "exact", "discover", "warm"}, c.Arg("mode", "prefix"))),
	}
	for _, w := range c.Words() {
		g, names, _ := strings.Cut(w, ":")
		want := Want{Group: uint32(c.ParseInt(g))}
		for _, n := range strings.Split(names, ",") {
			want.Hashes = append(want.Hashes, hashOf(n))
		}
		e.Demand = append(e.Demand, want)
	}
	return e
}

func numbers(c *script.Command, s, sep string) (out []uint32) {
	for _, f := range strings.Split(s, sep) {
		out = append(out, uint32(c.ParseInt(f)))
	}
	return out
}

func sessionArg(c *script.Command) SessionID {
	n, epoch, other := strings.Cut(c.Word(), "@")
	if !other {
		return SessionID{scriptEpoch, uint32(c.ParseInt(n))}
	}
	return SessionID{uint64(c.ParseInt(epoch)), uint32(c.ParseInt(n))}
}

func partArg(c *script.Command) Part {
	return Part{uint32(c.Int("from", 0)), uint32(c.Int("most", 0))}
}

func slotArg(c *script.Command) SlotRef {
	n := numbers(c, c.Word(), ".")
	return SlotRef{n[0], n[1], n[2]}
}

func leaseArg(c *script.Command) LeaseID {
	n := numbers(c, c.Word(), ".")
	return LeaseID{n[0], n[1]}
}

func ticketArg(c *script.Command) Ticket {
	n := numbers(c, c.Word(), ".")
	return Ticket{uint64(n[0]), uint64(n[1])}
}

func outcomeArg(c *script.Command) Outcome {
	return Outcome(slices.Index([]string{"done", "failed", "mismatch"}, c.Arg("outcome", "done")))
}
