// Package house holds the rules that the whole repository keeps, as tests: which package may import which, what a pure
// package may not touch, what a comment must say, what a test may not do. Each failure names the place and the cure.
// Nothing imports this package, and it has no code but tests.
//
// A rule that is wrong is changed here, with its reason, in the commit that needs the change.
package house
