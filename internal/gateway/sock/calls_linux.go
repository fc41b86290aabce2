package sock

import (
	"syscall"
	"unsafe"
)

// vectored: several pieces are written with one call.
const vectored = true

// The calls. What a pointer goes to is reachable by the arguments until they return, and the raw ones neither grow
// the stack nor let anything move it; the others keep it as package syscall does.

func read(fd uintptr, p []byte, tell bool) (int, syscall.Errno) {
	if tell {
		n, _, errno := syscall.Syscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
		return int(n), errno
	}
	n, _, errno := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	return int(n), errno
}

func peek(fd uintptr) (int, syscall.Errno) {
	var b [1]byte
	n, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&b)), 1, syscall.MSG_PEEK|syscall.MSG_DONTWAIT, 0, 0)
	return int(n), errno
}

func write(fd uintptr, p []byte, tell bool) (int, syscall.Errno) {
	if tell {
		n, _, errno := syscall.Syscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
		return int(n), errno
	}
	n, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	return int(n), errno
}

func writev(fd uintptr, iov []syscall.Iovec, tell bool) (int, syscall.Errno) {
	if tell {
		n, _, errno := syscall.Syscall(syscall.SYS_WRITEV, fd, uintptr(unsafe.Pointer(unsafe.SliceData(iov))), uintptr(len(iov)))
		return int(n), errno
	}
	n, _, errno := syscall.RawSyscall(syscall.SYS_WRITEV, fd, uintptr(unsafe.Pointer(unsafe.SliceData(iov))), uintptr(len(iov)))
	return int(n), errno
}
