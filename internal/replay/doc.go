// Package replay runs a trace through gateways and engines in virtual time: the policies, the accounting and the bucket loop are
// the very ones that serve, the engines are the simulated engine's core, and time is a number.
//
// It promises:
//   - The same options, contender and arrivals give the same result, event by event: the package is pure, one run is one
//     sequence of events in the order of (time, sequence number), and every random choice is keyed by (seed, what it is for).
//     Several runs may go at once; they share nothing.
//   - Each request ends exactly once, and when a run has ended no guard is held.
//   - Memory does not grow with the trace: arrivals are read as they come, and what is kept of ended requests are histograms
//     and a time line of bounded size. What waits in the engines is bounded by their queues.
//
// The baselines, prefix_affinity, power_of_two_work, plain_cost and oracle, are for comparison only and are known here alone: a gateway cannot have them.
package replay
