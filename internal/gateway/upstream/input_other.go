//go:build !unix

package upstream

import (
	"errors"
	"net"
	"syscall"
)

// bareConn returns nil: here a connection is waited for with a buffer.
func bareConn(net.Conn) syscall.RawConn { return nil }

func (in *input) tryRead(uintptr) bool { return true }

func (in *input) readNow([]byte) (int, error) { return 0, errors.ErrUnsupported }
