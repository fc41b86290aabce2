package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const ms = time.Millisecond

// TestRequestsAreDueEvenly: over all connections one request is due each 1/rate, by turns, and a day later still.
func TestRequestsAreDueEvenly(t *testing.T) {
	for _, p := range []pace{{rate: 5000, conns: 16}, {rate: 3, conns: 7}, {rate: 0.5, conns: 1}, {rate: 999_999, conns: 64}} {
		day := int(24 * 3600 * p.rate)
		for k := range 1000 {
			for _, k := range []int{k, k + day} {
				want := time.Duration(float64(k) / p.rate * 1e9)
				if got := p.due(k%p.conns, k/p.conns); got < want-1 || got > want+1 {
					t.Fatalf("%+v: request %d is due after %v, want %v", p, k, got, want)
				}
			}
		}
	}
}

// played is one paced connection on a fake clock: answers take what takes says, the first byte half of it.
func played(t *testing.T, p pace, conn int, takes func(n int) time.Duration) (out []attempt) {
	synctest.Test(t, func(t *testing.T) {
		var err error
		sleep := func(until time.Time) error { time.Sleep(time.Until(until)); return nil }
		out, err = p.drive(t.Context(), conn, time.Now(), sleep, func(n int) (first, end time.Time, err error) {
			d := takes(n)
			time.Sleep(d / 2)
			first = time.Now()
			time.Sleep(d - d/2)
			return first, time.Now(), nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	return out
}

func TestAPacedConnectionSendsWhenItIsDue(t *testing.T) {
	p := pace{rate: 100, conns: 2, until: 100 * ms, giveUp: 200 * ms}
	for conn := range p.conns {
		got := played(t, p, conn, func(int) time.Duration { return 4 * ms })
		if len(got) != 5 {
			t.Fatalf("%d requests, want 5", len(got))
		}
		for n, a := range got {
			due := time.Duration(2*n+conn) * 10 * ms
			if want := (attempt{due: due, first: due + 2*ms, end: due + 4*ms}); a != want {
				t.Errorf("connection %d, request %d: %+v, want %+v", conn, n, a, want)
			}
		}
	}
}

// TestWaitingForAConnectionCounts: one answer takes 35 ms, those behind it were due all the same.
func TestWaitingForAConnectionCounts(t *testing.T) {
	p := pace{rate: 100, conns: 1, until: 100 * ms, giveUp: 200 * ms}
	got := played(t, p, 0, func(n int) time.Duration {
		if n == 2 {
			return 35 * ms
		}
		return 2 * ms
	})
	want := []time.Duration{2, 2, 35, 27, 19, 11, 3, 2, 2, 2} // 55 ms: the answer; then one each 2 ms, due 10 ms apart
	if len(got) != len(want) {
		t.Fatalf("%d requests, want %d", len(got), len(want))
	}
	for n, a := range got {
		if took := a.end - a.due; took != want[n]*ms || a.late != 0 {
			t.Errorf("request %d took %v and was %v late, want %v and 0", n, took, a.late, want[n]*ms)
		}
	}
	if r := p.tally(got); r.Behind != 0 || r.Requests != 10 || r.RPS != 100 {
		t.Errorf("it has kept up: %+v", r)
	}
}

// TestATargetThatFallsBehindIsMarked: 100 requests a second for one that answers 50, measured from 100 to 300 ms.
func TestATargetThatFallsBehindIsMarked(t *testing.T) {
	p := pace{rate: 100, conns: 1, from: 100 * ms, until: 300 * ms, giveUp: 500 * ms}
	got := played(t, p, 0, func(int) time.Duration { return 20 * ms })
	if len(got) != 30 {
		t.Fatalf("%d attempts, want all 30 that were due", len(got))
	}
	r := p.tally(got)
	// The nth, due at 10n, is sent at 20n and answered at 20n+20: the last one sent is the 24th, at 480 ms. Of those due from 100 ms, n = 10 to 29,
	// five are not sent; they waited until 500 ms.
	if r.Requests != 10 || r.RPS != 50 || r.Behind != 1 || r.Unsent != 5 || r.Late99 != 0 {
		t.Errorf("%+v, want 10 requests, 50/s, behind, 5 unsent", r)
	}
	if r.P99 != 260_000 || r.P50 < 210_000 { // the 24th waits longest: from 240 to 500 ms
		t.Errorf("p50 %v, p99 %v", r.P50, r.P99)
	}
}

// TestOurOwnLatenessIsTold: a load that wakes late says so, and it counts.
func TestOurOwnLatenessIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pace{rate: 100, conns: 1, until: 50 * ms, giveUp: 100 * ms}
		late := func(until time.Time) error { time.Sleep(time.Until(until) + 3*ms); return nil }
		got, err := p.drive(t.Context(), 0, time.Now(), late, func(int) (first, end time.Time, err error) {
			time.Sleep(ms)
			return time.Now(), time.Now(), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if r := p.tally(got[1:]); r.Late99 != 3000 || r.P50 != 4000 || r.First50 != 4000 {
			t.Errorf("%+v, want 3 ms late and 4 ms in all", r)
		}
	})
}

func TestAPacedConnectionEnds(t *testing.T) {
	p := pace{rate: 100, conns: 1, until: time.Hour, giveUp: 2 * time.Hour}
	never := func(time.Time) error { return nil }
	broken := errors.New("broken")
	if _, err := p.drive(t.Context(), 0, time.Now(), never, func(int) (first, end time.Time, err error) { return first, end, broken }); !errors.Is(err, broken) {
		t.Errorf("error %v, want the answer's", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	asked := func(int) (first, end time.Time, err error) { t.Error("asked"); return first, end, broken }
	if _, err := p.drive(ctx, 0, time.Now(), never, asked); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the context's", err)
	}
	// The real alarm does not outlast it either.
	a, err := newAlarm(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	if err := a.wait(time.Now().Add(time.Hour)); err == nil {
		t.Error("the alarm rang an hour early")
	}
}

func TestAnAlarmRings(t *testing.T) {
	a, err := newAlarm(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	for _, d := range []time.Duration{-time.Second, 0, time.Nanosecond, 300 * time.Microsecond, 2 * ms} {
		until := time.Now().Add(d)
		if err := a.wait(until); err != nil || time.Now().Before(until) {
			t.Errorf("%v: error %v, %v early", d, err, time.Until(until))
		}
	}
}

func TestTheTableMarksWhatFellBehind(t *testing.T) {
	c := cell{Mode: "json", Body: 1024, Conns: 16, Rate: 5000}
	var rows []row
	for round, behind := range []int{0, 1, 1} {
		rows = append(rows, row{round, "proxy", c, result{RPS: 5000, Late99: 77}}, row{round, "perigee", c, result{RPS: 4000, Behind: behind, Unsent: behind}})
	}
	sums := summarise(rows)
	if sums[0].Behind != 0 || sums[1].Behind != 2 || sums[1].Unsent != 2 {
		t.Errorf("%+v", sums)
	}
	var b bytes.Buffer
	printTable(&b, sums)
	for _, want := range []string{"json 1024B c16 5000/s", "4000 !2 ", " 5000 ", "late p99", " 77"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, b.String())
		}
	}
}

func TestRatesThatAreNone(t *testing.T) {
	for _, rate := range []string{"-1", "NaN", "Inf", "2e6"} {
		if _, err := parseOptions([]string{"-rate", rate}); err == nil || !strings.Contains(err.Error(), "-rate") {
			t.Errorf("%s: error %v", rate, err)
		}
	}
}
