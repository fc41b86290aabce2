package ledger

import (
	"slices"
	"strings"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/local"
	"github.com/perigee-llm/perigee/internal/managerwire"
)

// registration is an engine's, or that of one of its ranks, with what it can restore.
type registration struct {
	rank     int32 // AllRanks: of the whole engine
	instance uint64
	media    map[managerwire.Namespace]managerwire.Media
}

// replaces tells whether a registration of that rank and instance takes the place of r.
func (r *registration) replaces(rank int32, instance uint64) bool {
	return r.instance != instance && (r.rank == rank || r.rank == managerwire.AllRanks || rank == managerwire.AllRanks)
}

func baseURL(s string) string { return strings.TrimRight(s, "/") }

func (b *book) attach(e *managerwire.Event) {
	url := baseURL(e.Engine)
	all := b.without(url, func(r *registration) bool { return r.replaces(e.Rank, e.Instance) })
	i := slices.IndexFunc(all, func(r registration) bool { return r.instance == e.Instance && r.rank == e.Rank })
	if i < 0 {
		i = len(all)
		all = append(all, registration{rank: e.Rank, instance: e.Instance, media: map[managerwire.Namespace]managerwire.Media{}})
	}
	if _, again := all[i].media[e.Namespace]; !again {
		b.attached++
	}
	all[i].media[e.Namespace] = e.Media
	b.engines[url] = all
	if b.attached > b.l.lim.Attachments {
		b.exceed(TooManyEngines)
		return
	}
	b.bind(url)
}

// detach takes a registration's word back. One that another has replaced is gone already.
func (b *book) detach(e *managerwire.Event) {
	url := baseURL(e.Engine)
	before := len(b.engines[url])
	all := b.without(url, func(r *registration) bool { return r.instance == e.Instance })
	if len(all) == before {
		return
	}
	if b.engines[url] = all; len(all) == 0 {
		delete(b.engines, url)
		delete(b.prices, url)
		b.unprice(url)
	}
	b.bind(url)
}

// without returns an engine's registrations without some.
func (b *book) without(url string, gone func(*registration) bool) []registration {
	return slices.DeleteFunc(b.engines[url], func(r registration) bool {
		out := gone(&r)
		if out {
			b.attached -= len(r.media)
		}
		return out
	})
}

// bind tells the shelves what an engine's registrations say.
func (b *book) bind(url string) {
	for ns, of := range b.spaces {
		as := attachments(b.engines[url], ns)
		for _, s := range of {
			s.Attach(url, as)
		}
	}
}

// attachments are what registrations say of a namespace. Media and tiers have the same bits.
func attachments(all []registration, ns managerwire.Namespace) (as []local.Attachment) {
	for i := range all {
		if media, there := all[i].media[ns]; there && media != 0 {
			as = append(as, local.Attachment{Rank: all[i].rank, Tiers: uint8(media)})
		}
	}
	return as
}

// cost takes a price in, for all engines at the URL.
func (b *book) cost(now time.Time, e *managerwire.Event) {
	url := baseURL(e.Engine)
	if !slices.ContainsFunc(b.engines[url], func(r registration) bool { return r.instance == e.Instance && r.uses(e.Medium) }) {
		b.l.counts.Strays++
		return
	}
	if b.prices[url] == nil {
		b.prices[url] = new([prefix.Tiers]prefix.CostRecord)
	}
	b.prices[url][e.Medium] = prefix.CostRecord{
		Fixed: e.Fixed, PerToken: e.PerToken, Samples: int(min(e.Samples, 1<<30)), Error: e.Error, At: now,
	}
	if b.live {
		b.price(url)
	}
}

// price tells what is known of a URL's prices.
func (b *book) price(url string) {
	for _, no := range b.l.store.At(url) {
		b.costed[no] = struct{}{}
		for t := prefix.Host; t < prefix.Tiers; t++ {
			if r := b.prices[url][t]; r.Samples > 0 {
				b.l.costs.Set(b.source, no, t, r)
			}
		}
	}
}

func (b *book) unprice(url string) {
	for _, no := range b.l.store.At(url) {
		if _, ours := b.costed[no]; ours {
			b.l.costs.Withdraw(b.source, no)
			delete(b.costed, no)
		}
	}
}

// goLive makes it the book that counts.
func (b *book) goLive() {
	b.live = true
	for url := range b.prices {
		b.price(url)
	}
}

// uses tells whether the adapter can restore from a medium, in any namespace.
func (r *registration) uses(m managerwire.Medium) bool {
	for _, media := range r.media {
		if media.Has(m) {
			return true
		}
	}
	return false
}
