//go:build !linux

package main

import (
	"context"
	"time"
)

// alarm wakes one goroutine at given times, as exactly as Go's timers do.
type alarm struct{ ctx context.Context }

func newAlarm(ctx context.Context) (*alarm, error) { return &alarm{ctx}, nil }

func (a *alarm) wait(until time.Time) error { return pause(a.ctx, time.Until(until)) }

func (a *alarm) close() {}
