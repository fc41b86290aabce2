//go:build linux

package manager

import (
	"bytes"
	"errors"
	"testing"

	"github.com/perigee-llm/perigee/internal/cache/channel/client"
	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
)

// fetch asks for the first n blocks of a prompt, to go to the memory from place on.
func (e *engineMemory) fetch(pool uint32, prompt, place, n int) *wire.Fetch {
	return &wire.Fetch{Hashes: hashes(prompt, n), Pages: *e.pages(pool, place, place+n)}
}

// lines is the same for memory whose pages lie at equal distances, counted in units of which a page has so many.
func (e *engineMemory) lines(pool uint32, prompt, unit int, places ...int) *wire.Fetch {
	half := uint32(e.page / 2)
	m := &wire.Fetch{Hashes: hashes(prompt, len(places))}
	for i := range 2 {
		m.Lines.Lines = append(m.Lines.Lines, core.Line{Pool: pool, Offset: uint64(i * len(e.mem) / 2), Distance: half / uint32(unit), Length: half})
	}
	for _, p := range places {
		m.Lines.Places = append(m.Lines.Places, uint64(p*unit))
	}
	return m
}

// offering is a session whose engine has published prompt 1, eight blocks from its memory's beginning on.
func offering(m *tester, change ...func(*client.Options)) (*client.Session, *engineMemory) {
	m.t.Helper()
	s := m.dial(change...)
	e := newMemory(m.t, 32, pageBytes)
	e.offer(m.t, s, 3)
	e.fill(1, 0, 8)
	if got, err := s.PublishFrom(m.t.Context(), prompt(1, 0, 8), e.pages(3, 0, 8)); err != nil || got.Sealed != 8 {
		m.t.Fatalf("%+v, %v", got, err)
	}
	return s, e
}

