package client

import (
	"context"

	"github.com/perigee-llm/perigee/internal/cache/channel/wire"
)

// Follow tells the Manager where the engine publishes its KV events for routers, so that it learns which tokens are in blocks that are published without. Once a session.
// Errors: *Refused (wire.NotBuilt where nobody would be told, or nothing can be proved; wire.Unknown of an older Manager), ErrLost.
func (s *Session) Follow(ctx context.Context, m *wire.Follow) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.work.Done()
	_, err := exchange(ctx, s.query, m, wire.KindFollowing)
	return s.lost(err)
}
