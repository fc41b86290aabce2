//go:build race

package bpe

// raceEnabled: the race detector makes everything ten times as slow, and says nothing of ids. What is about ids alone
// takes fewer cases then.
const raceEnabled = true
