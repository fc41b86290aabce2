package replay

import "github.com/perigee-llm/perigee/internal/splitmix"

// scatter maps x to a number that looks random.
func scatter(x uint64) uint64 {
	_, out := splitmix.Step(x)
	return out
}

// keyed returns the random number that belongs to a seed and what it is for: the same whatever was drawn before it.
func keyed(seed uint64, what ...uint64) uint64 {
	h := scatter(seed)
	for _, w := range what {
		h = scatter(h ^ scatter(w))
	}
	return h
}

// unit maps a random number to [0, 1).
func unit(x uint64) float64 { return float64(x>>11) / (1 << 53) }

// What random numbers are drawn for, so that no two draws share a key.
const (
	forGateway = iota + 1
	forPolicy
	forPhase
	forLoss
	forAffinity
	forChoice
	forOther
	forNews
	forPeers
)
