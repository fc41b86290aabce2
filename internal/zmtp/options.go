package zmtp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// Type is what a socket is to its peer. Only peers that fit each other talk.
type Type string

// The types that there are here. A Sub talks to publishers, a Dealer to routers, a Router to dealers and requesters.
const (
	Sub    Type = "SUB"
	Pub    Type = "PUB" // by Publisher only
	Dealer Type = "DEALER"
	Router Type = "ROUTER"
)

// fits are the types of peers that a type may talk to, by the protocol.
var fits = map[Type][]string{
	Sub:    {"PUB", "XPUB"},
	Pub:    {"SUB", "XSUB"},
	Dealer: {"ROUTER", "DEALER", "REP"},
	Router: {"DEALER", "REQ", "ROUTER"},
}

// Options bound what a peer may cost and say how long it may be silent. The zero value works; a zero field means its default, a
// negative duration turns its check off. They are read once and may be used again.
type Options struct {
	// Topics are the prefixes that a Sub subscribes to. Nil means everything, as does an empty string among them.
	Topics []string

	// Identity is the name under which a Router may know this peer: at most 255 bytes, the first of them not 0. Empty: none.
	Identity string

	// MaxMessage bounds a message's bytes and MaxFrame one frame's, MaxFrames their number. A message beyond them is skipped and
	// reported as *OversizeError. Defaults: 16 MiB, MaxMessage, 16. A KV event of a prompt of 1 M tokens takes about 5 MB.
	MaxMessage, MaxFrame, MaxFrames int

	// MaxSkip is how many bytes of a message beyond those bounds are read and thrown away before the connection is given up:
	// somebody who claims more is no publisher that had a large message. Default 1 GiB.
	MaxSkip int64

	// Handshake bounds the time from the connection to the end of the handshake. Default 5 s: an engine that is busy starting
	// takes a second or two, and nothing waits for it meanwhile.
	Handshake time.Duration

	// A connection on which nothing came for Heartbeat is sent a PING, and is broken with ErrSilent if still nothing came after
	// Timeout. Only a Sub and a Dealer ask, only while a Receive waits, and only peers that speak ZMTP 3.1 are asked (libzmq
	// 4.3.4 and 4.3.5 do); of others TCP is asked, which takes about 2 s. Defaults: 500 ms and 1 s, so that a peer that is gone is noticed within
	// 1.5 s, while a process that stands still for less than that is not taken for one.
	Heartbeat, Timeout time.Duration

	// MessageTime bounds the time that one message may take from its first byte to its last. Default 30 s: 16 MiB at 5 Mbit/s.
	MessageTime time.Duration

	// WriteTime is how long a peer may take nothing of what is sent to it. Then the connection is broken with ErrStalled.
	// Default 30 s, for a Publisher's peers too: those whose queue is full lose messages long before.
	WriteTime time.Duration

	// ReadBuffer is the size of the buffer that each connection keeps, in bytes, at least 16 KiB. Default 16 KiB.
	ReadBuffer int

	// MaxPeers bounds the connections of a listener, handshakes included. One more is closed at once. Default 1024.
	MaxPeers int

	// Refused is told of peers that a listener or publisher let go because their handshake failed or there were MaxPeers, with the
	// peer's address. Calls may overlap. Nil: nobody is told.
	Refused func(addr string, err error)

	// DialContext makes the connections, for tests. Nil: a net.Dialer.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
}

const minReadBuffer = 16 << 10 // commands up to maxCommand are read inside of it

// withDefaults checks all fields and fills in defaults.
func (o Options) withDefaults() (Options, error) {
	var errs []error
	size := func(name string, v *int, def int) {
		if *v < 0 {
			errs = append(errs, fmt.Errorf("zmtp: %s is negative: %d", name, *v))
		}
		*v = cmp.Or(*v, def)
	}
	size("MaxMessage", &o.MaxMessage, 16<<20)
	size("MaxFrame", &o.MaxFrame, o.MaxMessage)
	size("MaxFrames", &o.MaxFrames, 16)
	size("MaxPeers", &o.MaxPeers, 1024)
	size("ReadBuffer", &o.ReadBuffer, minReadBuffer)
	if o.MaxSkip < 0 {
		errs = append(errs, fmt.Errorf("zmtp: MaxSkip is negative: %d", o.MaxSkip))
	}
	if o.ReadBuffer < minReadBuffer {
		errs = append(errs, fmt.Errorf("zmtp: ReadBuffer is %d bytes, at least %d", o.ReadBuffer, minReadBuffer))
	}
	if len(o.Identity) > 255 || len(o.Identity) > 0 && o.Identity[0] == 0 {
		errs = append(errs, errors.New("zmtp: an identity has at most 255 bytes and does not begin with a zero"))
	}
	o.MaxSkip = cmp.Or(o.MaxSkip, 1<<30)
	o.Handshake = cmp.Or(o.Handshake, 5*time.Second)
	o.Heartbeat = cmp.Or(o.Heartbeat, 500*time.Millisecond)
	o.Timeout = cmp.Or(o.Timeout, time.Second)
	o.MessageTime = cmp.Or(o.MessageTime, 30*time.Second)
	o.WriteTime = cmp.Or(o.WriteTime, 30*time.Second)
	if o.Topics == nil {
		o.Topics = []string{""}
	}
	return o, errors.Join(errs...)
}
