package api

import (
	"github.com/perigee-llm/perigee/internal/gateway/bucket"
)

func (c *call) dispatchPair(sel bucket.Selection) *failure {
	return &failure{answer: errMisconfigured, what: "pairs are not dispatched"}
}
