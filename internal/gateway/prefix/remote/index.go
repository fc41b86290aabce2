package remote

import (
	"context"
	"errors"
	"sync"

	"github.com/perigee-llm/perigee/internal/chain"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/indexer/indexpb"
)

// Index is a prefix source that asks a `perigee index` service. Make it with [NewIndex], and close it. All methods may be called at once.
//
// The first look-up of a model asks twice: the service says first what the model's blocks are named by and which engines it follows, which
// is remembered for each endpoint. The same happens, within the same deadline, whenever that has changed.
//
// With [Options.Costs] the service's prices of restores come along with its answers, each when it has changed; see prices.
type Index struct {
	c      *caller
	prices prices
}

var _ prefix.Source = (*Index)(nil)

// NewIndex returns a source that has no connection yet. The caller closes it. The error names all faults of the options.
func NewIndex(o Options) (*Index, error) {
	c, err := newCaller(o)
	if err != nil {
		return nil, err
	}
	x := &Index{c: c}
	x.prices.init(o.Costs)
	return x, nil
}

// Name implements prefix.Source.
func (x *Index) Name() string { return "index" }

// Close breaks off what is under way, as unreachable, ends the connections and takes all prices back.
func (x *Index) Close() {
	x.c.close()
	x.prices.close()
}

// InFlight returns how many look-ups are out.
func (x *Index) InFlight() int { return int(x.c.inFlight.Load()) }

// Lookup implements prefix.Source.
func (x *Index) Lookup(ctx context.Context, q *prefix.Query, into *prefix.Match) error {
	return x.c.lookup(ctx, into, func(ctx context.Context, e *endpoint) error { return x.ask(ctx, e, q, into) })
}

// maxAsked is how often a service is asked in one look-up: once where the model is known, a second time to learn it, and a third because
// engines register just then.
const maxAsked = 3

var (
	errNoEngines = &prefix.Unavailable{Reason: prefix.NotReady, Err: errors.New("the service follows no engine of the model")}
	errRestless  = &prefix.Unavailable{Reason: prefix.NotReady, Err: errors.New("the service's engines change faster than they can be asked for")}
)

func (x *Index) ask(ctx context.Context, e *endpoint, q *prefix.Query, into *prefix.Match) error {
	m := e.models.get(q.Model)
	client := indexpb.NewPrefixIndexClient(e.conn)
	engines := x.c.o.Engines(q.Model)
	for range maxAsked {
		a := answer{model: m, engines: engines, prompt: len(q.Tokens)}
		request := m.request(q)
		request.PriceEdition = x.prices.has(e, q.Model, &a)
		r, err := client.Lookup(ctx, request)
		if err != nil {
			return err
		}
		if r.Model == nil {
			n, err := a.read(r, into)
			if n > 0 {
				x.c.o.Hooks.Distrusted(e.name, n)
			}
			if err == nil {
				x.prices.take(e, q.Model, &a, request.PriceEdition, r.PriceEdition)
			}
			return err
		}
		if m, err = learn(r.Model, m.edition); err != nil {
			return err
		}
		if len(m.engines) == 0 {
			e.models.forget(q.Model)
			return errNoEngines
		}
		e.models.put(q.Model, m)
	}
	return errRestless
}

// models is what an endpoint has said of models.
type models struct {
	mu struct {
		sync.RWMutex
		known map[string]*model
	}
}

// maxModels bounds what is remembered of one endpoint. A gateway asks for models that it is configured for.
const maxModels = 4096

var unknown = &model{}

func (m *models) get(name string) *model {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if k := m.mu.known[name]; k != nil {
		return k
	}
	return unknown
}

func (m *models) put(name string, is *model) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.known == nil || len(m.mu.known) >= maxModels {
		m.mu.known = map[string]*model{}
	}
	m.mu.known[name] = is
}

func (m *models) forget(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.mu.known, name)
}

// model is what a service has said of one. It never changes; the zero value is one of which nothing is known.
type model struct {
	edition  uint64
	lora     string
	domains  []domain
	engines  []string
	followed map[string]struct{} // engines, as a set
}

type domain struct {
	base      string
	blockSize int
}

// Bounds of what a service may say of a model. A fleet has engines of a handful of block sizes.
const (
	maxDomains   = 64
	maxBlockSize = 1 << 20
	maxEngines   = 1 << 16
)

// learn takes in what a service says of a model that was asked for with an edition.
func learn(w *indexpb.Model, asked uint64) (*model, error) {
	if w.Edition == 0 || w.Edition == asked {
		return nil, contradiction("the edition that was asked for is another")
	}
	if len(w.Domains) > maxDomains || len(w.Engines) > maxEngines {
		return nil, contradiction("more domains or engines than there can be")
	}
	m := &model{edition: w.Edition, lora: w.Lora, engines: w.Engines, followed: make(map[string]struct{}, len(w.Engines))}
	for _, url := range w.Engines {
		m.followed[url] = struct{}{}
	}
	for _, d := range w.Domains {
		if d.GetBlockSize() == 0 || d.GetBlockSize() > maxBlockSize {
			return nil, contradiction("a block size that cannot be")
		}
		m.domains = append(m.domains, domain{d.GetBase(), int(d.GetBlockSize())})
	}
	return m, nil
}

// maxNames is indexer.MaxNames: what a service takes.
const maxNames = 128 << 10

// request names the prompt's blocks. What is beyond the bound is left out: who holds so much is found by it all the same.
func (m *model) request(q *prefix.Query) *indexpb.LookupRequest {
	r := &indexpb.LookupRequest{Model: q.Model, Edition: m.edition}
	if len(m.domains) == 0 {
		return r
	}
	each := maxNames / len(m.domains)
	r.Names = make([][]byte, len(m.domains))
	lora := q.LoRA
	if lora == "" {
		lora = m.lora
	}
	for i, d := range m.domains {
		at := chain.Root{Model: d.base, BlockSize: d.blockSize, LoRA: lora, Salt: q.Salt}.Key()
		n := min(len(q.Tokens)/d.blockSize, each)
		b := make([]byte, 0, n*chain.Size)
		for k := range n {
			at = at.Next(q.Tokens[k*d.blockSize:(k+1)*d.blockSize], nil)
			name := at.Bytes()
			b = append(b, name[:]...)
		}
		r.Names[i] = b
	}
	return r
}
