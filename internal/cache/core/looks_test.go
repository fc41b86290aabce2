package core

import (
	"fmt"
	"testing"
)

// TestLooks counts the names that are looked up for those who wait: the end of a lease is not to cost what others' queries are long.
func TestLooks(t *testing.T) {
	const hostile = 7
	c := New(Config{Epoch: 1}, nil)
	now, ids := Time(0), []SessionID{}
	said := func(ev Event) Action {
		now++
		out := c.Step(now, ev, nil)
		if wrong := c.Check(); wrong != "" {
			t.Fatal(wrong)
		}
		if len(out) == 0 {
			return nil
		}
		return out[len(out)-1]
	}
	publish := func(id SessionID, op uint64, name, parent string) {
		g := said(&Publish{Session: id, Op: op, Blocks: []Block{{Hash: hashOf(name), Parent: hashOf(parent)}}})
		said(&Sealed{Session: id, Slot: g.(Granted).Blocks[0].Slot})
	}
	for i := range uint32(hostile + 1) {
		id := SessionID{1, i + 1}
		ids = append(ids, id)
		e := &Register{Session: id, Instance: fmt.Sprint(i), Layout: []Group{{PartBytes: []uint32{100}}}, Arenas: []Arena{{i, 64, 100}}, QueryBytes: 100}
		if i == 0 {
			e.QueryBytes = 0
		}
		said(e)
	}
	victim, others := ids[0], ids[1:]
	publish(victim, 1, "a", "")
	long := make([]Hash, c.lim.Blocks)
	for i := range long {
		long[i] = hashOf("a")
	}
	ask := func(id SessionID, op uint64, hashes []Hash) Action {
		return said(&Query{Session: id, Ticket: Ticket{op, 1}, Mode: Prefix, Consumers: 1, Demand: []Want{{0, hashes}}})
	}
	waiting := 0
	first := map[SessionID]LeaseID{}
	for _, id := range others {
		first[id] = ask(id, 1, long).(Ready).Lease
		for op := range uint64(127) {
			if _, ok := ask(id, op+2, long).(Loading); ok {
				waiting++
			}
		}
	}
	if want := hostile * c.lim.WaitingNames / len(long); waiting != want || c.names != waiting*len(long) {
		t.Errorf("%d queries with %d names wait, want %d", waiting, c.names, want)
	}

	// Another one's lease ends: nobody's need fits, so nobody's blocks are looked up.
	said(&Release{victim, ask(victim, 1, long[:1]).(Ready).Lease})
	if c.looked != 0 {
		t.Errorf("%d names were looked up as another session's lease ended", c.looked)
	}
	// Their own end: each has one that fits.
	for _, id := range others {
		said(&Release{id, first[id]})
		if c.looked != len(long) {
			t.Errorf("%d names were looked up as one lease ended", c.looked)
		}
	}
	if waiting -= hostile; len(c.waiting) != waiting {
		t.Errorf("%d wait, want %d", len(c.waiting), waiting)
	}
}

