package manager

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/cache/storage/pool"
	"github.com/perigee-llm/perigee/internal/cache/storage/pool/layout"
)

// Config is the daemon's configuration: of its file, or of the flags of the same names. The zero value of each key is its default. It is
// small on purpose: what an engine knows of itself it says as it registers.
type Config struct {
	// Socket is the path that engines connect to; DefaultSocket.
	Socket string `yaml:"socket"`
	// PoolBytes is the shared memory; required.
	PoolBytes Size `yaml:"pool_bytes"`
	// Instances is how many engines share it, each with an equal part; 1.
	Instances int `yaml:"instances"`
	// HugePages takes pages of 2 MiB if the kernel has them reserved.
	HugePages bool `yaml:"huge_pages"`
	// Admin is host:port of the admin listener; none.
	Admin string `yaml:"admin"`
	// Events are the sockets by which gateways are told what can be restored; none.
	Events EventsConfig `yaml:"events"`
	// AllowedUIDs are users who may connect besides the daemon's own.
	AllowedUIDs []uint32 `yaml:"allowed_uids"`
	// QueryBytes, InstanceBytes and SpeculativeBytes bound what queries hold at once: all together, of an instance, and on speculation. An
	// instance's is an equal part of the first if it is not given.
	QueryBytes       Size `yaml:"query_bytes"`
	InstanceBytes    Size `yaml:"instance_bytes"`
	SpeculativeBytes Size `yaml:"speculative_bytes"`
	// Wait is the longest waiting budget, Lease how long a lease waits for its first consumer, Patience how long a client may leave a
	// slot unsealed or a restore uncopied.
	Wait     time.Duration `yaml:"wait"`
	Lease    time.Duration `yaml:"lease"`
	Patience time.Duration `yaml:"patience"`
	// HostPoolBytes bounds the engines' own memory that is mapped, all together; no bound. Copiers is how many goroutines copy out of it
	// and into it.
	HostPoolBytes Size `yaml:"host_pool_bytes"`
	Copiers       int  `yaml:"copiers"`
	// Scopes are tenants with budgets of their own.
	Scopes []ScopeConfig `yaml:"scopes"`
}

// EventsConfig is host:port, tcp://host:port or ipc://path of each socket. Replay and Snapshot are Listen's next two ports if they are not
// given. An empty host is loopback, * is every interface.
type EventsConfig struct {
	Listen   string `yaml:"listen"`
	Replay   string `yaml:"replay"`
	Snapshot string `yaml:"snapshot"`
}

// endpoints completes it.
func (e EventsConfig) endpoints() (out Endpoints, err error) {
	if e == (EventsConfig{}) {
		return out, nil
	}
	if e.Listen == "" {
		return out, errors.New("listen: missing")
	}
	if out.Listen, err = endpoint(e.Listen, "", 0); err != nil {
		return out, fmt.Errorf("listen: %w", err)
	}
	if out.Replay, err = endpoint(e.Replay, out.Listen, 1); err != nil {
		return out, fmt.Errorf("replay: %w", err)
	}
	if out.Snapshot, err = endpoint(e.Snapshot, out.Listen, 2); err != nil {
		return out, fmt.Errorf("snapshot: %w", err)
	}
	return out, nil
}

// endpoint completes a text, or makes the one that is so many ports after another.
func endpoint(text, after string, ports int) (string, error) {
	if text == "" {
		text = after
	} else {
		ports = 0
	}
	if strings.HasPrefix(text, "ipc://") {
		if ports > 0 {
			return "", errors.New("missing; it cannot be the next port of an ipc path")
		}
		return text, nil
	}
	host, port, err := net.SplitHostPort(strings.TrimPrefix(text, "tcp://"))
	n, bad := strconv.ParseUint(port, 10, 16)
	if err != nil || bad != nil || int(n)+ports > 65535 {
		return "", fmt.Errorf("%q: write host:port, of which two more follow", text)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	if n > 0 {
		n += uint64(ports)
	}
	return "tcp://" + net.JoinHostPort(host, strconv.FormatUint(n, 10)), nil
}

// ScopeConfig is a tenant's budgets in bytes; 0 is no bound. See core.ScopeBudget.
type ScopeConfig struct {
	ID            uint32 `yaml:"id"`
	ResidentBytes Size   `yaml:"resident_bytes"`
	ShareBytes    Size   `yaml:"share_bytes"`
	QueryBytes    Size   `yaml:"query_bytes"`
}

// DefaultSocket is where a Manager listens if it is not told otherwise.
const DefaultSocket = "/run/perigee/cache.sock"

// Size is bytes. Its text is a number, with KiB, MiB, GiB or TiB behind it if it is one of those.
type Size uint64

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Size) UnmarshalText(b []byte) error {
	text, shift := string(b), 0
	for i, unit := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if rest, ok := strings.CutSuffix(text, unit); ok {
			text, shift = strings.TrimSpace(rest), 10*(i+1)
		}
	}
	n, err := strconv.ParseUint(text, 10, 62-shift)
	if err != nil {
		return fmt.Errorf("%q is no size: write bytes, or a number with KiB, MiB, GiB or TiB", b)
	}
	*s = Size(n << shift)
	return nil
}

