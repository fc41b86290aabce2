package index

// roster is what readers know of holders: which tenures count, and for whom. It is never changed, only replaced: so a holder's claims
// go out of sight all at once, however many they are.
type roster struct {
	seats   []seat  // by tenure
	counts  []int32 // targets that a tenure counts for; a seat is a range of it
	targets []target
	blind   []uint32 // engines, sorted
}

type seat struct{ from, to int32 }

// target is a rank of an engine, in the order that a match has.
type target struct {
	engine uint32
	rank   int32
	side   uint8 // the side groups that a prefix needs besides full attention: window, recurrent
	window int32 // blocks
}

// publish makes a new roster. It is linear in holders and done at each change of one: 1,000 engines take 10 µs.
func (ix *Index) publish() {
	r := &roster{seats: make([]seat, len(ix.tenures)), targets: make([]target, len(ix.order))}
	numbers := make([]int32, len(ix.holders))
	for i, h := range ix.order {
		x := &ix.holders[h]
		numbers[h] = int32(i)
		r.targets[i] = target{engine: x.engine, rank: x.rank, side: x.groups.side(), window: x.groups.span(ix.blockSize)}
		if n := len(r.blind); x.believed() != Exact && (n == 0 || r.blind[n-1] != x.engine) {
			r.blind = append(r.blind, x.engine)
		}
	}
	for h := range ix.holders {
		if x := &ix.holders[h]; x.open && (x.state == Exact || x.state == Partial) {
			r.seat(x, Holder(h), numbers)
		}
	}
	ix.roster.Store(r)
}

func (r *roster) seat(x *holder, h Holder, numbers []int32) {
	from := int32(len(r.counts))
	if !x.store {
		r.counts = append(r.counts, numbers[h])
	}
	for _, engine := range x.attached {
		r.counts = append(r.counts, numbers[engine])
	}
	r.seats[x.cur.no] = seat{from, int32(len(r.counts))}
}
