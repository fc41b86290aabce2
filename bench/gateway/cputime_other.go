//go:build !linux

package main

import "errors"

// cpuSeconds is not known here.
func cpuSeconds(int) (float64, error) { return 0, errors.ErrUnsupported }
