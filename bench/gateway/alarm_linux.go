package main

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// alarm wakes one goroutine at given times. A timer of Go's is no use here: the runtime waits for the network in whole
// milliseconds, so that an idle process wakes up to one late (bench/README.md has figures), ten times what a request takes,
// and sends in bursts what was to be sent evenly. The kernel's timer is a file, for which it waits as for a connection.
type alarm struct {
	file *os.File
	stop func() bool
}

// newAlarm returns an alarm whose wait fails once ctx has ended. It has to be closed.
func newAlarm(ctx context.Context) (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "timer")
	return &alarm{f, context.AfterFunc(ctx, func() { _ = f.Close() })}, nil
}

// wait returns at a time, or at once if it is past. One goroutine may call it.
func (a *alarm) wait(until time.Time) error {
	d := time.Until(until)
	if d <= 0 {
		return nil
	}
	raw, err := a.file.SyscallConn()
	if err != nil {
		return err
	}
	// Through Control, since the file may be closed at any time and its number be another's.
	var errSet error
	err = raw.Control(func(fd uintptr) {
		errSet = unix.TimerfdSettime(int(fd), 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(d.Nanoseconds())}, nil)
	})
	if err := errors.Join(err, errSet); err != nil {
		return err
	}
	var times [8]byte // how often it has fired: once
	_, err = a.file.Read(times[:])
	return err
}

func (a *alarm) close() {
	a.stop()
	_ = a.file.Close()
}
