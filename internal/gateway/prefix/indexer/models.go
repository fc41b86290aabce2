package indexer

import (
	"encoding/binary"
	"slices"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/indexer/indexpb"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
)

// model is what callers are told of a model. It never changes.
type model struct {
	edition local.Edition
	wire    *indexpb.Model
	places  map[uint32]uint32 // in wire.Engines, by the engine's number
}

// models remembers what was told, for one edition of the store. It has models that are served, and no others: names come from callers.
type models struct {
	mu struct {
		sync.RWMutex // before the store's
		edition      local.Edition
		known        map[string]*model
	}
}

// get returns what there is to be told of a model now.
func (ms *models) get(s *local.Store, url func(uint32) (string, bool), name string) *model {
	now := s.Edition()
	ms.mu.RLock()
	m := ms.mu.known[name]
	same := ms.mu.edition == now
	ms.mu.RUnlock()
	if m != nil && same {
		return m
	}
	m = newModel(s, url, name)
	if len(m.wire.Engines) == 0 {
		return m
	}
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.mu.edition != m.edition {
		ms.mu.edition, ms.mu.known = m.edition, map[string]*model{}
	}
	ms.mu.known[name] = m
	return m
}

func newModel(s *local.Store, url func(uint32) (string, bool), name string) *model {
	is, e := s.Model(name)
	m := &model{edition: e, wire: &indexpb.Model{Lora: is.LoRA}, places: map[uint32]uint32{}}
	for _, d := range is.Domains {
		m.wire.Domains = append(m.wire.Domains, &indexpb.Domain{Base: d.Base, BlockSize: uint32(d.BlockSize)})
	}
	numbers := map[string][]uint32{}
	for _, no := range is.Engines {
		if u, there := url(no); there {
			if numbers[u] == nil {
				m.wire.Engines = append(m.wire.Engines, u)
			}
			numbers[u] = append(numbers[u], no)
		}
	}
	slices.Sort(m.wire.Engines) // so that servers which know the same have the same edition
	for place, u := range m.wire.Engines {
		m.places[numbers[u][0]] = uint32(place) // two engines at one URL are one to whoever calls it
	}
	m.wire.Edition = hash(m.wire)
	return m
}

// hash is the edition on the wire: of the content, so that it is the same for two servers that know the same.
func hash(m *indexpb.Model) uint64 {
	var b []byte
	text := func(s string) {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	text(m.Lora)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(m.Domains)))
	for _, d := range m.Domains {
		text(d.Base)
		b = binary.LittleEndian.AppendUint32(b, d.BlockSize)
	}
	for _, u := range m.Engines {
		text(u)
	}
	return max(xxh3.Hash(b), 1)
}
