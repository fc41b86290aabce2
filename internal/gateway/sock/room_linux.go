package sock

import "syscall"

// SendRoom bounds what a TCP socket, or those that a listening one accepts, holds of what was written to it, in bytes. Linux takes twice as much, for its own records too, and at
// most twice net.core.wmem_max (416 KiB by default); without a bound it grows to net.ipv4.tcp_wmem's 4 MiB.
func SendRoom(fd uintptr, n int) error {
	return syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, n)
}

// ReceiveRoom bounds what a TCP socket holds that was not read, as SendRoom does (net.core.rmem_max). It is for before the socket connects.
func ReceiveRoom(fd uintptr, n int) error {
	return syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, n)
}
