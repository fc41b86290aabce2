package manager

import (
	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
)

// classWord is a class for metrics; "" for one that refuses nothing or that no client causes.
func classWord(c core.Class) string {
	if c == core.NoClass || c == core.StaleRead {
		return ""
	}
	return wire.ClassOf(c).String()
}
