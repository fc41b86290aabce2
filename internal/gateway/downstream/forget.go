package downstream

import (
	"net/http"
	"strings"
)

// fieldBytes is what a field of a head has in memory beside its text: its place in the list, in that of values and in the map, which has room for twice as many.
const fieldBytes = 256

// LongHead returns about what the request's head has in memory, in bytes, if that is more than a connection keeps of one for its next request; else 0.
func (w *response) LongHead() int64 {
	h := &w.c.head
	if !h.long() {
		return 0
	}
	return int64(len(h.text)) + fieldBytes*int64(len(h.fields))
}

func (h *head) long() bool { return len(h.text) > keptHead || len(h.fields) > keptFields }

// ForgetHead lets the request's head go if it is a long one: its header is empty then, and so is its query. It is for a handler that has read all it wants and
// answers for long. r is what the handler was called with.
func (w *response) ForgetHead(r *http.Request) {
	c := w.c
	if !c.head.long() {
		return
	}
	c.head, c.header = head{}, http.Header{}
	u := r.URL
	u.Path, u.RawPath, u.RawQuery, u.Opaque, u.Fragment, u.RawFragment, u.User = strings.Clone(u.Path), "", "", "", "", "", nil
	u.Scheme, u.Host = strings.Clone(u.Scheme), strings.Clone(u.Host)
	r.Method, r.Host, r.RequestURI, r.Header = strings.Clone(r.Method), strings.Clone(r.Host), "", c.header
}
