package enginehttp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
)

// Role is an engine's part in separated pairs.
type Role string

// The roles.
const (
	Prefill Role = "prefill"
	Decode  Role = "decode"
)

// Pair makes an engine the half of separated pairs: with SGLang they meet in bootstrap rooms, with vLLM by kv_transfer_params as with NIXL.
type Pair struct {
	Role Role
	// Addr is where a prefill engine's decode engines come: SGLang's bootstrap port, vLLM's side channel. Empty: a free port of 127.0.0.1.
	Addr string
	// BootstrapPort is what an SGLang decode engine takes where a request names none; 0: 8998.
	BootstrapPort int
	// Attempts is how often a prefill engine is called that cannot be reached, Retry the time between; 0: SGLang's 15, a second apart. vLLM's
	// flavor calls once.
	Attempts int
	Retry    time.Duration
	// Dial connects to a prefill engine; nil: TCP.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// defaultBootstrapPort is SGLang's --disaggregation-bootstrap-port.
const defaultBootstrapPort = 8998

func (p *Pair) withDefaults(f Flavor) *Pair {
	if p == nil {
		return nil
	}
	q := *p
	if q.Addr == "" {
		q.Addr = "127.0.0.1:0"
	}
	if q.BootstrapPort == 0 {
		q.BootstrapPort = defaultBootstrapPort
	}
	if q.Attempts == 0 {
		q.Attempts = 15
	}
	if f != SGLang {
		q.Attempts = 1
	}
	if q.Retry == 0 {
		q.Retry = time.Second
	}
	return &q
}

func (p *Pair) validate(o Options) error {
	switch {
	case p == nil:
		return nil
	case p.Role != Prefill && p.Role != Decode:
		return fmt.Errorf("engine role %q is neither prefill nor decode", p.Role)
	case p.Role == Decode && o.CacheManager != nil:
		return errors.New("a decode engine gets its KV from a prefill engine: a Cache Manager is not simulated with it")
	case p.Attempts < 0 || p.Retry < 0 || p.BootstrapPort < 0 || p.BootstrapPort > 65535:
		return errors.New("a pair's bootstrap port, attempts or time between them is out of range")
	}
	return nil
}

func (o Options) role() Role {
	if o.Pair == nil {
		return ""
	}
	return o.Pair.Role
}

// remote is where a decode half's KV is.
type remote struct {
	host   string // with its port
	room   string
	engine string // vLLM's engine id; empty: any
}

// transferParams are what is read of vLLM's kv_transfer_params.
type transferParams struct {
	RemoteDecode  bool            `json:"do_remote_decode"`
	RemotePrefill bool            `json:"do_remote_prefill"`
	EngineID      string          `json:"remote_engine_id"`
	RequestID     string          `json:"remote_request_id"`
	Host          string          `json:"remote_host"`
	Port          int             `json:"remote_port"`
	Blocks        json.RawMessage `json:"remote_block_ids"`
}

// halve makes the requests of j halves of pairs, where the engine's role and the body say so. It returns false if it has answered.
func (s *Server) halve(w http.ResponseWriter, j *job, reqs []engine.Request) bool {
	switch {
	case s.opt.Pair == nil:
		return true
	case s.opt.Flavor == SGLang:
		return s.enterRooms(w, j, reqs)
	}
	var p transferParams
	if raw := j.body.KVTransferParams; len(raw) > 0 {
		if err := json.Unmarshal(raw, &p); err != nil {
			s.fail(w, http.StatusBadRequest, "kv_transfer_params", err.Error())
			return false
		}
	}
	switch {
	case p.RemoteDecode && s.opt.Pair.Role == Prefill:
		for i := range reqs {
			reqs[i].Half, reqs[i].Room = engine.PrefillHalf, fmt.Sprintf("%s-%d-%s", j.shape.id, i, randomID()[:8])
		}
		j.room = reqs[0].Room
	case p.RemotePrefill && s.opt.Pair.Role == Decode:
		if p.EngineID == "" || p.RequestID == "" || p.Host == "" || p.Port == 0 || len(p.Blocks) == 0 || string(p.Blocks) == "null" {
			s.failLater(w, j, http.StatusInternalServerError, "Got invalid KVTransferParams: "+string(j.body.KVTransferParams))
			return false
		}
		for i := range reqs { // all of them, as a real engine would: only the first is what the parameters are about
			reqs[i].Half = engine.DecodeHalf
			j.remotes = append(j.remotes, remote{net.JoinHostPort(p.Host, strconv.Itoa(p.Port)), p.RequestID, p.EngineID})
		}
	}
	return true
}

// enterRooms is halve for SGLang, whose engines of a role take nothing without a room.
func (s *Server) enterRooms(w http.ResponseWriter, j *job, reqs []engine.Request) bool {
	rooms := readRooms(j.body.Room, len(reqs))
	if rooms == nil {
		s.failLater(w, j, http.StatusBadRequest, "Invalid request: Disaggregated request received without bootstrap room id. req.rid='"+j.rid+"'")
		return false
	}
	host, port := "", s.opt.Pair.BootstrapPort // null, or absent: as it is configured
	for _, x := range []struct {
		raw  json.RawMessage
		into any
	}{{j.body.BootstrapHost, &host}, {j.body.BootstrapPort, &port}} {
		if len(x.raw) > 0 && json.Unmarshal(x.raw, x.into) != nil {
			s.fail(w, http.StatusBadRequest, "bootstrap_host", "bootstrap_host or bootstrap_port is not of its type")
			return false
		}
	}
	for i := range reqs {
		if s.opt.Pair.Role == Prefill {
			reqs[i].Half, reqs[i].Room = engine.PrefillHalf, rooms[i]
		} else {
			reqs[i].Half = engine.DecodeHalf
			j.remotes = append(j.remotes, remote{net.JoinHostPort(host, strconv.Itoa(port)), rooms[i], ""})
		}
	}
	return true
}

// readRooms returns a room for each of n prompts: from a list, or from the first one's on. It returns nil if raw is neither.
func readRooms(raw json.RawMessage, n int) (rooms []string) {
	var one uint64
	var list []uint64
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return nil
	case json.Unmarshal(raw, &one) == nil:
		for i := range n {
			rooms = append(rooms, strconv.FormatUint(one+uint64(i), 10))
		}
	case json.Unmarshal(raw, &list) == nil && len(list) == n:
		for _, x := range list {
			rooms = append(rooms, strconv.FormatUint(x, 10))
		}
	}
	return rooms
}

