package demo

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/perigee-llm/perigee/internal/cache/manager"
)

// managerHere says that there is a Cache Manager for this system.
const managerHere = true

// cacheManager is the Manager of a fleet, in this process.
type cacheManager struct {
	*manager.Manager
	dir string // of its socket
}

// startManager starts a Manager for n engines with a pool of so many bytes.
func startManager(n int, bytes uint64, log *slog.Logger) (*cacheManager, error) {
	dir, err := os.MkdirTemp("", "perigee-demo-")
	if err != nil {
		return nil, err
	}
	const anyPort = "tcp://127.0.0.1:0"
	m, err := manager.Start(manager.Options{
		Socket: filepath.Join(dir, "cache.sock"), PoolBytes: bytes, Instances: n, Admin: "127.0.0.1:0",
		Events: manager.Endpoints{Listen: anyPort, Replay: anyPort, Snapshot: anyPort}, Name: managerID, Log: log,
	})
	if err != nil {
		_ = os.RemoveAll(dir) // the error that is returned says more
		return nil, fmt.Errorf("the Cache Manager: %w", err)
	}
	return &cacheManager{m, dir}, nil
}

func (m *cacheManager) socket() string { return filepath.Join(m.dir, "cache.sock") }

// endpoints are those that a gateway's configuration names.
func (m *cacheManager) endpoints() *managerEndpoints {
	at := m.EventsAt()
	return &managerEndpoints{events: at.Listen, replay: at.Replay, snapshot: at.Snapshot}
}

// close ends the Manager, whose engines have said goodbye, and says what it still held then.
func (m *cacheManager) close() (held int64, err error) {
	deadline := time.Now().Add(registerWait) // it takes a moment, unless the machine has no time for the Manager
	for len(m.Status().Sessions) > 0 && time.Now().Before(deadline) {
		<-time.After(time.Millisecond)
	}
	u := m.Status().Usage
	held = u.Granted + u.Quarantined + u.Leased + u.Reserved + u.Pinned + u.Queries
	err = m.Close()
	if gone := os.RemoveAll(m.dir); err == nil {
		err = gone
	}
	return held, err
}
