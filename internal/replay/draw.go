package replay

// splitMix is one step of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) from a state.
func splitMix(state uint64) uint64 {
	z := state + 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// keyed returns the random number that belongs to a seed and what it is for: the same whatever was drawn before it.
func keyed(seed uint64, what ...uint64) uint64 {
	h := splitMix(seed)
	for _, w := range what {
		h = splitMix(h ^ splitMix(w))
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
)
