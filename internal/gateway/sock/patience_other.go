//go:build !linux

package sock

import "time"

// Patience does nothing: other systems have no such option, or another.
func Patience(uintptr, time.Duration) error { return nil }
