package ledger

import (
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/prefix/events/stream"
)

// beginSnapshot begins a book beside the one that counts. A snapshot of another incarnation shows a restart, and is asked for anew, unless the
// live connection has told better.
func (l *Ledger) beginSnapshot(now time.Time, in Input) {
	if in.Ask != l.ask || l.ask == 0 {
		return
	}
	if l.foreign(now, in.Header.Epoch, in.Ask) {
		return
	}
	if l.sees(now, in.Header.Epoch); in.Ask != l.ask {
		return
	}
	l.unstage()
	l.staged, l.head, l.spoilt = l.newBook(), in.Header, false
}

func (l *Ledger) unstage() {
	if l.staged != nil {
		l.staged.clear()
		l.staged = nil
	}
}

func (l *Ledger) chunk(now time.Time, in Input) {
	if l.staged == nil || in.Ask != l.ask || l.spoilt {
		return
	}
	head, ok := l.staged.apply(now, in.Payload)
	l.spoilt = !ok || head.Epoch != l.head.Epoch
}

// end is the end of an answer. A snapshot stands for the batch before the first that is not in it, so that the machine splices both.
func (l *Ledger) end(now time.Time, ask uint64) {
	if l.staged != nil && ask == l.ask {
		if l.spoilt || l.staged.events != l.head.Records {
			l.counts.BadSnapshots++
			l.fail(now, ask)
			return
		}
		if seq := int64(l.head.Resume) - 1; seq >= 0 {
			l.drive(now, stream.Input{Kind: stream.Replayed, Batch: stream.Batch{Seq: seq, Print: printOf(l.epoch, seq)}, Ask: ask})
		}
		l.unstage() // where it was not needed
	}
	l.answered(now, stream.ReplayEnd, ask)
}

func (l *Ledger) fail(now time.Time, ask uint64) {
	if ask == l.ask {
		l.unstage()
	}
	l.answered(now, stream.ReplayBroken, ask)
}

func (l *Ledger) answered(now time.Time, kind stream.InputKind, ask uint64) {
	if ask == l.ask {
		l.ask = 0
	}
	l.drive(now, stream.Input{Kind: kind, Ask: ask})
}
