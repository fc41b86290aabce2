package sock_test

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/sock"
)

func TestShortage(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}, true},
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.ENFILE)}, true},
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EADDRNOTAVAIL)}, true},
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}, false},
		{&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, false},
		{errors.New("too many open files"), false},
		{nil, false},
	} {
		if got := sock.Shortage(c.err); got != c.want {
			t.Errorf("%v: %v", c.err, got)
		}
	}
}
