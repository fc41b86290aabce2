package remote

import (
	"context"
	"crypto/tls"
	"errors"
	"net"

	"google.golang.org/grpc/credentials"
)

// Secrets are what a source presents to its endpoints, and by what it knows them. The zero value presents nothing and goes by the system's
// authorities.
type Secrets struct {
	// Token, if it is not empty, goes along as "authorization: Bearer …". Over http it can be read on the way.
	Token string
	// TLS is for https endpoints: roots, a client certificate. It is not changed by anybody. Nil: the system's roots.
	TLS *tls.Config
}

// bearer is the token that goes along with each call.
type bearer struct{ secrets func() Secrets }

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token := b.secrets().Token
	if token == "" {
		return nil, nil
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials: loopback and unix sockets have none.
func (bearer) RequireTransportSecurity() bool { return false }

// handshaker begins TLS as the secrets are at that moment.
type handshaker struct{ secrets func() Secrets }

var _ credentials.TransportCredentials = handshaker{}

func (h handshaker) now() credentials.TransportCredentials {
	return credentials.NewTLS(h.secrets().TLS)
}

// ClientHandshake implements credentials.TransportCredentials.
func (h handshaker) ClientHandshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return h.now().ClientHandshake(ctx, authority, c)
}

var errClientOnly = errors.New("these credentials are a client's")

// ServerHandshake implements credentials.TransportCredentials.
func (handshaker) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errClientOnly
}

// Info implements credentials.TransportCredentials.
func (h handshaker) Info() credentials.ProtocolInfo { return h.now().Info() }

// Clone implements credentials.TransportCredentials.
func (h handshaker) Clone() credentials.TransportCredentials { return h }

// OverrideServerName implements credentials.TransportCredentials, for which nobody has a use here.
func (handshaker) OverrideServerName(string) error { return errClientOnly }