// ParseConfig reads a file's YAML. Every key has to be known, and there is one document.
func ParseConfig(data []byte) (c Config, err error) {
	loader, err := yaml.NewLoader(bytes.NewReader(data), yaml.WithKnownFields())
	if err != nil {
		return Config{}, err
	}
	if err := loader.Load(&c); err != nil && !errors.Is(err, io.EOF) {
		return Config{}, err
	}
	var more yaml.Node
	if err := loader.Load(&more); !errors.Is(err, io.EOF) {
		return Config{}, errors.New("a second document: keep one document a file")
	}
	return c, nil
}

// Faults returns what is wrong with it, every fault.
func (c *Config) Faults() (faults []string) {
	say := func(bad bool, what string) {
		if bad {
			faults = append(faults, what)
		}
	}
	say(c.PoolBytes == 0, "pool_bytes: missing; say how much memory engines share, such as 8GiB")
	say(c.Instances < 0, "instances: below 0")
	say(c.PoolBytes > 0 && c.Instances > 0 && uint64(c.PoolBytes)/uint64(c.Instances) < layout.Align,
		"instances: a part of pool_bytes for each is less than 4KiB, the smallest page's; have fewer, or more pool_bytes")
	say(c.Copiers < 0 || c.Copiers > maxCopiers, "copiers: below 0, or above 256")
	say(len(c.Socket) > maxSocketPath, "socket: longer than the 99 bytes that its path may have")
	for name, d := range map[string]time.Duration{"wait": c.Wait, "lease": c.Lease, "patience": c.Patience} {
		say(d < 0, name+": below 0")
	}
	if c.Admin != "" {
		if _, _, err := net.SplitHostPort(c.Admin); err != nil {
			say(true, "admin: "+err.Error()+"; write host:port")
		}
	}
	if _, err := c.Events.endpoints(); err != nil {
		say(true, "events: "+err.Error())
	}
	seen := map[uint32]bool{}
	for _, s := range c.Scopes {
		say(s.ID == 0, "scopes: id 0 is everybody without a tenant, and has no budgets")
		say(seen[s.ID], "scopes: id "+strconv.FormatUint(uint64(s.ID), 10)+" is there twice")
		seen[s.ID] = true
	}
	return faults
}

// maxCopiers is more than any host's memory can feed.
const maxCopiers = 256

// maxSocketPath is sockaddr_un's 108 bytes, less its final zero and what the name has more while the socket is made: a point and the process's number, of
// seven digits at most.
const maxSocketPath = 107 - 8

// Options are what Start wants, without a log.
func (c *Config) Options() Options {
	o := Options{
		Socket: c.Socket, PoolBytes: uint64(c.PoolBytes), Instances: c.Instances, UIDs: c.AllowedUIDs, Admin: c.Admin,
		Copiers: c.Copiers,
		Core: core.Config{
			Budgets: core.Budgets{Total: int64(c.QueryBytes), Instance: int64(c.InstanceBytes), Speculative: int64(c.SpeculativeBytes), Offered: int64(c.HostPoolBytes)},
			Limits:  core.Limits{Wait: c.Wait, LeaseTTL: c.Lease, Patience: c.Patience},
			Scopes:  map[core.Scope]core.ScopeBudget{},
		},
	}
	o.Events, _ = c.Events.endpoints() // Faults has told of its errors
	if o.Socket == "" {
		o.Socket = DefaultSocket
	}
	if c.HugePages {
		o.Huge = pool.HugeTry
	}
	for _, s := range c.Scopes {
		o.Core.Scopes[core.Scope(s.ID)] = core.ScopeBudget{
			Resident: int64(s.ResidentBytes), Share: int64(s.ShareBytes), Query: int64(s.QueryBytes),
		}
	}
	return o
}