// transferred appends what vLLM says of the KV that it holds: kv_transfer_params, null where it holds none.
func (s *Server) transferred(b []byte, j *job) []byte {
	if j.room == "" {
		return append(b, "null"...)
	}
	host, port := s.side.at()
	blocks := s.owner.blocksOf(j.room)
	out, err := json.Marshal(map[string]any{
		"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [][]int32{blocks}, "remote_engine_id": s.side.engineID(),
		"remote_request_id": j.room, "remote_host": host, "remote_port": port, "tp_size": 1, "dcp_size": 1, "pp_size": 1,
		"remote_num_tokens": len(j.prompts[0]), "remote_blocks_expiry_time": nil, "transfer_mode": "pull",
	})
	if err != nil {
		panic(err) // strings and numbers always have a JSON form
	}
	return append(b, out...)
}

// fetches are what a decode engine has under way. Its owner begins them and ends them; each is a goroutine, and there are no more than requests
// in a batch.
type fetches struct {
	opt    *Pair
	timing engine.Timing
	o      *owner
	http   *http.Client
	quit   context.Context
	stop   context.CancelFunc
	wg     sync.WaitGroup
}

func newFetches(opt *Pair, o *owner) *fetches {
	f := &fetches{opt: opt, o: o, timing: o.cfg.Timing, http: &http.Client{Transport: &http.Transport{DialContext: opt.Dial}}}
	f.quit, f.stop = context.WithCancel(context.Background())
	return f
}

func (f *fetches) close() {
	f.stop()
	f.wg.Wait()
	f.http.CloseIdleConnections()
}

