//go:build !amd64 || race

package copysum

// quick says that there is assembly for it.
const quick = false

func through(*[8]uint64, *byte, *byte, int) {}

func past(*[8]uint64, *byte, *byte, int) {}

func aligned([]byte) bool { return false }
