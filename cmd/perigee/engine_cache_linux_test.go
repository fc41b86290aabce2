package main

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/cache/manager"
	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
)

// TestEngineRegistersWithAManager: --cache-manager names the socket, and the control port says how it goes.
func TestEngineRegistersWithAManager(t *testing.T) {
	dir, err := os.MkdirTemp("", "pe") // a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	m, err := manager.Start(manager.Options{Socket: socket, PoolBytes: 1 << 20, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	line, _ := runEngines(t, engineCmd{Host: "127.0.0.1", Count: 1, Flavor: "sglang", Model: []string{"m"}, Control: true, Speed: 100, KVBlocks: 64, CacheManager: socket})
	at := regexp.MustCompile(`control (\S+)\)`).FindStringSubmatch(line)
	if at == nil {
		t.Fatal(line)
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for {
		resp, err := http.Get(at[1] + "/_control")
		if err != nil {
			t.Fatal(err)
		}
		var v struct{ Stats enginehttp.Stats }
		err = json.NewDecoder(resp.Body).Decode(&v)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if v.Stats.CacheManager != nil && v.Stats.CacheManager.Registered {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("it never registered: %+v", v.Stats.CacheManager)
		}
	}
}
