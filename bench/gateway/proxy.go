package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"sync/atomic"
	"time"
)

// proxyMain is the yardstick: the standard library's proxy, round robin over the engines, and nothing else. It prints
// its address. Its transport keeps as many idle connections as the load has, because the default of two would measure
// connection set-up.
func proxyMain(ctx context.Context, engines []string) error {
	if len(engines) == 0 {
		return fmt.Errorf("proxy: no engine given")
	}
	var turn atomic.Uint64
	rp := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme = "http"
			r.Out.URL.Host = engines[turn.Add(1)%uint64(len(engines))]
		},
		Transport: &http.Transport{
			MaxIdleConnsPerHost: 256,
			DisableCompression:  true,
		},
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Without it the server closes the request's body when the answer begins. The transport may not have seen the
		// body's end by then, although the engine has all of it, and gives the engine's connection up: with an engine
		// as fast as the stub, one stream in some tens breaks.
		_ = http.NewResponseController(w).EnableFullDuplex()
		rp.ServeHTTP(w, r)
	})
	srv := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		<-ctx.Done()
		srv.Close()
	}()
	fmt.Println(ln.Addr())
	if err := srv.Serve(ln); err != http.ErrServerClosed {
		return err
	}
	return nil
}
