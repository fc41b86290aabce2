package upstream

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httputil"
	"reflect"
	"strings"
	"testing"
)

// FuzzHead holds that what we take as a head, net/http takes too, and in the same way. We refuse more. A head that is there as a whole and one that
// comes bit by bit are read alike.
func FuzzHead(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "HTTP/1.0 404 Not Found\r\nConnection: keep-alive\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nDate: x\r\n\r\n", "HTTP/1.1 503\n\n", "HTTP/1.1 200 OK\r\nA:\r\nb: \t c \t\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\nConnection: x, Close\r\n\r\n", "HTTP/1.1 200 OK\r\nA : b\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := readHead(bufio.NewReaderSize(bytes.NewReader(data), 16), 1<<10, nil)
		whole := bufio.NewReaderSize(bytes.NewReader(data), 4<<10)
		_, _ = whole.Peek(1)
		if h2, err2 := readHead(whole, 1<<10, nil); err2 != err || err == nil && !reflect.DeepEqual(h, h2) {
			t.Errorf("in pieces %+v, %v; whole %+v, %v", h, err, h2, err2)
		}
		if err != nil {
			return
		}
		resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(data)), &http.Request{Method: http.MethodPost})
		if err != nil {
			t.Fatalf("we take what net/http refuses: %v", err)
		}
		defer resp.Body.Close()
		if h.status != resp.StatusCode || h.minor != resp.ProtoMinor || h.chunked != (len(resp.TransferEncoding) > 0) {
			t.Errorf("we read %+v, net/http %+v", h, resp)
		}
		if !h.chunked && h.length >= 0 && h.length != resp.ContentLength && resp.StatusCode >= 200 && resp.StatusCode != 204 && resp.StatusCode != 304 {
			t.Errorf("length %d, net/http %d", h.length, resp.ContentLength)
		}
		for name, values := range h.fields {
			switch name {
			case "Content-Length", "Transfer-Encoding", "Connection", "Trailer": // net/http takes some of these out
				continue
			}
			if got := resp.Header.Values(name); strings.Join(got, "\x00") != strings.Join(values, "\x00") {
				t.Errorf("%s: %q, net/http %q", name, values, got)
			}
		}
		framed := h.chunked || h.length >= 0 // otherwise the end of the connection is the end of the body
		if resp.Close && h.keepAlive && framed {
			t.Errorf("we keep a connection that net/http closes: %q", data)
		}
	})
}

// FuzzChunks holds that chunks which we read whole, net/http's reader reads to the same bytes, however the input is cut.
func FuzzChunks(f *testing.F) {
	for _, s := range []string{"5\r\nhello\r\n0\r\n\r\n", "5;a=b\r\nhello\r\n00\r\nX: y\r\n\r\n", "3\nabc\n0\n\n", "A\r\n0123456789\r\n0\r\n\r\n", "5 \r\nhello\r\n0\r\n\r\n"} {
		f.Add([]byte(s), uint8(3))
	}
	f.Fuzz(func(t *testing.T, data []byte, size uint8) {
		read := func(buf int) ([]byte, error) {
			c := &conn{t: &Transport{o: Options{MaxHead: 1 << 10}}, in: input{br: bufio.NewReaderSize(bytes.NewReader(data), 16), fd: -1}}
			b := &body{c: c, kind: bodyChunked}
			var out bytes.Buffer
			p := make([]byte, buf)
			for {
				n, err := b.readChunks(p)
				out.Write(p[:n])
				if err != nil {
					return out.Bytes(), err
				}
			}
		}
		got, err := read(int(size) + 1)
		again, err2 := read(1)
		if !bytes.Equal(got, again) || (err == nil) != (err2 == nil) {
			t.Errorf("%q with %d bytes at a time, %q with one", got, size+1, again)
		}
		if !errors.Is(err, io.EOF) {
			return
		}
		want, err := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(data)))
		if err != nil {
			t.Fatalf("we take what net/http refuses: %v", err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%q, net/http %q", got, want)
		}
	})
}
