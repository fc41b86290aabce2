package gateway

import (
	"bytes"
	"testing"
)

// FuzzRefused holds that only what has the whole form of one of net/http's refusals is taken for one, and is then a 4xx or 5xx.
func FuzzRefused(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 400 Bad Request" + plainHead + "400 Bad Request", "HTTP/1.1 400 Bad Request: malformed Host header" + plainHead, "HTTP/1.1 431 x" + plainHead,
		"HTTP/1.1 501 x" + plainHead, "HTTP/1.1 505 x" + plainHead, expectationHead, notTLS, "HTTP/1.1 400 Bad Request\r\nDate: x\r\n\r\n", "HTTP/1.1 4", "",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		e := refused(p)
		if e == nil {
			return
		}
		if e.Status < 400 || e.Status > 599 || e.Code == "" {
			t.Errorf("%q is a %d %s", p, e.Status, e.Code)
		}
		if !bytes.Contains(p, []byte(plainHead)) && !bytes.HasPrefix(p, []byte(expectationHead)) && string(p) != notTLS {
			t.Errorf("%q was taken for a refusal", p)
		}
	})
}
