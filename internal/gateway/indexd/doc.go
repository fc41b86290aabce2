// Package indexd is the shell of `perigee index`: it keeps a fleet of engines, follows their KV events into indexes, and serves these to
// gateways (package prefix/indexer). It follows Cache Managers beside them: what engines can restore is part of what they hold, and what that
// takes is told to gateways too.
//
// It promises that an engine which has said what it serves is known to those who ask: as blind until its events say otherwise. One that has
// not is not followed, which gateways take for blind too. The listener is open before any engine has answered, and the health service says
// that it is ready when each was asked once.
//
// [Service.Close] ends the listeners, the subscriptions and all goroutines, in that order, and waits.
package indexd
