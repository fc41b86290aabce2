package enginehttp

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"
)

// startControl serves the fault interface on a listener of its own.
func (s *Server) startControl() error {
	ln, err := net.Listen("tcp", s.opt.ControlAddr)
	if err != nil {
		return fmt.Errorf("engine: control: %w", err)
	}
	s.ctlAddr = ln.Addr().String()
	m := http.NewServeMux()
	m.HandleFunc("GET /_control", s.getControl)
	m.HandleFunc("POST /_control", s.postControl)
	s.control = &http.Server{Handler: m, ReadTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	s.wg.Add(1)
	go func() { defer s.wg.Done(); _ = s.control.Serve(ln) }() // it ends by Close
	return nil
}

// getControl shows the faults that are set and what was counted.
func (s *Server) getControl(w http.ResponseWriter, _ *http.Request) {
	s.faults.mu.Lock()
	var fault *Fault
	left := 0
	if a := s.faults.mu.fault; a != nil {
		f := a.Fault
		fault, left = &f, a.left
	}
	lies := s.faults.mu.lies
	s.faults.mu.Unlock()
	writeJSON(w, map[string]any{"fault": fault, "left": left, "lies": lies, "stats": s.Stats()})
}

// postControl sets a fault. Unknown fields are refused: a parameter with a typing error would be a fault that never comes.
func (s *Server) postControl(w http.ResponseWriter, r *http.Request) {
	var f Fault
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16))
	d.DisallowUnknownFields()
	err := d.Decode(&f)
	if err == nil {
		err = s.SetFault(f)
	}
	if err != nil {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write(append(append([]byte(`{"error":`), quote(err.Error())...), '}'))
		return
	}
	s.getControl(w, r)
}
