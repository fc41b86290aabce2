package compare

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/perigee-llm/perigee/internal/gateway/assemble"
	"github.com/perigee-llm/perigee/internal/gateway/bucket"
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/replay"
)

// Errors of Configured.
var (
	// ErrNoModel: the configuration has no such model, or several and none was named.
	ErrNoModel = errors.New("no model to replay")
	// ErrNotStatic: the engines are not listed in the configuration, so nobody knows how many there are.
	ErrNotStatic = errors.New("replay needs the engines listed in discovery.static")
)

// Configured returns the contender that is one model of a gateway's configuration: its buckets, policies and admission, on as
// many simulated engines as it lists. model may be empty if there is but one. The name is the file's, without folder and ending.
func Configured(file string, c *config.Config, model string) (replay.Contender, error) {
	m, err := findModel(c, model)
	if err != nil {
		return replay.Contender{}, err
	}
	if c.Discovery.Static == nil {
		return replay.Contender{}, ErrNotStatic
	}
	out := replay.Contender{Name: strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)), Model: m.ID}
	for _, w := range c.Discovery.Static.Workers {
		if w.Role == config.RolePrefill || w.Role == config.RoleDecode {
			return replay.Contender{}, fmt.Errorf("engine %s: %w", w.ID, replay.ErrPD)
		}
		out.Workers = append(out.Workers, w.ID)
	}
	out.Build = func(id string, seed uint64, b *replay.Baselines) (*bucket.Resolver, error) {
		plain := func(b *config.Bucket) bool { return b.Plain != nil } // pairs' buckets have no engines here
		// Whoever is to know the prefixes, here the replay does.
		source := func(string, *config.Policy) prefix.Source { return b.Source() }
		return (&assemble.Builder{Seed: seed, Source: source}).Resolver(id, m, plain)
	}
	return out, nil
}

func findModel(c *config.Config, model string) (*config.Model, error) {
	ids := make([]string, 0, len(c.Models))
	for i := range c.Models {
		if c.Models[i].ID == model || (model == "" && len(c.Models) == 1) {
			return &c.Models[i], nil
		}
		ids = append(ids, c.Models[i].ID)
	}
	return nil, fmt.Errorf("%w: choose one of %s", ErrNoModel, strings.Join(ids, ", "))
}
