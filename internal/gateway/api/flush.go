package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
)

// flushAtOnce bounds the engines that are flushed at the same time: the reference's.
const flushAtOnce = 32

type flushFailure struct {
	Worker string `json:"worker"`
	Error  string `json:"error"`
}

// flushResult is the answer to POST /flush_cache, in sgl-router's shape.
type flushResult struct {
	Successful   []string       `json:"successful"`
	Failed       []flushFailure `json:"failed"`
	TotalWorkers int            `json:"total_workers"`
	Message      string         `json:"message"`
}

// flushCache has every engine empty its prefix cache, whatever its breaker says. It answers 200 if all did (or there is none),
// and 502 if one did not.
func (s *Server) flushCache(w http.ResponseWriter, r *http.Request) {
	rc := deadlines(w)
	_ = rc.SetWriteDeadline(time.Time{}) // nothing is written while engines are waited for
	var workers []*fleet.Worker
	for x := range s.Registry.View().All() {
		workers = append(workers, x)
	}
	errs := make([]error, len(workers))
	var wg sync.WaitGroup
	slots := make(chan struct{}, flushAtOnce)
	for i, x := range workers {
		slots <- struct{}{}
		wg.Go(func() {
			errs[i] = s.flushOne(r.Context(), x, r.Header["Authorization"])
			<-slots
		})
	}
	wg.Wait()
	out := flushResult{Successful: []string{}, Failed: []flushFailure{}, TotalWorkers: len(workers)}
	for i, x := range workers {
		if errs[i] == nil {
			out.Successful = append(out.Successful, x.ID)
		} else {
			out.Failed = append(out.Failed, flushFailure{Worker: x.ID, Error: errs[i].Error()})
		}
	}
	status := http.StatusOK
	out.Message = fmt.Sprintf("%d of %d engines emptied their cache", len(out.Successful), len(workers))
	if len(out.Failed) > 0 {
		status = http.StatusBadGateway
	}
	_ = rc.SetWriteDeadline(time.Now().Add(s.current.Load().Settings.ClientStall))
	writeJSON(w, status, out)
}

// flushOne asks one engine: SGLang has /flush_cache, vLLM /reset_prefix_cache (in its development mode).
func (s *Server) flushOne(ctx context.Context, x *fleet.Worker, auth []string) error {
	path := "/flush_cache"
	if x.Kind == fleet.VLLM {
		path = "/reset_prefix_cache"
	}
	ctx, cancel := context.WithTimeout(ctx, min(s.current.Load().Settings.RequestTimeout, time.Minute))
	defer cancel()
	header := http.Header{"User-Agent": userAgent}
	if auth != nil {
		header["Authorization"] = auth
	}
	req := (&http.Request{Method: http.MethodPost, URL: engineURL(x.URL, path), Header: header, Body: http.NoBody}).WithContext(ctx)
	resp, err := s.Engines.RoundTrip(req)
	if err != nil {
		return err
	}
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
	_ = resp.Body.Close()
	if resp.StatusCode >= 300 {
		return fmt.Errorf("POST %s answered %s", path, resp.Status)
	}
	return nil
}
