//go:build race

package index

// histories are those of [TestRandomHistories], which have one goroutine: the race detector has nothing to see in them and makes them twenty
// times as long, so all of them run without it.
const histories = 15
