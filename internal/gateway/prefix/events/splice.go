package events

import (
	"context"
	"errors"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"
	"github.com/perigee-llm/perigee/internal/gateway/prefix/index"
)

// Past is how far somebody else has followed a rank, where its claims were copied from.
type Past struct {
	// Next is the number of the first batch whose events may be missing in the claims; Print is XXH3 of the payload of the one before, if
	// Printed. Whole says that the claims are all that the engine holds, once the batches before Through are applied, which were published while
	// they were copied. A block may have been stored in these on one that was removed before it was copied: then they are not.
	Next    int64
	Print   uint64
	Printed bool
	Whole   bool
	Through int64
}

// Adopting takes in what somebody else knows of a rank. It is told by one goroutine at a time, and not after the [PastOf] has returned.
type Adopting interface {
	// Begin comes first, once. The error means that the claims are of no use here.
	Begin(blockSize int, g index.Groups) error
	// Claims takes in further ones. The slice may be used again. After an error the rest is of no use.
	Claims(claims []index.Claim) error
}

// PastOf hands over what somebody else knows of a rank, and returns how far that goes; false: nobody knows, or what was handed over is good
// for nothing. It ends when the context does, and bounds its own time: the rank is not followed before it returns.
type PastOf func(ctx context.Context, rank int32, into Adopting) (Past, bool)

// adopter is Claims that can be copied to; a *local.Rank is one.
type adopter interface {
	AdoptGroups(blockSize int, g index.Groups)
	Adopt(blockSize int, claims []index.Claim) index.Outcome
}

// splice takes over what somebody else knows, before the rank's sockets are looked at. What the engine published from there on is then in
// the replay, which proves too that the engine is still the same (stream.Machine.Adopt).
func (f *feed) splice() {
	into, able := f.claims.(adopter)
	if f.e.target.Past == nil || !able {
		return
	}
	t := &taking{f: f, into: into}
	p, ok := f.e.target.Past(f.ctx, f.src.Rank, t)
	f.applier.call(func() { t.end(time.Now(), p, ok && t.fault == nil) })
}

var (
	errRefused = errors.New("the index does not take the claims")
	errEnded   = errors.New("the rank is not followed any more")
)

// taking pastes claims in the applier's goroutine.
type taking struct {
	f         *feed
	into      adopter
	blockSize int
	begun     bool
	fault     error
}

// Begin implements Adopting.
func (t *taking) Begin(blockSize int, g index.Groups) error {
	t.blockSize = blockSize
	return t.do(func() error {
		t.begun, t.f.withdrawn = true, false
		t.into.AdoptGroups(blockSize, g)
		return nil
	})
}

// Claims implements Adopting.
func (t *taking) Claims(claims []index.Claim) error {
	return t.do(func() error {
		// What was withdrawn meanwhile, because somebody says that the engine is another, is lost: the rest alone is nothing.
		if t.f.withdrawn || t.into.Adopt(t.blockSize, claims).Result != index.Applied {
			return errRefused
		}
		return nil
	})
}

func (t *taking) do(what func() error) error {
	if t.fault == nil && (t.f.ctx.Err() != nil || !t.f.applier.call(func() { t.fault = what() })) {
		t.fault = errEnded
	}
	return t.fault
}

// end runs in the applier's goroutine.
func (t *taking) end(now time.Time, p Past, ok bool) {
	f := t.f
	switch {
	case ok && t.begun && !f.withdrawn:
		f.m.Adopt(now, p.Next, p.Print, p.Printed, p.Whole)
		f.adopted = true
		f.applier.due(f)
	case t.begun:
		f.claims.Withdraw()
	}
}

// disown drops what was adopted, since the engine contradicts it, and asks the engine itself for all it has.
func (f *feed) disown(now time.Time) {
	f.mistaken = false
	f.step(now, stream.Input{Kind: stream.Renewed})
}
