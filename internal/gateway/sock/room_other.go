//go:build !linux

package sock

// SendRoom does nothing: other systems are for trying things out.
func SendRoom(uintptr, int) error { return nil }

// ReceiveRoom does nothing.
func ReceiveRoom(uintptr, int) error { return nil }
