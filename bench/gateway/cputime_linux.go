package main

import "golang.org/x/sys/unix"

// cpuSeconds is the CPU time of a process, user and system, of all threads that it has and had. It is read from the process's own clock, which counts nanoseconds:
// /proc/PID/stat counts hundredths of a second, which is a thirtieth of what a turn of 400 ms takes.
func cpuSeconds(pid int) (float64, error) {
	const schedClock = 2 // clock_getcpuclockid's number for a process's time as the scheduler counts it
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|schedClock), &t); err != nil {
		return 0, err
	}
	return float64(t.Nano()) / 1e9, nil
}
