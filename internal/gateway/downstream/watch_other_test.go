//go:build !linux

package downstream

// watched returns how many connections a watcher knows.
func watched(*watcher) int { return 0 }
