package api

import (
	"net/http"
	"strings"

	"github.com/perigee-llm/perigee/internal/gateway/keyring"
)

var errNoKey = &Error{Status: http.StatusUnauthorized, Code: "invalid_api_key", Message: "this gateway needs an API key: send it as Authorization: Bearer KEY"}

var errWrongKey = &Error{Status: http.StatusUnauthorized, Code: "invalid_api_key", Message: "this API key is not known here"}

// admit finds out who asks. It returns nil for everybody where no keys are asked for. The challenge of RFC 6750, section 3, is
// put into the answer's header when it fails.
//
// The gateway's key is not the engines' business: it is taken out of the request before anything else sees it, unless the
// configuration says otherwise.
func (v *served) admit(ring *keyring.Ring, w http.ResponseWriter, r *http.Request) (*keyring.Key, *Error) {
	if ring == nil {
		return nil, nil
	}
	presented := r.Header["Authorization"]
	if ring != v.Keys || !v.Settings.ForwardAuthorization {
		delete(r.Header, "Authorization")
	}
	if len(presented) == 0 {
		w.Header().Set("WWW-Authenticate", `Bearer realm="perigee"`)
		return nil, errNoKey
	}
	if token, ok := bearer(presented); ok {
		if k := ring.Find(token); k != nil {
			return k, nil
		}
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="perigee", error="invalid_token"`)
	return nil, errWrongKey
}

// bearer returns the token of an Authorization header that is there once; two would leave open which of them counts.
func bearer(values []string) (string, bool) {
	if len(values) != 1 {
		return "", false
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	return strings.Trim(token, " "), ok && strings.EqualFold(scheme, "bearer")
}

// keyedHandler answers a request whose caller is known; nil stands for one who needs no key.
type keyedHandler func(w http.ResponseWriter, r *http.Request, v *served, caller *keyring.Key)

// keyed lets only those with a key through. ring says which keys count.
func (s *Server) keyed(ring func(*served) *keyring.Ring, h keyedHandler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v := s.current.Load()
		caller, e := v.admit(ring(v), w, r)
		if e != nil {
			s.refuse(w, e)
			return
		}
		h(w, r, v, caller)
	}
}

func publicKeys(v *served) *keyring.Ring { return v.Keys }

func adminKeys(v *served) *keyring.Ring { return v.AdminKeys }

// anyCaller is for handlers to which all callers are the same.
func anyCaller(h http.HandlerFunc) keyedHandler {
	return func(w http.ResponseWriter, r *http.Request, _ *served, _ *keyring.Key) { h(w, r) }
}

// where serves only while the settings have it on; else there is nothing at this path.
func (s *Server) where(on func(*Settings) bool, h http.HandlerFunc) keyedHandler {
	return func(w http.ResponseWriter, r *http.Request, v *served, _ *keyring.Key) {
		if !on(&v.Settings) {
			s.refuse(w, errNotFound)
			return
		}
		h(w, r)
	}
}
