// Package enginehttp serves simulated engines over HTTP, in the shapes of vLLM 0.32 and SGLang 0.5.23.
//
// Promises:
//   - One goroutine owns the engine's core; times follow the core's timing model, not the load of this process: a step
//     that is noticed late is still stamped with the time at which it ended.
//   - A client that leaves ends its request at once: its blocks are free and its place in the batch too.
//   - Faults happen only when Options.Control is set or a test calls SetFault, and only as often as they were asked for.
//   - Close returns when every goroutine of the server has ended.
//
// What the shapes hold, what they leave out, and the faults are written down in docs/simulated-engine.md.
package enginehttp
