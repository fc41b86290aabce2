package zmtp

import (
	"errors"
	"fmt"

	"github.com/perigee-llm/perigee/internal/zmtp/wire"
)

// Why a connection broke, besides what the network says and io.EOF for a peer that hung up. Test with errors.Is.
var (
	// ErrClosed: Close was called here.
	ErrClosed = errors.New("zmtp: closed")
	// ErrSilent: the peer did not answer a PING in time. Its machine or the network is gone, or its process stands still.
	ErrSilent = errors.New("zmtp: the peer does not answer")
	// ErrStalled: a message began and did not end in time, or the peer took nothing of what was sent to it.
	ErrStalled = errors.New("zmtp: the peer stalled")
	// ErrAbuse: the peer goes beyond what is skipped for it: a message, a command or subscriptions without end.
	ErrAbuse = errors.New("zmtp: the peer sends more than is skipped for it")
	// ErrTooManyPeers: a listener has MaxPeers connections.
	ErrTooManyPeers = errors.New("zmtp: too many peers")
	// ErrNotSending: Send was called on a Sub.
	ErrNotSending = errors.New("zmtp: a SUB does not send")
)

// DialError: there is no connection, because nothing listens there, the network says so or the context ended. Trying again later
// may help.
type DialError struct {
	Endpoint string
	Err      error
}

func (e *DialError) Error() string { return fmt.Sprintf("zmtp: dial %s: %v", e.Endpoint, e.Err) }
func (e *DialError) Unwrap() error { return e.Err }

// HandshakeError: something answers, but the handshake failed. Permanent tells what listens there apart from what it was doing.
type HandshakeError struct {
	Addr string
	Err  error // a wire.Error, *IncompatibleError, *RejectedError, ErrStalled, ErrAbuse, io.EOF, the context's cause, or the network's
}

func (e *HandshakeError) Error() string {
	return fmt.Sprintf("zmtp: handshake with %s: %v", e.Addr, e.Err)
}
func (e *HandshakeError) Unwrap() error { return e.Err }

// Permanent tells whether what answers is the wrong thing, by its protocol, its type or its own word: dialling it again will hardly
// help, and somebody should be told. Otherwise it was too slow, or hung up.
func (e *HandshakeError) Permanent() bool {
	switch e.Err.(type) {
	case wire.Error, *IncompatibleError, *RejectedError:
		return true
	}
	return false
}

// BrokenError: the connection is over, and nothing more will come of it. What was sent may or may not have arrived.
type BrokenError struct {
	Addr string
	Err  error // ErrClosed, ErrSilent, ErrStalled, ErrAbuse, io.EOF, a wire.Error, *RejectedError, or the network's
}

func (e *BrokenError) Error() string {
	return fmt.Sprintf("zmtp: connection with %s: %v", e.Addr, e.Err)
}
func (e *BrokenError) Unwrap() error { return e.Err }

// OversizeError: a message beyond the bounds was skipped. The connection goes on, and the next Receive has the next message.
// The Message holds the frames before the one that did not fit.
type OversizeError struct {
	Size   uint64 // of all frames, in bytes
	Frames int    // how many there were
}

func (e *OversizeError) Error() string {
	return fmt.Sprintf("zmtp: skipped a message of %d bytes in %d frames", e.Size, e.Frames)
}

// IncompatibleError: the peer's socket type does not fit.
type IncompatibleError struct{ Own, Peer Type }

func (e *IncompatibleError) Error() string {
	return fmt.Sprintf("zmtp: a %s does not talk to a %.20q", e.Own, string(e.Peer))
}

// RejectedError: the peer sent ERROR, with its reason.
type RejectedError struct{ Reason string }

func (e *RejectedError) Error() string {
	return fmt.Sprintf("zmtp: the peer refuses: %.100q", e.Reason)
}
