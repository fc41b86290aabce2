package wire

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/perigee-llm/perigee/internal/script"
)

// TestLibzmq reads what a real libzmq sent.
func TestLibzmq(t *testing.T) {
	script.Run(t, "testdata/libzmq.txt", func(*testing.T) script.Interpreter {
		var stream []byte
		return func(c *script.Command) bool {
			switch c.Name {
			case "sent":
				b, err := hex.DecodeString(c.Word())
				if err != nil {
					c.Fatalf("%v", err)
				}
				stream = append(stream, b...)
			case "end":
				for _, line := range describe(stream) {
					c.Print(line)
				}
				stream = nil
			default:
				return false
			}
			return true
		}
	})
}

// describe reads a whole stream: a greeting, then frames.
func describe(b []byte) (lines []string) {
	say := func(words ...any) { lines = append(lines, fmt.Sprintln(words...)[:len(fmt.Sprintln(words...))-1]) }
	if len(b) < GreetingSize {
		return []string{"no greeting"}
	}
	minor, err := ParseGreeting((*[GreetingSize]byte)(b))
	say("greeting 3."+strconv.Itoa(minor), errText(err))
	for b = b[GreetingSize:]; len(b) > 0; {
		h, n, err := ParseHeader(b)
		if err != nil || n == 0 || uint64(len(b)-n) < h.Size {
			say("broken off", errText(err), len(b))
			break
		}
		body := b[n : n+int(h.Size)]
		b = b[n+int(h.Size):]
		if !h.Command {
			text := strconv.Quote(string(body))
			if len(body) > 40 {
				text = strconv.Itoa(len(body)) + " bytes"
			}
			say("frame", text, map[bool]string{true: "more"}[h.More])
			continue
		}
		name, data, err := ParseCommand(body)
		switch string(name) {
		case Ready:
			p, err := ParseReady(data)
			say(fmt.Sprintf("READY %s %q", p.SocketType, p.Identity), errText(err))
		case Ping:
			context, err := PingContext(data)
			say(fmt.Sprintf("PING %q", context), errText(err))
		default:
			say(fmt.Sprintf("%s %q", name, data), errText(err))
		}
	}
	for i := range lines {
		lines[i] = string(bytes.TrimRight([]byte(lines[i]), " "))
	}
	return lines
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestOwnAsLibzmq holds our own bytes against those of the golden file, where both say the same.
func TestOwnAsLibzmq(t *testing.T) {
	want, _ := hex.DecodeString("ff00000000000000017f03014e554c4c" + string(bytes.Repeat([]byte("0"), 96)) +
		"04190552454144590b536f636b65742d5479706500000003535542040d095355425343524942456b7640040b0643414e43454c6c6f6164")
	got := AppendReady(AppendGreeting(nil), Properties{SocketType: "SUB"})
	got = AppendSubscribe(got, 1, "kv@", false)
	got = AppendSubscribe(got, 1, "load", true)
	if !bytes.Equal(got, want) {
		t.Errorf("3.1: got\n%x, want\n%x", got, want)
	}
	got = AppendSubscribe(AppendSubscribe(nil, 0, "kv@", false), 0, "load", true)
	if want, _ = hex.DecodeString("0004016b76400005006c6f6164"); !bytes.Equal(got, want) {
		t.Errorf("3.0: got %x, want %x", got, want)
	}
}

func TestGreetingFaults(t *testing.T) {
	good := AppendGreeting(nil)
	for _, c := range []struct {
		name string
		at   int
		to   byte
		want error
		pre  bool // already by the prefix
	}{
		{"first byte", 0, 'G', ErrNotZMTP, true},
		{"last of the signature", 9, 0, ErrNotZMTP, true},
		{"version 2", 10, 2, ErrVersion, true},
		{"version 0", 10, 0, ErrVersion, true},
		{"another mechanism", 12, 'P', ErrMechanism, false},
		{"a longer name", 16, 'S', ErrMechanism, false},
		{"padding is anything", 5, 9, nil, false},
		{"version 4 steps down", 10, 4, nil, false},
		{"as-server is the client's to send", 32, 1, nil, false},
	} {
		b := [GreetingSize]byte(good)
		b[c.at] = c.to
		minor, err := ParseGreeting(&b)
		if err != c.want || err == nil && minor != 1 {
			t.Errorf("%s: 3.%d, %v, want %v", c.name, minor, err, c.want)
		}
		if got := CheckPrefix(b[:PrefixSize]); (got != nil) != c.pre {
			t.Errorf("%s: the prefix gives %v", c.name, got)
		}
	}
	b := [GreetingSize]byte(good)
	b[11] = 0
	if minor, err := ParseGreeting(&b); minor != 0 || err != nil {
		t.Errorf("3.0: 3.%d, %v", minor, err)
	}
	for n := range good {
		if err := CheckPrefix(good[:n]); err != nil {
			t.Errorf("the first %d bytes of a good greeting: %v", n, err)
		}
	}
}

func TestHeader(t *testing.T) {
	for _, c := range []struct {
		in   string
		want Header
		n    int
		err  error
	}{
		{"", Header{}, 0, nil},
		{"00", Header{}, 0, nil},
		{"0005", Header{Size: 5}, 2, nil},
		{"01ff", Header{Size: 255, More: true}, 2, nil},
		{"0400", Header{Command: true}, 2, nil},
		{"02000000000000", Header{}, 0, nil},
		{"020000000000000001", Header{Size: 1}, 9, nil},
		{"037fffffffffffffff", Header{Size: 1<<63 - 1, More: true}, 9, nil},
		{"028000000000000000", Header{}, 0, ErrFrame},
		{"0500", Header{}, 0, ErrFrame},
		{"0800", Header{}, 0, ErrFrame},
		{"ff", Header{}, 0, ErrFrame},
	} {
		b, _ := hex.DecodeString(c.in)
		h, n, err := ParseHeader(b)
		if n != c.n || err != c.err || n > 0 && h != c.want {
			t.Errorf("%s: %+v, %d, %v, want %+v, %d, %v", c.in, h, n, err, c.want, c.n, c.err)
		}
	}
}

func TestMessageSize(t *testing.T) {
	for _, sizes := range [][]int{{0}, {1}, {255}, {256}, {0, 8, 70_000}, {255, 256, 257}} {
		var frames [][]byte
		for _, n := range sizes {
			frames = append(frames, make([]byte, n))
		}
		if got, want := len(AppendMessage(nil, frames...)), MessageSize(frames...); got != want {
			t.Errorf("%v: %d bytes, said to be %d", sizes, got, want)
		}
	}
}

func TestReadyFaults(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     Properties
		err      error
	}{
		{"nothing", "", Properties{}, ErrMetadata},
		{"case does not matter", "\x0bsOCKET-tYPE\x00\x00\x00\x03SUB", Properties{SocketType: "SUB"}, nil},
		{"others are skipped", "\x01X\x00\x00\x00\x01y\x0bSocket-Type\x00\x00\x00\x03SUB", Properties{SocketType: "SUB"}, nil},
		{"only others", "\x01X\x00\x00\x00\x01y", Properties{}, ErrMetadata},
		{"no name", "\x00\x00\x00\x00\x00", Properties{}, ErrMetadata},
		{"a length that lies", "\x0bSocket-Type\xff\xff\xff\xffSUB", Properties{}, ErrMetadata},
		{"cut in the length", "\x0bSocket-Type\x00\x00\x00", Properties{}, ErrMetadata},
		{"cut in the name", "\x0bSocket", Properties{}, ErrMetadata},
		{"a long identity", "\x0bSocket-Type\x00\x00\x00\x03SUB\x08Identity\x00\x00\x01\x00" + string(make([]byte, 256)), Properties{}, ErrMetadata},
	} {
		if got, err := ParseReady([]byte(c.in)); got != c.want || err != c.err {
			t.Errorf("%s: %+v, %v, want %+v, %v", c.name, got, err, c.want, c.err)
		}
	}
}