// TestLooksBounded has the blocks of many that wait become more as they wait, so that all seem to fit and none does: one step looks at a few of
// them, and the next ones at the rest.
func TestLooksBounded(t *testing.T) {
	const sessions, names = 20, 8
	c := New(Config{Epoch: 1, Budgets: Budgets{Total: 2000, Instance: 200}, Limits: Limits{Looks: 3 * names}}, nil)
	now := Time(0)
	step := func(ev Event) Action {
		now++
		out := c.Step(now, ev, nil)
		if wrong := c.Check(); wrong != "" {
			t.Fatal(wrong)
		}
		if c.looked > c.lim.Looks {
			t.Errorf("%d names were looked up in one step", c.looked)
		}
		if len(out) == 0 {
			return nil
		}
		return out[len(out)-1]
	}
	ready := 0
	step2 := func(ev Event) { // counts all that are ready
		now++
		for _, a := range c.Step(now, ev, nil) {
			if r, ok := a.(Ready); ok && r.Lease != (LeaseID{}) {
				ready++
			}
		}
		if c.looked > c.lim.Looks {
			t.Errorf("%d names were looked up in one step", c.looked)
		}
	}
	for i := range uint32(sessions) {
		step(&Register{Session: SessionID{1, i + 1}, Instance: fmt.Sprint(i), Layout: []Group{{PartBytes: []uint32{100}}}, Arenas: []Arena{{i, 64, 100}}})
	}
	publish := func(op uint64, name, parent string) {
		g := step(&Publish{Session: SessionID{1, 1}, Op: op, Blocks: []Block{{Hash: hashOf(name), Parent: hashOf(parent)}}})
		step(&Sealed{Session: SessionID{1, 1}, Slot: g.(Granted).Blocks[0].Slot})
	}
	publish(1, "a", "")
	publish(2, "b", "a")
	var held []Release
	query := func(i uint32, op uint64, hashes ...Hash) {
		a := step(&Query{Session: SessionID{1, i + 1}, Ticket: Ticket{op, 1}, Mode: Prefix, Consumers: 1, Demand: []Want{{0, hashes}}})
		if r, ok := a.(Ready); ok {
			held = append(held, Release{SessionID{1, i + 1}, r.Lease})
		}
	}
	for i := range uint32(sessions) { // the first ten hold everything, and all want more
		query(i, 1, hashOf("a"), hashOf("b"))
	}
	tail := make([]Hash, names)
	for i := range tail {
		tail[i] = hashOf("a")
	}
	for i := range uint32(sessions) {
		query(i, 2, tail...)
	}
	if len(held) != 10 || len(c.waiting) != 30 {
		t.Fatalf("%d hold, %d wait", len(held), len(c.waiting))
	}
	for i := range held {
		step2(&held[i])
	}
	for n := 0; ; n++ {
		at, _ := c.Next()
		if at > now {
			break
		}
		if n > 20 {
			t.Fatal("it is never done")
		}
		step2(&Tick{})
	}
	if ready != 10 {
		t.Errorf("%d got what others held, want 10", ready)
	}
}

// BenchmarkReleaseBeside is a query of one name and its Release while so many other sessions have as many long queries waiting as they may.
func BenchmarkReleaseBeside(b *testing.B) {
	for _, sessions := range []uint32{0, 1, 7} {
		b.Run(fmt.Sprint(sessions), func(b *testing.B) {
			c := New(Config{Epoch: 1}, nil)
			long := make([]Hash, c.lim.Blocks)
			for i := range long {
				long[i] = hashOf("a")
			}
			e := Query{Mode: Prefix, Consumers: 1, Demand: []Want{{0, long}}}
			for i := range sessions + 1 {
				id := SessionID{1, i + 1}
				r := &Register{Session: id, Instance: fmt.Sprint(i), Layout: []Group{{PartBytes: []uint32{100}}}, Arenas: []Arena{{i, 64, 100}}, QueryBytes: 100}
				c.Step(0, r, nil)
				if i == 0 {
					g := c.Step(0, &Publish{Session: id, Op: 1, Blocks: []Block{{Hash: long[0]}}}, nil)[0].(Granted)
					c.Step(0, &Sealed{Session: id, Slot: g.Blocks[0].Slot}, nil)
					continue
				}
				for op := range uint64(c.lim.SessionQueries) {
					q := e
					q.Session, q.Ticket = id, Ticket{op + 1, 1}
					c.Step(0, &q, nil)
				}
			}
			e.Session, e.Demand = SessionID{1, 1}, []Want{{0, long[:1]}}
			var out []Action
			b.ResetTimer()
			for i := range b.N {
				e.Ticket = Ticket{uint64(i + 1), 1}
				out = c.Step(0, &e, out[:0])
				out = c.Step(0, &Release{e.Session, out[0].(Ready).Lease}, out[:0])
			}
		})
	}
}
