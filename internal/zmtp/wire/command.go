package wire

import "encoding/binary"

// The names of commands.
const (
	Ready     = "READY"
	Failure   = "ERROR"
	Ping      = "PING"
	Pong      = "PONG"
	Subscribe = "SUBSCRIBE"
	Cancel    = "CANCEL"
)

// MaxPingContext is how much of a PING's context has to be sent back, in bytes.
const MaxPingContext = 16

// ParseCommand splits the body of a command frame. Both parts are views of body. A name that nobody knows is no fault: the protocol
// says to skip such a command.
func ParseCommand(body []byte) (name, data []byte, err error) {
	if len(body) == 0 || body[0] == 0 || len(body) < 1+int(body[0]) {
		return nil, nil, ErrCommand
	}
	n := 1 + int(body[0])
	return body[1:n], body[n:], nil
}

// AppendCommand appends a command frame. The name has 1 to 255 bytes.
func AppendCommand(dst []byte, name string, data []byte) []byte {
	dst = AppendHeader(dst, Header{Size: uint64(1 + len(name) + len(data)), Command: true})
	dst = append(append(dst, byte(len(name))), name...)
	return append(dst, data...)
}

// AppendPing appends a PING without a time to live and without a context: the peer is not asked to hang up when it hears nothing.
func AppendPing(dst []byte) []byte { return AppendCommand(dst, Ping, []byte{0, 0}) }

// PingContext returns what a PONG has to carry, given the data of a PING.
func PingContext(data []byte) ([]byte, error) {
	if len(data) < 2 {
		return nil, ErrCommand
	}
	return data[2:min(len(data), 2+MaxPingContext)], nil
}

// ParseFailure returns the reason that an ERROR command gives: what there is of it, up to the length that it claims.
func ParseFailure(data []byte) string {
	if len(data) == 0 {
		return ""
	}
	return string(data[1:min(len(data), 1+int(data[0]))])
}

// AppendFailure appends an ERROR command, which ends a handshake. At most 255 bytes of the reason are sent.
func AppendFailure(dst []byte, reason string) []byte {
	reason = reason[:min(len(reason), 255)]
	return AppendCommand(dst, Failure, append([]byte{byte(len(reason))}, reason...))
}

// AppendSubscribe appends what a subscriber sends to get messages whose first frame begins with the prefix, and if cancel is set to
// get them no more: a command if the peer speaks minor version 1, else a message.
func AppendSubscribe(dst []byte, minor int, prefix string, cancel bool) []byte {
	if minor >= 1 {
		name := Subscribe
		if cancel {
			name = Cancel
		}
		return AppendCommand(dst, name, []byte(prefix))
	}
	verb := byte(1)
	if cancel {
		verb = 0
	}
	dst = AppendHeader(dst, Header{Size: uint64(1 + len(prefix))})
	return append(append(dst, verb), prefix...)
}

// ParseSubscribe reads a message of one frame from a subscriber, in the form of version 3.0. ok is false for a message that is no
// subscription, which a publisher passes over.
func ParseSubscribe(frame []byte) (prefix []byte, cancel, ok bool) {
	if len(frame) == 0 || frame[0] > 1 {
		return nil, false, false
	}
	return frame[1:], frame[0] == 0, true
}

// Properties are what a peer tells of itself in READY.
type Properties struct {
	SocketType string // one of the protocol's: PUB, SUB, DEALER, ROUTER, ...
	Identity   string // up to 255 bytes, empty if the peer leaves naming it to the other side
}

// maxIdentity is the protocol's bound; libzmq refuses longer ones.
const maxIdentity = 255

// AppendReady appends a READY command. libzmq sends an Identity from the sockets whose peers may address them, even if it is empty;
// without one a peer reads it as empty, so it is left out.
func AppendReady(dst []byte, p Properties) []byte {
	body := appendProperty(make([]byte, 0, 64), "Socket-Type", p.SocketType)
	if p.Identity != "" {
		body = appendProperty(body, "Identity", p.Identity)
	}
	return AppendCommand(dst, Ready, body)
}

func appendProperty(dst []byte, name, value string) []byte {
	dst = append(append(dst, byte(len(name))), name...)
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(value))), value...)
}

// ParseReady reads the data of a READY command. Names are compared without regard to case, as the protocol says, and properties that
// nobody knows are skipped.
func ParseReady(data []byte) (p Properties, err error) {
	for len(data) > 0 {
		n := int(data[0])
		if n == 0 || len(data) < 1+n+4 {
			return Properties{}, ErrMetadata
		}
		name := data[1 : 1+n]
		size := binary.BigEndian.Uint32(data[1+n:])
		data = data[1+n+4:]
		if uint64(size) > uint64(len(data)) {
			return Properties{}, ErrMetadata
		}
		value := data[:size]
		data = data[size:]
		switch {
		case equalFold(name, "socket-type"):
			p.SocketType = string(value)
		case equalFold(name, "identity"):
			if len(value) > maxIdentity {
				return Properties{}, ErrMetadata
			}
			p.Identity = string(value)
		}
	}
	if p.SocketType == "" {
		return Properties{}, ErrMetadata
	}
	return p, nil
}

// equalFold compares ASCII without regard to case; lower is in lower case.
func equalFold(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}
