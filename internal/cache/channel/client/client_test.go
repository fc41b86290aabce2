package client

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/cache/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The client against a real Manager is tested with the Manager. Here it meets ones that are not.

func fake(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pk")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			serve(c)
		}
	}()
	t.Cleanup(func() { ln.Close(); <-done })
	return path
}

func options(path string) Options {
	n := state.Namespace{Engine: state.Engine{Name: "x", Version: "1"}, Model: state.Model{Content: state.Digest{1}},
		Compute: state.Compute{DType: "f", Device: "cpu", ISA: "i", Attention: "a"}, Hash: state.HashScheme{Algorithm: "h", Tokens: 16}}
	one := state.Rank{Size: 1}
	n.Shard = state.Shard{Tensor: one, Pipeline: one, DecodeContext: one, PrefillContext: one, Heads: one}
	n.Layout = state.Layout{Order: "o", KVDType: "f", Format: "raw", BlockTokens: 16, Groups: []state.Group{
		{Components: state.Of(state.AttentionKV), Rule: state.RulePrefix, Segments: []state.Segment{{DType: "f", Bytes: 64}}}}}
	return Options{Socket: path, Instance: "i", Ranks: []state.Namespace{n}}
}

// question reads one frame.
func question(c net.Conn) (h wire.Header, err error) {
	head := make([]byte, wire.HeaderSize)
	if _, err = io.ReadFull(c, head); err == nil {
		h, _ = wire.ParseHeader(head)
		_, err = io.CopyN(io.Discard, c, int64(h.Length))
	}
	return h, err
}

