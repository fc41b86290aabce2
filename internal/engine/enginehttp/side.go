package enginehttp

import (
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
)

// side is the port at which a prefill engine's decode engines come to its rooms: SGLang's bootstrap port, vLLM's side channel. What is spoken
// there is ours, HTTP with a request that waits until the KV is ready: nobody but simulated engines talks to it.
//
//	POST   /rooms/NAME?engine_id=ID   joins; answered with a handover when the prompt is computed
//	DELETE /rooms/NAME?taken=true     leaves, with the KV or without
type side struct {
	s *Server

	mu struct {
		sync.Mutex
		addr string       // the same after each restart
		http *http.Server // nil while it is down
		id   string       // of the engine, another after each start
	}
	wg sync.WaitGroup
}

// handover is what a join is answered with.
type handover struct {
	Prompt [2]uint64 `json:"prompt"`
	Length int       `json:"length"`
	Token  uint32    `json:"token"`
	Cached int       `json:"cached"`
}

// word is what a join hears: the handover, or why the room was closed.
type word struct {
	handover *engine.Handover
	why      engine.Reason
}

// up opens the port: at the start, and after a restart.
func (d *side) up() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.http != nil {
		return nil
	}
	ln, err := d.s.listen(d.mu.addr)
	if err != nil {
		return err
	}
	m := http.NewServeMux()
	m.HandleFunc("POST /rooms/{room}", d.join)
	m.HandleFunc("DELETE /rooms/{room}", d.leave)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // net/http's Close does not wait for handlers
		d.wg.Add(1)
		defer d.wg.Done()
		m.ServeHTTP(w, r)
	})
	x := &http.Server{Handler: h, ReadTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	d.mu.addr, d.mu.http, d.mu.id = ln.Addr().String(), x, randomID()
	d.wg.Add(1)
	go func() { defer d.wg.Done(); _ = x.Serve(ln) }() // it ends by Close
	return nil
}

// fall has the port say nothing more. The function that it returns breaks all connections and closes the port; it does not wait for the
// handlers, which end by that.
func (d *side) fall() (broken func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	x := d.mu.http
	d.mu.http = nil
	return func() {
		if x != nil {
			_ = x.Close()
		}
	}
}

func (d *side) down() { d.fall()() }

func (d *side) isDown() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.http == nil
}

func (d *side) engineID() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.id
}

// at returns where the port is. Requests of before a restart may ask as well.
func (d *side) at() (host string, port int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	host, text, _ := net.SplitHostPort(d.mu.addr) // empty for a listener without ports
	port, _ = strconv.Atoi(text)                  // then 0
	return host, port
}

func (d *side) join(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("room")
	if id := r.URL.Query().Get("engine_id"); id != "" && id != d.engineID() {
		http.Error(w, "remote NIXL agent engine ID mismatch: the engine has been restarted", http.StatusGone)
		return
	}
	heard := make(chan word, 1)
	if err := d.s.owner.join(name, heard); err != nil {
		status := http.StatusNotFound
		switch {
		case errors.Is(err, engine.ErrRoomTaken):
			status = http.StatusConflict
		case !errors.Is(err, engine.ErrNoRoom):
			status = http.StatusServiceUnavailable
		}
		http.Error(w, err.Error(), status)
		return
	}
	select {
	case x := <-heard:
		if d.isDown() {
			panic(http.ErrAbortHandler)
		}
		if x.handover == nil {
			http.Error(w, "the prefill engine gave the request up: "+reasonOf(x.why), http.StatusGone)
			return
		}
		h := x.handover
		if b, err := json.Marshal(handover{[2]uint64{h.Prompt.Hi, h.Prompt.Lo}, h.Length, h.Token, h.Cached}); err == nil {
			if _, err = w.Write(b); err == nil {
				return
			}
		}
	case <-r.Context().Done():
	}
	d.s.owner.leaveRoom(name, heard, false)
}

func (d *side) leave(w http.ResponseWriter, r *http.Request) {
	if !d.s.owner.leaveRoom(r.PathValue("room"), nil, r.URL.Query().Get("taken") == "true") {
		http.Error(w, engine.ErrNoRoom.Error(), http.StatusNotFound)
	}
}

// reasonOf says in words why a room was closed.
func reasonOf(why engine.Reason) string {
	switch why {
	case engine.ReasonUnmatched:
		return "timed out in KVPoll.Bootstrapping"
	case engine.ReasonExpired:
		return "timed out, nobody took the KV"
	case engine.ReasonCorrupt:
		return corruptPage
	case engine.ReasonTaken:
		return "the KV was taken"
	}
	return "Aborted by AbortReq."
}
