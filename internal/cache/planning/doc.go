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
// There are two ways to ask. ChooseOwn plans what this Manager has itself, by runs, for core: it looks and pins in one step under one lock, so its evidence
// cannot be out of date, and 8,192 pages are mostly one run; a Set and a Replica for each of them would take longer than the look (50 ns a page and 40).
// Choose plans over Sets, page by page, where some of the evidence is of peers and older than the pin; who carries such a plan out is told by each owner
// whether it still holds. For what both can say they say the same (TestOwnAsChosen).
//
// Rejected: a search over a graph of endpoints with costs on its edges. It cannot account for budgets, contention and pipelines, and would
// find routes that nobody has built. A route here is one of a few templates.
//
// The package is pure, and a Set belongs to the query that gathers it.
package planning
