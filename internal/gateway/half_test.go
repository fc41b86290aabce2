package gateway_test

import (
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
)

// TestRefusalOfHalfClosed: who closes its direction behind a request still reads what is wrong with it. No engine is asked, so nothing is lost if
// the client has left instead.
func TestRefusalOfHalfClosed(t *testing.T) {
	g := startGateway(t, oneModel, startEngines(t, 2, enginehttp.VLLM))
	cases := []struct{ body, status, code string }{
		{`{"model":`, "400", "bad_request"},
		{`{"model":"none","prompt":"x"}`, "404", "model_not_found"},
		{`{"model":"m","prompt":"x","max_tokens":9223372036854775807}`, "400", "bad_request"},
	}
	for i := range 90 { // the system tells of the end before or after the request was read
		tc := cases[i%len(cases)]
		c, err := net.Dial("tcp", strings.TrimPrefix(g.URL(), "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		_, _ = io.WriteString(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: "+strconv.Itoa(len(tc.body))+"\r\n\r\n"+tc.body)
		_ = c.(*net.TCPConn).CloseWrite()
		got, err := io.ReadAll(c)
		_ = c.Close()
		if err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 "+tc.status) || !strings.Contains(string(got), tc.code) {
			t.Errorf("%s: %q, %v", tc.body, got, err)
		}
	}
}
