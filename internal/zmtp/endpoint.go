package zmtp

import (
	"fmt"
	"net"
	"strings"
)

// EndpointError: an endpoint that cannot be used, and why.
type EndpointError struct{ Endpoint, Why string }

func (e *EndpointError) Error() string {
	return fmt.Sprintf("zmtp: endpoint %.200q: %s", e.Endpoint, e.Why)
}

// split turns an endpoint into what package net takes: tcp://host:port, tcp://[::1]:port or ipc://path, in which a path that begins
// with @ is abstract (Linux). For listening the host may be * and the port * or 0, which the system chooses.
func split(endpoint string, listen bool) (network, address string, err error) {
	bad := func(why string) (string, string, error) { return "", "", &EndpointError{endpoint, why} }
	scheme, rest, ok := strings.Cut(endpoint, "://")
	switch {
	case !ok:
		return bad("want tcp://host:port or ipc://path")
	case scheme == "ipc" && rest != "":
		return "unix", rest, nil
	case scheme != "tcp":
		return bad("want tcp://host:port or ipc://path")
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil || port == "" {
		return bad("want tcp://host:port")
	}
	if host == "*" {
		host = ""
	}
	if port == "*" {
		port = "0"
	}
	if !listen && (host == "" || port == "0") {
		return bad("a wildcard can be listened on, not dialled")
	}
	return "tcp", net.JoinHostPort(host, port), nil
}
