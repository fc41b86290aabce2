package wire

// Error is a fault in what a peer sent: it does not speak the protocol, or not a version that is understood here. There is no
// going on after one.
type Error string

func (e Error) Error() string { return "zmtp: " + string(e) }

// The faults, by what is to blame.
const (
	ErrNotZMTP   Error = "the peer does not speak ZMTP"
	ErrVersion   Error = "the peer speaks ZMTP below version 3"
	ErrMechanism Error = "the peer wants another security mechanism than NULL"
	ErrFrame     Error = "a frame with flags or a size that the protocol forbids"
	ErrCommand   Error = "a command that ends early"
	ErrMetadata  Error = "a READY command whose properties are malformed, or without Socket-Type"
)