func TestFalseManagers(t *testing.T) {
	welcome := wire.Append(nil, wire.Header{Ref: 1, Epoch: 1}, &wire.Welcome{Version: 1})
	registered := wire.Append(nil, wire.Header{Ref: 2, Epoch: 1, Session: 1}, &wire.Registered{Arenas: []wire.Arena{{Slots: 1, SlotBytes: 4096, MapBytes: 4096}}})
	attached := wire.Append(nil, wire.Header{Ref: 2, Epoch: 1, Session: 1}, &wire.Attached{Arenas: []wire.Arena{{Slots: 1, SlotBytes: 4096, MapBytes: 4096}}})
	claimed := append([]byte(nil), attached...)
	claimed[6] = 3 // descriptors that never come
	for name, c := range map[string]struct {
		says [2][][]byte // one answer a question, on the first connection and on the second
		want error
	}{
		"nothing":                    {[2][][]byte{}, ErrLost},
		"rubbish":                    {[2][][]byte{{[]byte("HTTP/1.1 400 Bad Request\r\n\r\n and more of it")}}, ErrLost},
		"another answer":             {[2][][]byte{{wire.Append(nil, wire.Header{Ref: 1}, &wire.Pong{})}}, ErrProtocol},
		"welcome, and the end":       {[2][][]byte{{welcome}}, ErrLost},
		"an arena without its fd":    {[2][][]byte{{welcome, registered}, {welcome, attached}}, ErrProtocol},
		"descriptors that are not":   {[2][][]byte{{welcome, registered}, {welcome, claimed}}, ErrLost},
		"an end with its reason":     {[2][][]byte{{wire.Append(nil, wire.Header{}, &wire.Closing{Class: wire.NotAllowed})}}, ErrLost},
		"a frame that is too long":   {[2][][]byte{{{0xff, 0xff, 0xff, 0x7f, 64, 31: 0}}}, ErrProtocol},
		"unknown news, then the end": {[2][][]byte{{append([]byte{0, 0, 0, 0, 120}, make([]byte, 27)...)}}, ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			conns := make(chan net.Conn, 4)
			path := fake(t, func(conn net.Conn) {
				if n := len(conns); n < 2 {
					for _, answer := range c.says[n] {
						question(conn)
						conn.Write(answer)
					}
				}
				if len(conns) == 2 { // it wants to leave
					conn.Close()
					return
				}
				conns <- conn
				if len(c.says[1]) == 0 {
					conn.(*net.UnixConn).CloseWrite() // so that what was written is read first
				}
				go func() { // ends with the connection, when the client closes it
					io.Copy(io.Discard, conn)
					conn.Close()
				}()
			})
			_, err := Dial(context.Background(), options(path))
			if !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

// TestUntoldDescriptors: those that a frame does not tell of are closed with it.
func TestUntoldDescriptors(t *testing.T) {
	path := fake(t, func(conn net.Conn) {
		for ref := uint64(1); ; ref++ {
			if _, err := question(conn); err != nil {
				conn.Close()
				return
			}
			m := wire.Message(&wire.Pong{})
			if ref == 1 {
				m = &wire.Welcome{Version: 1}
			}
			conn.(*net.UnixConn).WriteMsgUnix(wire.Append(nil, wire.Header{Ref: ref, Epoch: 1}, m), unix.UnixRights(slices.Repeat([]int{0}, 60)...), nil)
		}
	})
	s := &Session{opt: options(path)}
	s.ctx, s.end = context.WithCancel(t.Context())
	l, err := s.hello(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	open := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	before := open()
	for range 8 {
		if _, err := exchange(t.Context(), l, &wire.Ping{}, wire.KindPong); err != nil {
			t.Fatal(err)
		}
	}
	if n := open(); n > before {
		t.Errorf("%d descriptors are open, and %d were", n, before)
	}
}

// TestHalfDialled: a session that was registered and could not be opened is left, so that its arenas do not wait for this process's end; one that was joined is left when the
// caller says so.
func TestHalfDialled(t *testing.T) {
	for what, join := range map[string]*Credentials{"registered": nil, "joined": {Epoch: 1, Session: 1, Token: [16]byte{7}}} {
		t.Run(what, func(t *testing.T) { halfDialled(t, join) })
	}
}

// wasLeft asks that the session with the token 7 has been left by now.
func wasLeft(t *testing.T, left <-chan wire.Leave) {
	t.Helper()
	select {
	case m := <-left:
		if m.Token != [16]byte{7} {
			t.Errorf("%+v", m)
		}
	default:
		t.Error("it was not left")
	}
}

func halfDialled(t *testing.T, join *Credentials) {
	left := make(chan wire.Leave, 1)
	n := 0
	path := fake(t, func(conn net.Conn) {
		defer func() { go func() { io.Copy(io.Discard, conn); conn.Close() }() }()
		if n++; n == 2 {
			conn.(*net.UnixConn).CloseWrite()
			return
		}
		question(conn)
		conn.Write(wire.Append(nil, wire.Header{Ref: 1, Epoch: 1}, &wire.Welcome{Version: 1}))
		head := make([]byte, wire.HeaderSize)
		io.ReadFull(conn, head)
		h, _ := wire.ParseHeader(head)
		payload := make([]byte, h.Length)
		io.ReadFull(conn, payload)
		if n == 1 {
			answer := wire.Message(&wire.Registered{Token: [16]byte{7}})
			if h.Kind == wire.KindAttach {
				answer = &wire.Attached{}
			}
			conn.Write(wire.Append(nil, wire.Header{Ref: 2, Epoch: 1, Session: 1}, answer))
			return
		}
		if m, _ := wire.Decode(h.Kind, payload); h.Kind == wire.KindLeave {
			left <- *m.(*wire.Leave)
		}
		conn.Write(wire.Append(nil, wire.Header{Ref: 2, Epoch: 1}, &wire.Bye{}))
	})
	o := options(path)
	o.Join = join
	_, err := Dial(context.Background(), o)
	if !errors.Is(err, ErrLost) {
		t.Errorf("%v", err)
	}
	if half, ok := errors.AsType[*Unfinished](err); ok != (join != nil) {
		t.Fatalf("%T %v", err, err)
	} else if ok {
		if len(left) > 0 {
			t.Error("it was left, and other parts of it may be in use")
		}
		half.Close()
	}
	wasLeft(t, left)
}

// TestUnwantedRegistration: a session that nobody wanted any more when the Manager said that it was registered is left: nobody else has its token.
func TestUnwantedRegistration(t *testing.T) {
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	left := make(chan wire.Leave, 1)
	n := 0
	path := fake(t, func(conn net.Conn) {
		defer func() { go func() { io.Copy(io.Discard, conn); conn.Close() }() }()
		question(conn)
		conn.Write(wire.Append(nil, wire.Header{Ref: 1, Epoch: 1}, &wire.Welcome{Version: 1}))
		if n++; n == 1 {
			question(conn)
			giveUp()
			io.Copy(io.Discard, conn) // until it says that it hangs up, which the Manager sees too late
			conn.Write(wire.Append(nil, wire.Header{Ref: 2, Epoch: 1, Session: 1}, &wire.Registered{Token: [16]byte{7}}))
			return
		}
		head := make([]byte, wire.HeaderSize)
		io.ReadFull(conn, head)
		h, _ := wire.ParseHeader(head)
		payload := make([]byte, h.Length)
		io.ReadFull(conn, payload)
		if m, _ := wire.Decode(h.Kind, payload); h.Kind == wire.KindLeave {
			left <- *m.(*wire.Leave)
		}
		conn.Write(wire.Append(nil, wire.Header{Ref: 2, Epoch: 1}, &wire.Bye{}))
	})
	if _, err := Dial(ctx, options(path)); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	wasLeft(t, left)
}

func TestNobodyThere(t *testing.T) {
	if _, err := Dial(context.Background(), options(filepath.Join(t.TempDir(), "none"))); !errors.Is(err, ErrLost) {
		t.Errorf("%v", err)
	}
}

// TestFalseAcknowledgements: a Manager that is stuck, or that answers a publish with what cannot be, holds nobody longer than he wants.
func TestFalseAcknowledgements(t *testing.T) {
	head := wire.Header{Epoch: 1, Session: 1}
	at := func(ref uint64, m wire.Message) []byte {
		h := head
		h.Ref = ref
		return wire.Append(nil, h, m)
	}
	for name, c := range map[string]struct {
		answer []byte
		want   error
		lost   bool
	}{
		"stuck":             {nil, context.DeadlineExceeded, false},
		"too few slots":     {at(3, &wire.Granted{}), ErrProtocol, true},
		"not its slot":      {append(at(3, &wire.Granted{Slots: make([]wire.GrantedSlot, 1)}), at(3, &wire.Published{})...), ErrProtocol, false},
		"another answer":    {at(3, &wire.Pong{}), ErrProtocol, true},
		"malformed":         {append(at(3, &wire.Granted{}), make([]byte, 40)...)[:wire.HeaderSize+10], ErrLost, true},
		"the end":           {at(0, &wire.Closing{Class: wire.Overdue}), ErrLost, true},
		"granted and stuck": {at(3, &wire.Granted{Slots: []wire.GrantedSlot{{Disposition: 1}}}), context.DeadlineExceeded, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := 0
			path := fake(t, func(conn net.Conn) {
				question(conn)
				conn.Write(wire.Append(nil, wire.Header{Ref: 1, Epoch: 1}, &wire.Welcome{Version: 1}))
				question(conn)
				if n++; n == 1 {
					conn.Write(at(2, &wire.Registered{}))
				} else {
					conn.Write(at(2, &wire.Attached{}))
				}
				publishes := n == 2
				go func() {
					defer conn.Close()
					if publishes {
						question(conn)
						conn.Write(c.answer)
						if name == "malformed" {
							return
						}
					}
					io.Copy(io.Discard, conn)
				}()
			})
			s, err := Dial(context.Background(), options(path))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			if name != "stuck" && name != "granted and stuck" {
				ctx = context.Background()
			}
			_, err = s.Publish(ctx, &Publish{Blocks: []wire.Block{{}}}, func(int, []byte) error { t.Error("a slot that is not there"); return nil })
			if !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
			if c.lost {
				<-s.Done()
			}
			s.Close()
		})
	}
}

// TestFalsePlans: a plan with other pages than were leased is no restore of them, whatever the Manager says then.
func TestFalsePlans(t *testing.T) {
	page := make([]core.PlanSlot, 1)
	for name, plan := range map[string]*wire.Plan{
		"none":                    {},
		"none, and they are over": {First: 2, Total: 2},
		"some are left out":       {First: 1, Total: 2, Slots: page},
		"fewer than were leased":  {Total: 1, Slots: page},
		"more than were leased":   {Total: 3, Slots: page},
		"more than it has in all": {Total: 2, Slots: make([]core.PlanSlot, 3)},
		"none of those to come":   {Total: 2},
	} {
		t.Run(name, func(t *testing.T) {
			n := 0
			path := fake(t, func(conn net.Conn) {
				n++
				admit(conn, n == 1)
				go func() {
					defer conn.Close()
					for {
						switch h, err := question(conn); {
						case err != nil:
							return
						case h.Kind == wire.KindStart:
							conn.Write(wire.Append(wire.Append(nil, h, plan), h, &wire.Restored{OK: true}))
						case h.Kind == wire.KindMapArenas:
							conn.Write(wire.Append(nil, h, &wire.Refused{Of: h.Kind, Class: wire.Invalid}))
						case h.Kind == wire.KindGoodbye:
							conn.Write(wire.Append(nil, h, &wire.Bye{}))
						}
					}
				}()
			})
			s, err := Dial(context.Background(), options(path))
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if err := s.Restore(t.Context(), &Lease{Hits: []uint32{2}}, 0, func(int, []byte) error { t.Error("a page that is not there"); return nil }); !errors.Is(err, ErrProtocol) {
				t.Errorf("%v, want %v", err, ErrProtocol)
			}
		})
	}
}

// admit greets a client, and registers it on its first connection and attaches it on others.
func admit(conn net.Conn, first bool) {
	question(conn)
	conn.Write(wire.Append(nil, wire.Header{Ref: 1, Epoch: 1}, &wire.Welcome{Version: 1}))
	question(conn)
	head := wire.Header{Ref: 2, Epoch: 1, Session: 1}
	if first {
		conn.Write(wire.Append(nil, head, &wire.Registered{}))
	} else {
		conn.Write(wire.Append(nil, head, &wire.Attached{}))
	}
}

// TestCloseDoesNotWaitForAManagerThatReadsNothing: questions fill the socket, somebody is stuck in writing the next, and Close ends that.
func TestCloseDoesNotWaitForAManagerThatReadsNothing(t *testing.T) {
	n := 0
	path := fake(t, func(conn net.Conn) {
		n++
		admit(conn, n == 1)
		t.Cleanup(func() { conn.Close() })
	})
	s, err := Dial(context.Background(), options(path))
	if err != nil {
		t.Fatal(err)
	}
	asking := make(chan error)
	go func() {
		q := &wire.Query{Consumers: 1, Wants: []core.Want{{Hashes: make([]core.Hash, 8192)}}} // 256 KiB: more than a socket holds
		for {
			if _, err := s.Ask(q); err != nil {
				asking <- err
				return
			}
		}
	}()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-asking; !errors.Is(err, ErrLost) {
		t.Errorf("%v", err)
	}
}

// TestPieces: a run is cut into pieces that follow each other, small ones first, none of them too long or too small; what is no run of one
// group is not cut.
func TestPieces(t *testing.T) {
	run := func(n int) *Publish {
		p := &Publish{}
		for i := range n {
			b := wire.Block{Hash: core.Hash{byte(i), byte(i >> 8), 1}}
			if i > 0 {
				b.Parent = p.Blocks[i-1].Hash
			}
			p.Blocks = append(p.Blocks, b)
		}
		return p
	}
	for _, page := range []uint32{0, 4096, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 64 << 20} {
		s := &Session{parts: [][]uint32{{page}, {page}}}
		for _, n := range []int{0, 1, 2, 3, 31, 64, 65, 66, 100, 511, 513, 1700, 4096, 4097} {
			at, before := 0, 0
			all := s.piecesOf(run(n))
			for i, a := range all {
				size := a.to - a.from
				last := i+1 == len(all)
				if a.from != at || size > 2*pieceBlocks || size*int(page) > max(2*pieceBytes, 2*int(page)) || !last && size < before || i == 0 && size > 2*firstBlocks {
					t.Fatalf("%d pages of %d bytes: piece %d is %d to %d", n, page, i, a.from, a.to)
				}
				at, before = a.to, size
			}
			if at != n {
				t.Fatalf("%d pages of %d bytes: only %d", n, page, at)
			}
		}
	}
	s := &Session{parts: [][]uint32{{4096}, {4096}}}
	for what, change := range map[string]func(b *wire.Block){
		"another parent": func(b *wire.Block) { b.Parent = core.Hash{77} }, "another group": func(b *wire.Block) { b.Group = 1 },
	} {
		p := run(1000)
		if change(&p.Blocks[700]); len(s.piecesOf(p)) != 1 {
			t.Errorf("%s: it was cut", what)
		}
	}
}

// TestFalseEnd: a Manager that ends the first of many pieces with what is no end fails the publish, which asks for nothing more of it than that; and it
// does not wait for that piece again.
func TestFalseEnd(t *testing.T) {
	n := 0
	path := fake(t, func(conn net.Conn) {
		n++
		admit(conn, n == 1)
		publishes := n == 2
		go func() {
			defer conn.Close()
			if publishes {
				grantPresent(conn)
			}
			io.Copy(io.Discard, conn)
		}()
	})
	s, err := Dial(context.Background(), options(path))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p := &Publish{}
	for i := range 4000 {
		b := wire.Block{Hash: core.Hash{byte(i), byte(i >> 8), 1}}
		if i > 0 {
			b.Parent = p.Blocks[i-1].Hash
		}
		p.Blocks = append(p.Blocks, b)
	}
	_, err = s.PublishPages(context.Background(), p, func(int) ([]byte, error) { return nil, errors.New("a page that is there") })
	if ClassOf(err) != wire.Invalid {
		t.Errorf("%v", err)
	}
}

// grantPresent answers each Publish with blocks that are all there, and its end; but the first with a refusal for its end.
func grantPresent(conn net.Conn) {
	class := wire.Invalid
	for head := make([]byte, wire.HeaderSize); ; {
		if _, err := io.ReadFull(conn, head); err != nil {
			return
		}
		h, _ := wire.ParseHeader(head)
		payload := make([]byte, h.Length)
		io.ReadFull(conn, payload)
		m, _ := wire.Decode(h.Kind, payload)
		p, ok := m.(*wire.Publish)
		if !ok {
			return
		}
		g := &wire.Granted{Op: p.Op, Slots: make([]wire.GrantedSlot, len(p.Blocks))}
		for i := range g.Slots {
			g.Slots[i].Disposition = core.Present
		}
		to := wire.Header{Ref: h.Ref, Epoch: 1, Session: 1}
		out := wire.Append(nil, to, g)
		if class != 0 {
			out = wire.Append(out, to, &wire.Refused{Of: h.Kind, Class: class})
		} else {
			out = wire.Append(out, to, &wire.Published{Op: p.Op})
		}
		class = 0
		conn.Write(out)
	}
}

// TestHeld: what is held goes before what is said next and in the same write; but alone before descriptors.
func TestHeld(t *testing.T) {
	reads := make(chan []byte, 3)
	path := fake(t, func(conn net.Conn) {
		defer conn.Close()
		for b := make([]byte, 4096); ; {
			n, err := conn.Read(b)
			if err != nil {
				return
			}
			reads <- append([]byte(nil), b[:n]...)
		}
	})
	l, err := dial(context.Background(), path, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	refs := func(b []byte) (out []uint64) {
		for ; len(b) > 0; b = b[wire.HeaderSize:] {
			h, _ := wire.ParseHeader(b)
			out = append(out, h.Ref)
		}
		return out
	}
	l.hold(11, &wire.Ping{})
	l.hold(12, &wire.Ping{})
	l.say(13, &wire.Ping{})
	if got := refs(<-reads); !slices.Equal(got, []uint64{11, 12, 13}) {
		t.Errorf("%v", got)
	}
	l.hold(14, &wire.Ping{})
	var alone []byte
	c, err := l.askBy(&wire.Ping{}, nil, func(uc *net.UnixConn, frame []byte) error {
		alone = <-reads
		return plain(uc, frame)
	}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer l.forget(c)
	if got := refs(alone); !slices.Equal(got, []uint64{14}) {
		t.Errorf("%v", got)
	}
	if got := refs(<-reads); !slices.Equal(got, []uint64{c.ref}) {
		t.Errorf("%v", got)
	}
}
