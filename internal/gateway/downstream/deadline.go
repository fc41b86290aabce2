package downstream

import (
	"sync"
	"time"
)

// Deadline is the time-out of one way of a client's connection. Servers and handlers move each of them several times a request, nearly
// always to a later time, and each move costs the runtime a timer. So it is told only of one that is sooner than what it waits for already; a
// read or a write that meets one which is no longer wanted asks for the one that is, and goes on.
//
// The zero value has none. It may be used by any number of goroutines.
type Deadline struct {
	mu          sync.Mutex
	want, armed int64 // nanoseconds since epoch; 0: none
}

// epoch makes an int64 of a time.
var epoch = time.Now()

func sinceEpoch(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	if d := t.Sub(epoch); d != 0 {
		return int64(d)
	}
	return 1
}

// Set wants t, the zero time for none. arm tells the runtime.
func (d *Deadline) Set(t time.Time, arm func(time.Time) error) error {
	want := sinceEpoch(t)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.want = want
	if d.armed == want || (d.armed != 0 && (want == 0 || want > d.armed)) {
		return nil
	}
	d.armed = want
	return arm(t)
}

// Arm tells the runtime of the deadline that is wanted, whatever it waits for. It is for who is about to wait: what met a sooner one would look again, find
// that the system takes a little more by now, though nobody has read, and take that for a client that reads.
func (d *Deadline) Arm(arm func(time.Time) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.armed == d.want {
		return
	}
	d.armed = d.want
	_ = arm(d.wanted())
}

func (d *Deadline) wanted() (t time.Time) {
	if d.want != 0 {
		t = epoch.Add(time.Duration(d.want))
	}
	return t
}

// Passed tells whether what was met is the deadline that is wanted. Where it is not, the runtime has been told of that one,
// which may have passed too, and what met the other is to be tried again.
func (d *Deadline) Passed(arm func(time.Time) error) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.armed == d.want {
		return true
	}
	d.armed = d.want
	return arm(d.wanted()) != nil
}
