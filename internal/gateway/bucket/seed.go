package bucket

import (
	"hash/fnv"
	"strconv"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
)

// GroupSeed returns the seed of a role group's policy, so that groups draw independently: two buckets must not sample the same
// positions for one request.
func GroupSeed(seed uint64, model, bucketID string, stage fleet.Stage) uint64 {
	h := fnv.New64a()
	for _, part := range [...]string{strconv.FormatUint(seed, 10), model, bucketID, stage.String()} {
		h.Write([]byte(part))
		h.Write([]byte{0})
	}
	return h.Sum64()
}
