package api

import (
	"encoding/json"

	"github.com/perigee-llm/perigee/internal/gateway/api/body"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// query is what a prefix source is to look for: the tokens that the engine will see, and what keeps its blocks apart from those of
// the same tokens. A request that has something besides which no source can know gets no tokens, and so no look-up.
func (c *call) query() prefix.Query {
	q := prefix.Query{Model: c.model.ID}
	if c.in.prompt == nil {
		return q
	}
	if c.sends(body.ExtraKey) { // an engine's events leave it out
		return q
	}
	if c.sends(body.CacheSalt) {
		if json.Unmarshal(c.raw(body.CacheSalt), &q.Salt) != nil || q.Salt == "" {
			return q // no text: engines read it in their own ways, or refuse it
		}
	}
	q.Tokens = c.in.prompt
	return q
}

// sends tells whether the client's field reaches the engine.
func (c *call) sends(k body.Key) bool {
	return present(c.raw(k)) && !c.v.Settings.Stripped.Has(k)
}
