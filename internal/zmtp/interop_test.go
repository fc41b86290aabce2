package zmtp

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// pyzmq is where scripts/pyzmq.sh puts a Python that has libzmq.
const pyzmq = "../../.cache/pyzmq/bin/python"

// patient leaves libzmq more time to answer than there is by default, on machines that do much else.
var patient = Options{Topics: []string{"kv"}, Timeout: 10 * time.Second}

// libzmq is a process with one socket of libzmq.
type libzmq struct {
	t        *testing.T
	cmd      *exec.Cmd
	out      *bufio.Reader
	endpoint string
}

func startLibzmq(t *testing.T, role, endpoint string) *libzmq {
	t.Helper()
	if _, err := os.Stat(pyzmq); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("no libzmq to test against: run scripts/pyzmq.sh")
		}
		t.Skip("no libzmq to test against; scripts/pyzmq.sh fetches it")
	}
	cmd := exec.Command(pyzmq, "testdata/peer.py", role, endpoint)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	z := &libzmq{t: t, cmd: cmd, out: bufio.NewReader(out)}
	z.endpoint, _, _ = strings.Cut(z.line(), " ")
	return z
}

func (z *libzmq) line() string {
	z.t.Helper()
	s, err := z.out.ReadString('\n')
	if err != nil {
		z.t.Fatalf("libzmq printed %q, %v", s, err)
	}
	return strings.TrimSpace(s)
}

// wantStream reads what peer.py publishes: 1000 messages, the longest of about 1 MB.
func wantStream(t *testing.T, c *Conn) {
	t.Helper()
	var m Message
	for seq := range uint64(1000) {
		if err := c.Receive(&m); err != nil {
			t.Errorf("message %d: %v", seq, err)
			return
		}
		if string(m.Frames[0]) != "kv@a" || binary.BigEndian.Uint64(m.Frames[1]) != seq || len(m.Frames[2]) != int(seq*seq) {
			t.Errorf("message %d: %.20q, %d bytes", seq, texts(&m), m.Size())
			return
		}
	}
	if err := c.Receive(&m); err != nil || string(m.Frames[1]) != "\xff\xff\xff\xff\xff\xff\xff\xff" {
		t.Errorf("%q, %v", texts(&m), err)
	}
}

