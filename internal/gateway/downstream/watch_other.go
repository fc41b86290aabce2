//go:build !linux

package downstream

import (
	"errors"
	"syscall"
)

// watcher is for Linux; elsewhere connections are read ahead.
type watcher struct{}

func newWatcher() (*watcher, error) { return nil, errors.ErrUnsupported }

func (*watcher) add(syscall.RawConn, func()) uint64 { return 0 }
func (*watcher) remove(uint64)                      {}
func (*watcher) run()                               {}
func (*watcher) close()                             {}
