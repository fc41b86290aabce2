package core

import (
	"fmt"
	"strings"

	"github.com/perigee-llm/perigee/internal/chain"
)

// hashOf turns a word into a hash, and nameOf back: scripts speak of blocks a, b, c.
func hashOf(name string) (h Hash) {
	copy(h[:], name)
	return h
}

func nameOf(h Hash) string { return strings.TrimRight(string(h[:]), "\x00") }

func spaceName(n Namespace) string { return strings.TrimRight(string(n[:]), "\x00") }

func chainOf(name string) chain.Key {
	return chain.Key{}.Next([]uint32{uint32(len(name))}, []byte(name))
}

var (
	classNames = []string{"none", "stale session", "stale slot", "stale lease", "stale ticket", "retired", "stale read", "repeated", "invalid",
		"instance busy", "arena busy", "too many", "overdue", "overlap"}
	kindNames = []string{"register", "lost", "fenced", "publish", "sealed", "abandoned", "query", "poll", "cancel", "start", "copied", "release",
		"backed", "unbacked", "read-done", "tick", "flush", "evict", "offer", "publish-from", "restore-into", "in-done", "out-done", "sealed-run", "retire", "fetch", "empty", "learned"}
	whyNames         = []string{"found", "missing", "too large", "timed out", "unreadable"}
	reasonNames      = []string{"evicted", "flushed", "corrupted"}
	outcomeNames     = []string{"done", "failed", "mismatch"}
	fateNames        = []string{"filled", "failed", "stale"}
	dispositionNames = []string{"write", "present", "taken", "no room"}
)

func (s SlotRef) String() string { return fmt.Sprintf("%d.%d.%d", s.Arena, s.Index, s.Gen) }
func (l LeaseID) String() string { return fmt.Sprintf("%d.%d", l.Index, l.Gen) }
func (t Ticket) String() string  { return fmt.Sprintf("%d.%d", t.Op, t.Revision) }
func (s SessionID) String() string {
	if s.Epoch == scriptEpoch {
		return fmt.Sprint(s.Number)
	}
	return fmt.Sprintf("%d@%d", s.Number, s.Epoch)
}

// scriptEpoch is what session numbers in scripts are of, if they do not say.
const scriptEpoch = 7

// wrongName tells if a block's name is not its own, or follows nothing.
func wrongName(a *Named) string {
	if a.Chain != chainOf(nameOf(a.Hash)) {
		return " wrongly"
	}
	if a.Parent.IsZero() {
		return " at the beginning"
	}
	return ""
}

func slotNames(slots []PlanSlot) string {
	var b strings.Builder
	for _, s := range slots {
		fmt.Fprintf(&b, " %v/%d", s.Slot, s.Bytes)
		if s.Checksum != 0 {
			fmt.Fprintf(&b, "#%d", s.Checksum)
		}
	}
	return b.String()
}

func pageNames(p Pages) string {
	var b strings.Builder
	at := 0
	for i := range p.Counts {
		var pieces []Piece
		pieces, at = p.Page(i, at)
		for j, x := range pieces {
			fmt.Fprintf(&b, "%c%d:%d+%d", " /"[min(j, 1)], x.Pool, x.Offset, x.Length)
		}
	}
	return b.String()
}

func fateWords(fates []SlotFate) string {
	var b strings.Builder
	for _, f := range fates {
		b.WriteString(" " + fateNames[f])
	}
	return b.String()
}