func TestLibzmqPublisher(t *testing.T) {
	z := startLibzmq(t, "pub-bind", "tcp://127.0.0.1:*")
	c, err := Dial(t.Context(), Sub, z.endpoint, Options{Topics: []string{"kv"}, Heartbeat: 20 * time.Millisecond, Timeout: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	wantStream(t, c)

	// It answers each PING while it has nothing to say. The deadline may come between one and its answer: that is waited for, for less than it
	// takes to the next.
	var m Message
	end := time.Now().Add(20 * time.Second)
	for wait := 300 * time.Millisecond; wait > 0; {
		c.SetDeadline(time.Now().Add(wait))
		if err := c.Receive(&m); err != os.ErrDeadlineExceeded || c.pinged && time.Now().After(end) {
			t.Fatalf("%v, waiting for an answer: %t", err, c.pinged)
		}
		wait = 0
		if c.pinged {
			wait = 5 * time.Millisecond
		}
	}
	// A process that stands still is a peer that is silent, and is not waited for.
	if err := z.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Time{})
	began := time.Now()
	if err := c.Receive(&m); !errors.Is(err, ErrSilent) || time.Since(began) > 10*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

func TestLibzmqPublisherDies(t *testing.T) {
	z := startLibzmq(t, "pub-bind", "tcp://127.0.0.1:*")
	c, err := Dial(t.Context(), Sub, z.endpoint, patient)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	wantStream(t, c)
	_ = z.cmd.Process.Kill()
	err = c.Receive(new(Message))
	if broken, ok := errors.AsType[*BrokenError](err); !ok || broken.Err != io.EOF && !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
}

func TestLibzmqPublisherConnects(t *testing.T) {
	for _, endpoint := range []string{"tcp://127.0.0.1:*", "ipc://" + t.TempDir() + "/s"} {
		l, err := Listen(Sub, endpoint, patient)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		served, whole := make(chan error, 1), make(chan struct{})
		go func() {
			served <- l.Serve(ctx, func(c *Conn) {
				wantStream(t, c)
				whole <- struct{}{}
				<-ctx.Done() // a publisher whose connection ends here dials again
			})
		}()
		for range 2 {
			startLibzmq(t, "pub-connect", l.Endpoint())
		}
		<-whole
		<-whole
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}

func TestLibzmqSubscriber(t *testing.T) {
	for _, role := range []string{"sub-bind", "sub-connect"} {
		p, err := NewPublisher(PublisherOptions{HighWater: 10_000})
		if err != nil {
			t.Fatal(err)
		}
		endpoint, err := p.Listen("tcp://127.0.0.1:*")
		if err != nil {
			t.Fatal(err)
		}
		var z *libzmq
		if role == "sub-bind" {
			z = startLibzmq(t, role, "tcp://127.0.0.1:*")
			err = p.Connect(z.endpoint)
		} else {
			z = startLibzmq(t, role, endpoint)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := p.WaitSubscribed(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		size := 0
		for seq := range 1000 {
			p.Publish([]byte("other"), nil, nil)
			p.Publish([]byte("kv@a"), binary.BigEndian.AppendUint64(nil, uint64(seq)), make([]byte, seq*10))
			size += seq * 10
		}
		p.Publish([]byte("kv@a"), []byte("\xff\xff\xff\xff\xff\xff\xff\xff"), nil)
		if got := z.line(); got != "1000 4995000" {
			t.Errorf("%s: libzmq received %s (messages, bytes)", role, got)
		}
		if s := p.Stats(); s.Dropped != 0 || s.Queued != 1001 {
			t.Errorf("%s: %+v", role, s)
		}
		_ = p.Close()
	}
}

func TestLibzmqRouter(t *testing.T) {
	z := startLibzmq(t, "router-bind", "tcp://127.0.0.1:*")
	if _, err := Dial(t.Context(), Sub, z.endpoint, Options{}); err == nil || !strings.Contains(err.Error(), "does not talk to") {
		t.Errorf("a SUB with a ROUTER: %v", err)
	}
	c, err := Dial(t.Context(), Dealer, z.endpoint, Options{Identity: "gw-1", Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 2 { // questions over one connection
		if err := c.Send(nil, binary.BigEndian.AppendUint64(nil, 10)); err != nil {
			t.Fatal(err)
		}
		var m Message
		for want := uint64(10); ; want++ {
			if err := c.Receive(&m); err != nil || len(m.Frames) != 4 || len(m.Frames[0]) != 0 {
				t.Fatalf("%q, %v", texts(&m), err)
			}
			seq := binary.BigEndian.Uint64(m.Frames[2])
			if int64(seq) == -1 {
				if want != 1000 {
					t.Errorf("the end comes before %d", want)
				}
				break
			}
			if seq != want || len(m.Frames[3]) != 300 {
				t.Fatalf("%d, want %d", seq, want)
			}
		}
	}
}

func TestLibzmqRequesters(t *testing.T) {
	l, err := Listen(Router, "tcp://127.0.0.1:*", Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- l.Serve(ctx, func(c *Conn) {
			var m Message
			for c.Receive(&m) == nil && len(m.Frames) == 2 {
				if c.Peer().Type == "DEALER" {
					for seq := binary.BigEndian.Uint64(m.Frames[1]); seq < 1000; seq++ {
						_ = c.Send(nil, []byte("kv@a"), binary.BigEndian.AppendUint64(nil, seq), make([]byte, 300))
					}
				}
				_ = c.Send(nil, nil, []byte("\xff\xff\xff\xff\xff\xff\xff\xff"), nil)
			}
		})
	}()
	for role, want := range map[string]string{"dealer-connect": "993 4", "req-connect": "0 3"} {
		if got := startLibzmq(t, role, l.Endpoint()).line(); got != want {
			t.Errorf("%s: %s (answers, parts of the last), want %s", role, got, want)
		}
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
