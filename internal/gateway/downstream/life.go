package downstream

import (
	"net/url"

	"github.com/perigee-llm/perigee/internal/gateway/lifetime"
)

// life is the context of one request. It ends when the client leaves or the handler has returned.
type life struct {
	lifetime.Lifetime         // beside the connection's
	url               url.URL // the request's, which lives as long
}

// end ends it. Ending again does nothing.
func (l *life) end() { l.End(nil) }
