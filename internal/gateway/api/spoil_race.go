//go:build race

package api

// spoil has memory that is given back overwritten: a body that is still read then is seen to be, by the race detector or by what it says.
const spoil = true
