package api

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestDrainEndsConnections: while it drains it goes on answering, and says on each connection that this was the last answer, so that no
// client is sending on one when it is closed.
func TestDrainEndsConnections(t *testing.T) {
	bubble(t, rigOptions{}, func(t *testing.T, r *rig) {
		ask := func(in *bufio.Reader, conn io.Writer, text string) *http.Response {
			go func() { _, _ = io.WriteString(conn, text) }() // ends with the connection
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			return resp
		}
		post := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", chatPath, len(chatBody), chatBody)
		var conns []io.ReadWriteCloser
		var ins []*bufio.Reader
		texts := []string{post, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", "GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n"}
		for _, text := range texts {
			conn, in := r.raw("")
			if resp := ask(in, conn, text); resp.Close {
				t.Errorf("%.20s: closed before there is a reason", text)
			}
			conns, ins = append(conns, conn), append(ins, in)
		}
		r.s.Drain()
		for i, text := range texts {
			if resp := ask(ins[i], conns[i], text); !resp.Close || (strings.HasPrefix(text, "POST") && resp.StatusCode != 200) {
				t.Errorf("%.20s: got %s, and the connection stays: %v", text, resp.Status, !resp.Close)
			}
			if _, err := ins[i].ReadByte(); err != io.EOF {
				t.Errorf("%.20s: the connection ended with %v", text, err)
			}
			_ = conns[i].Close()
		}
	})
}
