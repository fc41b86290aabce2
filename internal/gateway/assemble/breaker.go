package assemble

import (
	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/fleet"
)

// Breaker returns the settings of the engines' circuit breakers.
func Breaker(c *config.Breaker) fleet.BreakerConfig {
	floor := c.Floor
	if floor == 0 {
		floor = -1 // in the file 0 turns it off; to the registry it is what nobody set
	}
	return fleet.BreakerConfig{Threshold: c.Threshold, CoolDown: c.CoolDown, Floor: floor}
}
