package planning

// Held says in which media of its own the Manager that plans has a page. The zero value is none.
type Held uint8

// The media. A page may be in both.
const (
	// InMemory is whole and in our pool.
	InMemory Held = 1 << iota
	// OnDisk is in our store, or on its way from there into our pool.
	OnDisk
)

// Run is pages that follow each other and are read by one route.
type Run struct {
	First, Pages int
	Route        Route
}

// ChooseOwn makes the plan for the first n pages of a group out of what this Manager has itself, as Choose would with one replica a page and medium: it appends to
// dst the runs from the first page on, and says why the page behind the last one is not read, NotFound or NoRoute; Chosen if all are.
//
// It is for whoever looks and pins in one step, under the lock that keeps what has is told true until then. So there is no version to compare and no age, and the
// plan names runs and not pages: with 8,192 names in a message a replica and a step for each would take longer than the look.
func ChooseOwn(dst []Run, routes Routes, n int, has func(page int) Held) (plan []Run, why Reason) {
	from := len(dst)
	for i := range n {
		held := has(i)
		route, why := routes.Own(held)
		if why != Chosen {
			return dst, why
		}
		if last := len(dst) - 1; last >= from && dst[last].Route == route {
			dst[last].Pages++
		} else {
			dst = append(dst, Run{i, 1, route})
		}
	}
	return dst, Chosen
}

// Own is the route by which a page is read that we have ourselves, memory before disk; or why there is none: NotFound or NoRoute.
func (s Routes) Own(held Held) (Route, Reason) {
	switch {
	case held == 0:
		return 0, NotFound
	case held&InMemory != 0 && s.Has(FromMemory):
		return FromMemory, Chosen
	case held&OnDisk != 0 && s.Has(FromDisk):
		return FromDisk, Chosen
	default:
		return 0, NoRoute
	}
}