// TestFetch: what is there is restored in one exchange, byte for byte, and nothing is held afterwards.
func TestFetch(t *testing.T) {
	m := begin(t, func(o *Options) { o.Admin = "127.0.0.1:0" })
	s, e := offering(m)
	before := bytes.Clone(e.mem)
	e.set(26, make([]byte, pageBytes))
	got, err := s.Fetch(e.fetch(3, 1, 16, 10))
	if want := (client.Fetched{Good: 8, Found: 8}); err != nil || got != want || e.holds(1, 16, 8) != 8 {
		t.Errorf("%+v, %v; %d pages are there", got, err, e.holds(1, 16, 8))
	}
	if !bytes.Equal(e.get(24), make([]byte, pageBytes)) || !bytes.Equal(e.get(26), make([]byte, pageBytes)) {
		t.Error("what was not found was touched")
	}
	for _, unit := range []int{1, 5} {
		copy(e.mem, before)
		if got, err := s.Fetch(e.lines(3, 1, unit, 30, 9, 17)); err != nil || got.Good != 3 {
			t.Errorf("by lines: %+v, %v", got, err)
		}
		for i, at := range []int{30, 9, 17} {
			if want := make([]byte, pageBytes); !bytes.Equal(e.get(at), filled(want, 1, i)) {
				t.Errorf("page %d is not where its line has it", i)
			}
		}
	}
	copy(e.mem, before)
	all := e.fetch(3, 1, 16, 10)
	all.All, all.Request = true, "chatcmpl-7"
	for what, f := range map[string]*wire.Fetch{"of all": all, "of none": e.fetch(3, 2, 16, 4)} {
		if got, err := s.Fetch(f); err != nil || got != (client.Fetched{Why: core.Missing}) || !bytes.Equal(e.mem, before) {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}
	if _, story := m.admin("GET", "/explain?request=chatcmpl-7", nil); !bytes.Contains([]byte(story), []byte("missing")) {
		t.Errorf("the story: %s", story)
	}
	if st := m.Status(); st.Usage.Leased+st.Usage.Pinned+st.Usage.Queries != 0 || st.Usage.Copies != 0 {
		t.Errorf("at rest: %+v", st.Usage)
	}
	s.Close()
	m.settled()
}

func filled(page []byte, prompt, i int) []byte {
	fill(page, hashOf(prompt, i), 0, 0)
	return page
}

// TestFetchSpoiled: a page that is not what was sealed ends the prefix there, and goes.
func TestFetchSpoiled(t *testing.T) {
	m := begin(t)
	s, e := offering(m)
	m.mem.RLock()
	a := m.mem.arenas[0]
	m.mem.RUnlock()
	for i := range a.Shape.Slots {
		if want := make([]byte, pageBytes); bytes.Equal(a.Slot(i, pageBytes), filled(want, 1, 3)) {
			a.Slot(i, pageBytes)[17] ^= 1
		}
	}
	got, err := s.Fetch(e.fetch(3, 1, 16, 8))
	if want := (client.Fetched{Good: 3, Found: 8, Outcome: core.Mismatch}); err != nil || got != want || e.holds(1, 16, 3) != 3 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := s.Fetch(e.fetch(3, 1, 16, 8)); err != nil || got.Good != 3 || got.Found != 3 {
		t.Errorf("afterwards: %+v, %v", got, err)
	}
	if st := m.Status(); st.Spoiled != 1 || st.Stats.Corrupt != 1 {
		t.Errorf("%d spoiled, %d corrupt", st.Spoiled, st.Stats.Corrupt)
	}
	s.Close()
	m.settled()
}

// TestFetchBusy: a fetch waits for no bytes. What is refused is nothing done, and the session goes on.
func TestFetchBusy(t *testing.T) {
	g := newGate()
	m := begin(t, func(o *Options) {
		o.CopyForTesting = func(_ core.SessionID, restore bool, page int) {
			if restore && page == 5 {
				g.wait(page)
			}
		}
	})
	s, e := offering(m, func(o *client.Options) { o.QueryBytes = 8 * 8192 })
	ended := make(chan client.Fetched, 1)
	go func() {
		got, _ := s.Fetch(e.fetch(3, 1, 16, 8))
		ended <- got
	}()
	<-g.reached
	if got, err := s.Fetch(e.fetch(3, 1, 26, 3)); err != nil || got != (client.Fetched{Busy: true}) {
		t.Errorf("beside one that has all bytes: %+v, %v", got, err)
	}
	for class, f := range map[wire.Class]*wire.Fetch{
		wire.Overlap: e.fetch(3, 1, 23, 2),
		wire.Invalid: e.fetch(4, 1, 26, 2),
	} {
		if _, err := s.Fetch(f); client.ClassOf(err) != class {
			t.Errorf("%v instead of %v", err, class)
		}
	}
	both, far := e.lines(3, 1, 1, 26), e.lines(3, 1, 1, 26)
	both.Pages = *e.pages(3, 26, 27)
	far.Lines.Places[0] = 1 << 62
	for _, f := range []*wire.Fetch{both, far, {Hashes: hashes(1, 1)}, {Group: 7, Hashes: hashes(1, 1), Pages: *e.pages(3, 26, 27)}} {
		if _, err := s.Fetch(f); client.ClassOf(err) != wire.Invalid {
			t.Errorf("%+v: %v", f, err)
		}
	}
	close(g.open)
	if got := <-ended; got.Good != 8 {
		t.Errorf("%+v", got)
	}
	if got, err := s.Fetch(e.fetch(3, 1, 26, 3)); err != nil || got.Good != 3 || e.holds(1, 26, 3) != 3 {
		t.Errorf("afterwards: %+v, %v", got, err)
	}
	s.Close()
	m.settled()
}

// TestFetchLost: the session's end waits for the copy, and the call for the connection's end; also where the connection's own goroutine copies.
func TestFetchLost(t *testing.T) {
	for _, help := range []bool{false, true} {
		t.Run(map[bool]string{false: "workers", true: "helped"}[help], func(t *testing.T) { fetchLost(t, help) })
	}
}

func fetchLost(t *testing.T, help bool) {
	g := newGate()
	m := begin(t, func(o *Options) {
		o.HelpForTesting = help
		o.CopyForTesting = func(_ core.SessionID, restore bool, page int) {
			if restore {
				g.wait(page)
			}
		}
	})
	s, e := offering(m)
	ended := make(chan error, 1)
	go func() {
		_, err := s.Fetch(e.fetch(3, 1, 16, 8))
		ended <- err
	}()
	<-g.reached
	m.locked(func() { m.lose(m.mu.sessions[1]) })
	select {
	case err := <-ended:
		t.Errorf("the call ended while the Manager copies: %v", err)
	default:
	}
	if u := m.Status().Usage; u.Copies != 1 || u.Pools != 1 || u.Pinned == 0 {
		t.Errorf("while it is copied: %+v", u)
	}
	close(g.open)
	if err := <-ended; !errors.Is(err, client.ErrLost) {
		t.Errorf("the call: %v", err)
	}
	s.Close()
	m.settled()
}

// TestFetchTakenBack: nothing is copied for a client that has hung up before its message is read: it takes its pieces for its own.
func TestFetchTakenBack(t *testing.T) {
	m := begin(t)
	s, e := offering(m)
	c := m.connect()
	c.attach(s.Credentials(), wire.RoleQuery)
	if r := c.refused(&wire.Fetch{Group: 9, Hashes: hashes(1, 1)}); r.Class != wire.Invalid {
		t.Errorf("%+v", r)
	}
	before := bytes.Clone(e.mem)
	m.locked(func() { // so that the Manager does not come to it
		c.say(e.fetch(3, 1, 16, 8))
		c.uc.CloseWrite()
	})
	for a, _ := c.hear(); a != nil; a, _ = c.hear() {
		if a.Kind() == wire.KindFetched {
			t.Errorf("it was answered: %+v", a)
		}
	}
	if !bytes.Equal(e.mem, before) {
		t.Error("its pieces were written")
	}
	<-s.Done()
	s.Close()
	m.settled()
}
