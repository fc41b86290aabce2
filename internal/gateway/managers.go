package gateway

import (
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/managers"
)

// managerTargets are the Cache Managers that the configuration names.
func managerTargets(c *config.Config) (out []managers.Target) {
	for _, m := range c.Managers {
		out = append(out, managers.Target(m))
	}
	return out
}