func TestCommands(t *testing.T) {
	if name, data, err := ParseCommand([]byte("\x04PINGxy")); string(name) != "PING" || string(data) != "xy" || err != nil {
		t.Errorf("%q %q %v", name, data, err)
	}
	for _, bad := range []string{"", "\x00", "\x05PING"} {
		if _, _, err := ParseCommand([]byte(bad)); err != ErrCommand {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if got, err := PingContext([]byte("\x00\x00" + string(make([]byte, 20)))); len(got) != MaxPingContext || err != nil {
		t.Errorf("a context of 20 bytes: %d, %v", len(got), err)
	}
	if _, err := PingContext([]byte{0}); err != ErrCommand {
		t.Errorf("a PING of one byte: %v", err)
	}
	for in, want := range map[string]string{"": "", "\x03abc": "abc", "\x02abc": "ab", "\x09abc": "abc"} {
		if got := ParseFailure([]byte(in)); got != want {
			t.Errorf("ERROR %q: %q, want %q", in, got, want)
		}
	}
	body := AppendFailure(nil, string(make([]byte, 300)))
	if h, n, err := ParseHeader(body); err != nil || int(h.Size) != len(body)-n || h.Size != 1+5+1+255 {
		t.Errorf("a long reason: %+v, %v", h, err)
	}
	for _, c := range []struct {
		in         string
		prefix     string
		cancel, ok bool
	}{{"\x01kv", "kv", false, true}, {"\x00", "", true, true}, {"\x02kv", "", false, false}, {"", "", false, false}} {
		prefix, cancel, ok := ParseSubscribe([]byte(c.in))
		if string(prefix) != c.prefix || cancel != c.cancel || ok != c.ok {
			t.Errorf("%q: %q, %t, %t", c.in, prefix, cancel, ok)
		}
	}
}

// FuzzStream reads anything as a stream, and what was read as messages must be written and read as the same.
func FuzzStream(f *testing.F) {
	f.Add(AppendMessage(AppendReady(AppendGreeting(nil), Properties{SocketType: "PUB", Identity: "x"}), []byte("kv"), make([]byte, 300)))
	f.Add(AppendPing(AppendSubscribe(AppendSubscribe(AppendGreeting(nil), 0, "a", true), 1, "b", true)))
	f.Fuzz(func(t *testing.T, b []byte) {
		describe(b)
		var frames [][]byte
		for rest := b; len(rest) > 0; {
			h, n, err := ParseHeader(rest)
			if n > len(rest) || n > MaxHeader || err != nil && n != 0 {
				t.Fatalf("%d bytes of header in %d, %v", n, len(rest), err)
			}
			if err != nil || n == 0 || h.Size > uint64(len(rest)-n) || h.Command {
				break
			}
			frames = append(frames, rest[n:n+int(h.Size)])
			rest = rest[n+int(h.Size):]
		}
		if len(frames) == 0 {
			return
		}
		again := AppendMessage(nil, frames...)
		for i, want := range frames {
			h, n, err := ParseHeader(again)
			if err != nil || h.More != (i < len(frames)-1) || !slices.Equal(again[n:n+int(h.Size)], want) {
				t.Fatalf("frame %d: %+v, %v", i, h, err)
			}
			again = again[n+int(h.Size):]
		}
	})
}

// FuzzReady reads anything as properties, and what is understood must survive being written.
func FuzzReady(f *testing.F) {
	f.Add([]byte("\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x02me"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := ParseReady(data)
		if err != nil {
			return
		}
		b := AppendReady(nil, p)
		_, n, _ := ParseHeader(b)
		_, again, err := ParseCommand(b[n:])
		if err != nil {
			t.Fatal(err)
		}
		if q, err := ParseReady(again); q != p || err != nil {
			t.Fatalf("%+v became %+v, %v", p, q, err)
		}
	})
}
