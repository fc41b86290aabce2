//go:build !linux

package downstream

import (
	"errors"
	"syscall"
)

// watch is for Linux.
type watch struct{ gone, more func() }

// arming is for Linux.
type arming struct{}

func (*arming) of(*watcher, uint64, syscall.RawConn) {}
func (*arming) set(bool)                             {}

// watcher is for Linux; elsewhere connections are read ahead.
type watcher struct{}

func newWatcher() (*watcher, error) { return nil, errors.ErrUnsupported }

func (*watcher) add(syscall.RawConn, watch) uint64 { return 0 }
func (*watcher) remove(uint64)                     {}
func (*watcher) run()                              {}
func (*watcher) close()                            {}