// begin brings the KV of a request, or says why not. It returns what ends it early.
func (f *fetches) begin(id engine.ID, from remote, missing int) context.CancelFunc {
	ctx, cancel := context.WithCancel(f.quit)
	f.wg.Go(func() {
		defer cancel()
		h, err := f.join(ctx, from)
		if err != nil {
			_ = f.o.do(func() { f.o.notFetched(id, err) })
			if ctx.Err() != nil {
				f.leave(from, false) // the answer may have been on its way
			}
			return
		}
		t := time.NewTimer(f.timing.Transfer(missing))
		defer t.Stop()
		taken := false
		select {
		case <-t.C:
			_ = f.o.do(func() { taken = f.o.core.Fetched(f.o.now(), id, *h) })
		case <-ctx.Done():
		}
		f.leave(from, taken)
	})
	return cancel
}

// goneError: the prefill engine does not hold what was asked for, or not any more, or was there and is not.
type goneError struct{ error }

// join waits in the room until the prefill engine has computed the prompt. A prefill engine that cannot be reached is called again.
func (f *fetches) join(ctx context.Context, from remote) (*engine.Handover, error) {
	for n := 1; ; n++ {
		h, err := f.ask(ctx, from)
		if gone := (goneError{}); err == nil || errors.As(err, &gone) || ctx.Err() != nil {
			return h, err
		}
		if n >= f.opt.Attempts {
			return nil, fmt.Errorf("could not fetch prefill parallel info from %s after %d attempts", from.host, n)
		}
		t := time.NewTimer(f.opt.Retry)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, ctx.Err()
		}
	}
}

func (f *fetches) ask(ctx context.Context, from remote) (*engine.Handover, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, from.url("engine_id="+url.QueryEscape(from.engine)), nil)
	if err != nil {
		return nil, goneError{err} // the address is none, and will be none
	}
	resp, err := f.http.Do(req)
	if err != nil {
		if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "dial" {
			return nil, err
		}
		return nil, goneError{fmt.Errorf("lost the connection with the prefill engine: %w", err)}
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if err != nil || resp.StatusCode != http.StatusOK {
		return nil, goneError{fmt.Errorf("the prefill engine says: %.300s", b)}
	}
	var h handover
	if err := json.Unmarshal(b, &h); err != nil {
		return nil, goneError{fmt.Errorf("the prefill engine's answer: %w", err)}
	}
	return &engine.Handover{Prompt: engine.BlockHash{Hi: h.Prompt[0], Lo: h.Prompt[1]}, Length: h.Length, Token: h.Token, Cached: h.Cached}, nil
}

// leaveFor bounds how long a decode engine tries to say that it needs the KV no longer. The prefill engine's time-out is there where it fails.
const leaveFor = 5 * time.Second

func (f *fetches) leave(from remote, taken bool) {
	ctx, cancel := context.WithTimeout(f.quit, leaveFor)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, from.url("taken="+strconv.FormatBool(taken)), nil)
	if err != nil {
		return
	}
	if resp, err := f.http.Do(req); err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
}

func (r remote) url(query string) string {
	return "http://" + r.host + "/rooms/" + url.PathEscape(r.room) + "?" + query
}

// startPair opens the side port, or gets ready to fetch.
func (s *Server) startPair() error {
	switch s.opt.role() {
	case Prefill:
		s.side = &side{s: s}
		s.side.mu.addr = s.opt.Pair.Addr
		if err := s.side.up(); err != nil {
			return fmt.Errorf("engine: pairs: %w", err)
		}
	case Decode:
		s.owner.fetches = newFetches(s.opt.Pair, s.owner)
	}
	return nil
}

func (s *Server) closePair() {
	if s.side != nil {
		s.side.down()
		s.side.wg.Wait()
	}
	if s.owner.fetches != nil {
		s.owner.fetches.close()
	}
}

// BootstrapPort is where a prefill engine's decode engines come, 0 for other engines.
func (s *Server) BootstrapPort() int {
	if s.side == nil {
		return 0
	}
	_, port := s.side.at()
	return port
}
