// Package splitmix is one step of SplitMix64 (Steele, Lea and Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014),
// for random choices that are keyed by what they are for. It promises to give the same numbers for ever: recorded results and
// tests with published numbers depend on it.
package splitmix

// Step returns the state that follows and the number that this step gives. Every state is valid. A generator is the state alone,
// so that whoever draws decides where it lives and what it is keyed by.
func Step(state uint64) (next, out uint64) {
	next = state + 0x9e3779b97f4a7c15
	z := next
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return next, z ^ z>>31
}
