// Package gateway wires one gateway from a configuration and owns its life: listeners, registration, the janitor, drain and
// shutdown. The parts decide nothing here that they could decide themselves.
//
// It promises that Start returns once requests are accepted or with everything it began taken down again, and that
// Shutdown returns when every request has been answered, every goroutine has ended and both listeners are closed.
package gateway
