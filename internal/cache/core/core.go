package core

import (
	"github.com/perigee-llm/perigee/internal/cache/planning"
	"github.com/perigee-llm/perigee/internal/cache/storage/dram"
	"github.com/perigee-llm/perigee/internal/chain"
)

// Core is the Cache Manager's decisions. New makes one. It is not safe for concurrent use: its owner serialises the events.
type Core struct {
	cfg   Config
	lim   Limits
	books *dram.Store

	spaces    map[Namespace]uint32
	spaceList []space // by number
	// Numbers that are nobody's any more, and when they were last looked for.
	spareSpaces              []uint32
	spareScopes              []int
	sweptSpaces, sweptScopes Time
	scopes                   map[Scope]int
	scopeList                []scope // by the books' number
	arenas                   map[uint32]*arena
	arenaList                []*arena // by the books' number

	sessions  map[SessionID]*session // alive, or lost and not yet fenced
	instances map[string]*session    // alive
	recent    *session               // the last that spoke, if it is among sessions: it often speaks again

	fills  []*fill // blocks that are being published, in no order; a block's word is the place of its own, plus 1
	grants []grant // slab; slots refer to it
	spareG []uint32
	// spareFills are records to use again.
	spareFills []*fill

	open    []*query // admitted and not ended, oldest first
	waiting []*query // those among them that wait for bytes, in the order of admission
	seq     uint64

	leases []lease // slab
	spareL []uint32

	reads    map[dram.Page]*read
	readByID map[ReadID]*read
	lastRead ReadID

	copies       map[CopyID]*copying // that the shell makes now
	lastCopy     CopyID
	pieces       int                // of all copies
	memories     map[[2]uint64]bool // that sessions have offered
	offeredBytes uint64

	backed map[dram.Key]backing

	used  usage // by all
	pool  int64 // bytes of all arenas
	freed bool  // bytes came back, or a place in the line: somebody waiting may go on
	later bool  // but this step has looked at as many names as one may
	// Names that waiting queries have, and of which this step has looked up so many.
	names, looked int
	pass          uint64 // of the line

	now   Time
	out   []Action
	stats Stats
	// counted is when stats.Residence was last brought up to date.
	counted Time
	before  dram.Page // of publish: the block before the one in hand; what it is by then does not matter
	warmed  uint32    // of publish: what was looked at ahead, so that it is looked at
	made    made      // what actions are made of
	items   []item    // scratch of query.look
	plan    []planning.Run
	found   []dram.Page // scratch of find
	shape   []PlanSlot  // scratch of fetch
	regions []region    // scratch of mayCopy
	spared  []dram.Page // held until the step ends: see spare
	climbed map[dram.Page]bool
}

// space is a namespace that was named.
type space struct {
	name   Namespace
	layout []Group // of the first session that registered it; nil: none did
}

// scope is a tenant that was named.
type scope struct {
	id     Scope
	budget ScopeBudget
	by     *arena // of whoever named it, and is charged for the name; nil: nobody is
	used   int64  // by its queries
	kept   uint64 // the pass in which one of them was kept back by the tenant's bound
}

// arena is a piece of the pool.
type arena struct {
	id     uint32
	at     int // the books' number
	writer *session
	space  uint32
	scopes int // tenants that its writers have named
}

// backing is a block below memory.
type backing struct {
	chain     chain.Key
	parent    Hash
	scope     Scope
	extent    Extent
	checksums []uint64
}

// New returns a Core with an empty pool. A nil policy is DefaultPolicy's. It panics if the epoch is 0.
func New(cfg Config, p dram.Policy) *Core {
	if cfg.Epoch == 0 {
		panic("core: an epoch of 0 would be every client's zero value")
	}
	if p == nil {
		p = dram.DefaultPolicy()
	}
	if cfg.Routes == 0 {
		cfg.Routes = planning.Built()
	}
	c := &Core{
		cfg: cfg, lim: cfg.Limits.withDefaults(), books: dram.New(p),
		spaces: map[Namespace]uint32{}, scopes: map[Scope]int{}, arenas: map[uint32]*arena{},
		sessions: map[SessionID]*session{}, instances: map[string]*session{},
		reads: map[dram.Page]*read{}, readByID: map[ReadID]*read{}, backed: map[dram.Key]backing{},
		copies: map[CopyID]*copying{}, memories: map[[2]uint64]bool{}, climbed: map[dram.Page]bool{},
	}
	c.books.Seed(cfg.Secret)
	c.books.LieIn(cfg.Tables)
	return c
}

// Step applies ev at time now, which must not go backwards, and appends to dst what the shell must do, in that order.
func (c *Core) Step(now Time, ev Event, dst []Action) []Action {
	c.now, c.out = max(now, c.now), dst
	switch e := ev.(type) {
	case *Register:
		c.register(e)
	case *Lost:
		c.lost(e.Session)
	case *Fenced:
		c.fenced(e.Session)
	case *Backed:
		c.setBacked(e)
	case *Unbacked:
		c.unbacked(e)
	case *ReadDone:
		c.readDone(e)
	case *InDone:
		c.inDone(e)
	case *OutDone:
		c.outDone(e)
	case *Tick:
		c.tick()
	case *Flush:
		c.flush(e)
	case *Evict:
		c.evict(e)
	case *Retire:
		c.retire(e)
	case *Empty:
		c.empty(e)
	default:
		c.client(ev)
	}
	c.spareNoMore()
	c.looked, c.later = 0, false
	for c.freed && !c.later {
		c.freed = false
		c.admitWaiting()
		c.spareNoMore()
	}
	dst, c.out = c.out, nil
	return dst
}

// client applies what a session says.
func (c *Core) client(ev Event) {
	switch e := ev.(type) {
	case *Publish:
		c.publish(e)
	case *Learned:
		c.learned(e)
	case *Sealed:
		c.sealed(e)
	case *SealedRun:
		c.sealedRun(e)
	case *Abandoned:
		c.abandoned(e)
	case *Query:
		c.query(e)
	case *Poll:
		c.poll(e)
	case *Cancel:
		c.cancel(e)
	case *Start:
		c.start(e)
	case *Copied:
		c.copied(e)
	case *Release:
		c.release(e)
	case *OfferPool:
		c.offerPool(e)
	case *PublishFrom:
		c.publishFrom(e)
	case *RestoreInto:
		c.restoreInto(e)
	case *Fetch:
		c.fetch(e)
	default:
		panic("core: an event of no known type")
	}
}

func (c *Core) do(a Action) { c.out = append(c.out, a) }

func (c *Core) refuse(s SessionID, k EventKind, ref uint64, class Class) {
	c.stats.Refused[class]++
	c.do(Refused{Session: s, Event: k, Ref: ref, Class: class})
}

// refuseItem refuses one of many.
func (c *Core) refuseItem(s SessionID, k EventKind, ref uint64, class Class, item int) {
	c.stats.Refused[class]++
	c.do(Refused{Session: s, Event: k, Ref: ref, Class: class, Item: uint32(item)})
}