// text is an action in one line.
func text(a Action) string {
	switch a := a.(type) {
	case Registered:
		return fmt.Sprintf("%v: registered", a.Session)
	case Refused:
		return fmt.Sprintf("%v: refused %s %d: %s", a.Session, kindNames[a.Event], a.Ref, classNames[a.Class])
	case Granted:
		var b strings.Builder
		for _, g := range a.Blocks {
			if g.Disposition == Write {
				fmt.Fprintf(&b, " %v", g.Slot)
			} else {
				fmt.Fprintf(&b, " (%s)", dispositionNames[g.Disposition])
			}
		}
		return fmt.Sprintf("%v: granted %d:%s", a.Session, a.Op, b.String())
	case Published:
		return fmt.Sprintf("%v: published %d: %d sealed, %d dropped", a.Session, a.Op, a.Sealed, a.Dropped)
	case Busy:
		return fmt.Sprintf("%v: %v busy", a.Session, a.Ticket)
	case Loading:
		return fmt.Sprintf("%v: %v loading", a.Session, a.Ticket)
	case Ready:
		if a.Lease == (LeaseID{}) && a.Hits == nil {
			return fmt.Sprintf("%v: %v ready with nothing: %s", a.Session, a.Ticket, whyNames[a.Why])
		}
		return fmt.Sprintf("%v: %v ready lease %v hits %v arenas %v", a.Session, a.Ticket, a.Lease, a.Hits, a.Arenas)
	case Candidates:
		return fmt.Sprintf("%v: %v candidates %v", a.Session, a.Ticket, a.Positions)
	case Plan:
		return fmt.Sprintf("%v: plan %v for %d:%s", a.Session, a.Lease, a.Consumer, slotNames(a.Slots))
	case Restored:
		return fmt.Sprintf("%v: restored %v: %v", a.Session, a.Lease, a.OK)
	case Read:
		return fmt.Sprintf("read %d of %d+%d into%s", a.Read, a.Extent.Offset, a.Extent.Length, slotNames(a.Slots))
	case *Visible:
		return fmt.Sprintf("visible %s/%d/%s of scope %d after %q identity %q:%s", spaceName(a.Namespace), a.Group, nameOf(a.Hash), a.Scope, nameOf(a.Parent), a.Identity, slotNames(a.Slots))
	case *Named:
		return fmt.Sprintf("named %s/%d/%s%s", spaceName(a.Namespace), a.Group, nameOf(a.Hash), wrongName(a))
	case *Removed:
		return fmt.Sprintf("removed %s/%d/%s: %s", spaceName(a.Namespace), a.Group, nameOf(a.Hash), reasonNames[a.Reason])
	case *Freed:
		return fmt.Sprintf("freed %v", a.Slot)
	case PoolTaken:
		return fmt.Sprintf("%v: pool %d taken", a.Session, a.Pool)
	case PoolGone:
		return fmt.Sprintf("%v: pool %d gone", a.Session, a.Pool)
	case CopyIn:
		return fmt.Sprintf("copy %d of %v into%s from%s", a.Copy, a.Session, slotNames(a.Slots), pageNames(a.Pages))
	case CopyOut:
		return fmt.Sprintf("copy %d of %v: lease %v for %d, out of%s into%s", a.Copy, a.Session, a.Lease, a.Consumer, slotNames(a.Slots), pageNames(a.Pages))
	case CopyStop:
		return fmt.Sprintf("copy %d: stop", a.Copy)
	case CopiedIn:
		return fmt.Sprintf("%v: copied in %d:%s", a.Session, a.Copy, fateWords(a.Slots))
	case CopiedOut:
		return fmt.Sprintf("%v: copied out %d, lease %v for %d: %s, %d of %d", a.Session, a.Copy, a.Lease, a.Consumer, outcomeNames[a.Outcome], a.Good, a.Total)
	case Fetched:
		if a.Copy == 0 {
			return fmt.Sprintf("%v: fetched nothing: %s", a.Session, whyNames[a.Why])
		}
		return fmt.Sprintf("%v: fetched %d: %s, %d of %d", a.Session, a.Copy, outcomeNames[a.Outcome], a.Good, a.Found)
	case WalkedTo:
		return fmt.Sprintf("walked to %d, more: %v", a.Next, a.More)
	case CloseSession:
		return fmt.Sprintf("%v: close: %s", a.Session, classNames[a.Class])
	}
	return fmt.Sprintf("%T?", a)
}

// eventText is an event in one line.
func eventText(ev Event) string {
	switch e := ev.(type) {
	case *Register:
		return fmt.Sprintf("register %v %s %s %v instead of %v", e.Session, e.Instance, spaceName(e.Namespace), e.Arenas, e.Instead)
	case *Publish:
		text := fmt.Sprintf("publish %v op %d part %d group %d:", e.Session, e.Op, e.Part, e.Blocks[0].Group)
		for _, b := range e.Blocks {
			text += " " + nameOf(b.Hash) + "<" + nameOf(b.Parent)
		}
		return text
	case *Query:
		text := fmt.Sprintf("query %v %v mode %d consumers %d prio %d", e.Session, e.Ticket, e.Mode, e.Consumers, e.Priority)
		for _, w := range e.Demand {
			text += fmt.Sprintf(" %d:", w.Group)
			for _, h := range w.Hashes {
				text += nameOf(h) + ","
			}
		}
		return text
	case *Backed:
		return fmt.Sprintf("backed %s/%d/%s<%s at %d", spaceName(e.Namespace), e.Group, nameOf(e.Hash), nameOf(e.Parent), e.Extent.Offset)
	case *Unbacked:
		return fmt.Sprintf("unbacked %s/%d/%s at %d", spaceName(e.Namespace), e.Group, nameOf(e.Hash), e.Extent.Offset)
	case *Flush:
		return fmt.Sprintf("flush %s %v", spaceName(e.Namespace), e.Part)
	}
	return strings.TrimPrefix(fmt.Sprintf("%T%+v", ev, ev), "*core.")
}
