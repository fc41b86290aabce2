package peers

import (
	"sync"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/load"
)

// engines knows the engines of the fleet by their URLs, and their load records. Of two engines with one URL it knows the first.
type engines struct {
	registry *fleet.Registry
	mu       struct {
		sync.Mutex
		names *names // of the view that was looked at last
	}
}

// names is one view's. It is never changed.
type names struct {
	view  *fleet.View
	urls  map[*load.Engine]string
	loads map[string]*load.Engine
	all   []*load.Engine // in the order of the view
}

// now returns the names of the fleet as it is.
func (e *engines) now() *names {
	v := e.registry.View()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.names != nil && e.mu.names.view == v {
		return e.mu.names
	}
	n := &names{view: v, urls: map[*load.Engine]string{}, loads: map[string]*load.Engine{}}
	for w := range v.All() {
		if n.loads[w.URL] == nil {
			n.loads[w.URL], n.urls[w.Load] = w.Load, w.URL
			n.all = append(n.all, w.Load)
		}
	}
	e.mu.names = n
	return n
}
