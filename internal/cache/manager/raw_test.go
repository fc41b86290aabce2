//go:build linux

package manager

import (
	"bufio"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perigee-llm/perigee/internal/cache/channel/client"
	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
)

// rawConn is a connection on which a test says what it likes.
type rawConn struct {
	m     *tester
	uc    *net.UnixConn
	in    *bufio.Reader
	head  wire.Header
	files []*os.File
}

// connect says hello.
func (m *tester) connect() *rawConn {
	m.t.Helper()
	c, err := net.Dial("unix", m.opt.Socket)
	if err != nil {
		m.t.Fatal(err)
	}
	r := &rawConn{m: m, uc: c.(*net.UnixConn)}
	r.in = bufio.NewReader(r)
	m.t.Cleanup(r.close)
	r.say(&wire.Hello{MinVersion: 1, MaxVersion: 1, Client: "raw"})
	if w, _ := r.hear(); w.Kind() != wire.KindWelcome {
		m.t.Fatalf("%+v", w)
	}
	return r
}

// raw registers an instance, or joins one as a query connection.
func raw(m *tester, change ...func(*client.Options)) *rawConn {
	m.t.Helper()
	o := client.Options{Instance: "raw", Ranks: namespaces(1, pageBytes), PoolBytes: 16384}
	for _, f := range change {
		f(&o)
	}
	c := m.connect()
	if o.Join != nil {
		c.attach(*o.Join, wire.RoleQuery)
		return c
	}
	b, err := o.Ranks[0].Encode()
	if err != nil {
		m.t.Fatal(err)
	}
	c.say(&wire.Register{Instance: o.Instance, Ranks: [][]byte{b}, PoolBytes: o.PoolBytes})
	if a, _ := c.hear(); a.Kind() != wire.KindRegistered {
		m.t.Fatalf("%+v", a)
	}
	return c
}

func (c *rawConn) attach(cred client.Credentials, role wire.Role) wire.Message {
	c.m.t.Helper()
	c.head.Session = cred.Session
	c.say(&wire.Attach{Token: cred.Token, Role: role})
	a, _ := c.hear()
	if a.Kind() != wire.KindAttached {
		c.m.t.Fatalf("%+v", a)
	}
	return a
}

func (c *rawConn) say(m wire.Message) {
	c.m.t.Helper()
	c.head.Ref++
	if _, err := c.uc.Write(wire.Append(nil, c.head, m)); err != nil {
		c.m.t.Fatal(err)
	}
}

// Read implements io.Reader, and keeps descriptors.
func (c *rawConn) Read(b []byte) (int, error) {
	oob := make([]byte, 512)
	n, oobn, _, _, err := c.uc.ReadMsgUnix(b, oob)
	if oobn > 0 {
		ms, _ := unix.ParseSocketControlMessage(oob[:oobn])
		for i := range ms {
			fds, _ := unix.ParseUnixRights(&ms[i])
			for _, fd := range fds {
				c.files = append(c.files, os.NewFile(uintptr(fd), "arena"))
			}
		}
	}
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// hear returns the next message, and the descriptors that came with it. nil is the connection's end.
func (c *rawConn) hear() (wire.Message, []*os.File) {
	c.m.t.Helper()
	c.uc.SetReadDeadline(time.Now().Add(patience))
	head := make([]byte, wire.HeaderSize)
	if _, err := io.ReadFull(c.in, head); err != nil {
		return nil, nil
	}
	h, err := wire.ParseHeader(head)
	if err != nil {
		c.m.t.Fatal(err)
	}
	payload := make([]byte, h.Length)
	if _, err := io.ReadFull(c.in, payload); err != nil {
		return nil, nil
	}
	msg, err := wire.Decode(h.Kind, payload)
	if err != nil {
		c.m.t.Fatal(err)
	}
	c.head.Epoch = h.Epoch
	if h.Session != 0 {
		c.head.Session = h.Session
	}
	files := c.files[:h.Descriptors:h.Descriptors]
	c.files = c.files[h.Descriptors:]
	c.m.t.Cleanup(func() {
		for _, f := range files {
			f.Close()
		}
	})
	return msg, files
}

// refused says something and wants it to be refused.
func (c *rawConn) refused(m wire.Message) *wire.Refused {
	c.m.t.Helper()
	c.say(m)
	a, _ := c.hear()
	r, ok := a.(*wire.Refused)
	if !ok {
		c.m.t.Fatalf("%T was answered with %T %+v", m, a, a)
	}
	return r
}

func (c *rawConn) close() {
	c.uc.Close()
	for _, f := range c.files {
		f.Close()
	}
	c.files = nil
}

// goodbye says that nothing is mapped any more: this process goes on, so that its end proves nothing.
func (c *rawConn) goodbye() {
	c.m.t.Helper()
	c.say(&wire.Goodbye{})
	if a, _ := c.hear(); a.Kind() != wire.KindBye {
		c.m.t.Fatalf("%+v", a)
	}
	c.close()
}
