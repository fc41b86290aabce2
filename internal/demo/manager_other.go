//go:build !linux

package demo

import (
	"errors"
	"log/slog"
)

// managerHere says that there is no Cache Manager for this system.
const managerHere = false

type cacheManager struct{}

func startManager(int, uint64, *slog.Logger) (*cacheManager, error) {
	return nil, errors.New("the Cache Manager is for Linux")
}

func (m *cacheManager) socket() string                 { return "" }
func (m *cacheManager) endpoints() *managerEndpoints   { return nil }
func (m *cacheManager) close() (held int64, err error) { return 0, nil }

// AdminURL is empty.
func (m *cacheManager) AdminURL() string { return "" }
