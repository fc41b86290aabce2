// Package planning turns evidence of where pages lie into a plan of what to read from where, for one group of one query, and says for
// everything that is not read why not.
//
// It promises:
//
//   - A plan is a proposal. Evidence pins nothing and may be old; whoever carries the plan out asks each owner for exactly the
//     version that it names, and gets it or a refusal. Nothing here reserves, reads or waits.
//   - A plan never skips a page: it is a run from the first page on, because an engine resumes at a boundary and not behind a gap.
//   - Only routes that this binary can carry out are chosen. Today that is the Manager's own memory. Disks and peers have their
//     place in the types, and evidence of them is kept, bounded, and refused with a reason, so that it can be explained and, when there
//     is somebody to carry it out, chosen.
//   - The same evidence in the same order gives the same plan. Neither chance nor a clock decides; only how old a peer's word may
//     be goes by the time that is handed in.
//
// Nobody asks it yet, and a query that memory alone can answer should not. There evidence and pin are one step under one lock (core looks a run up and
// holds it): a set and a choice for each page would say again what the look has just said, 50 ns a page of which the whole look takes 40, and could not be
// out of date. It is for runs of which something lies below memory or at a peer, where the evidence is older than the pin: core's Backed
// has one place a block, and reads it. When a second medium is carried out the choice between them is made here, and core takes its plan.
//
// Rejected: a search over a graph of endpoints with costs on its edges. It cannot account for budgets, contention and pipelines, and would
// find routes that nobody has built. A route here is one of a few templates.
//
// The package is pure, and a Set belongs to the query that gathers it.
package planning
