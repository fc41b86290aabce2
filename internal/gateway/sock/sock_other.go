//go:build !unix

package sock

import (
	"errors"
	"net"
	"syscall"
)

// ErrNothing means that there is nothing to read yet.
var ErrNothing = errors.New("nothing to read yet")

// Raw returns nil: here a connection is read and written as package net does.
func Raw(net.Conn) syscall.RawConn { return nil }

// Read is for systems where Raw returns something.
func Read(uintptr, []byte) (int, error) { return 0, errors.ErrUnsupported }

// ReadLong is for systems where Raw returns something.
func ReadLong(uintptr, []byte) (int, error) { return 0, errors.ErrUnsupported }

// Quiet is for systems where Raw returns something.
func Quiet(uintptr) bool { return true }

// Writer is for systems where Raw returns something.
type Writer struct{}

// Of does nothing.
func (*Writer) Of(syscall.RawConn) {}

// OnWait does nothing.
func (*Writer) OnWait(func()) {}

// Write is for systems where Raw returns something.
func (*Writer) Write(*net.Buffers) error { return errors.ErrUnsupported }

// Now is for systems where Raw returns something.
func (*Writer) Now(uintptr, *net.Buffers) (bool, error) { return false, errors.ErrUnsupported }
