// Package ask makes one bounded GET to an engine and says in classes why there was no answer: it is what introspection and
// load polling have in common.
//
// It promises that an answer is whole or not seen at all, that no answer makes the gateway hold more than the limit that
// its caller set, and that a connection whose answer was read is used again. It retries nothing. Get may be called at once
// from any goroutine.
package ask

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"

	"github.com/perigee-llm/perigee/internal/gateway/sock"
)

// The classes of a failed question; every error of [Get] is of one of them by errors.Is, or is the caller's own.
var (
	// ErrUnreachable means that no whole answer came: no connection, a broken or cut body, a time-out. It may be worth asking again.
	ErrUnreachable = errors.New("no whole answer")
	// ErrNoConnection is the part of [ErrUnreachable] in which nobody was there to ask: the connection was refused, or there is no such
	// host or way to it. A connection that took too long to be made is none of it: an engine too busy to accept looks the same.
	ErrNoConnection = fmt.Errorf("%w: no connection", ErrUnreachable)
	// ErrShortage is the part of [ErrUnreachable] in which this host had no descriptor, memory or port for a connection. It says nothing of the engine.
	ErrShortage = fmt.Errorf("%w: no connection can be made here", ErrUnreachable)
	// ErrStatus means that the engine answered with a status other than 200; errors.As a [StatusError] tells which.
	ErrStatus = errors.New("refused")
	// ErrMalformed means that the answer was whole, but not what was asked for: asking again gives the same.
	ErrMalformed = errors.New("malformed answer")
	// ErrTooLarge means that the answer was longer than any that the question can have.
	ErrTooLarge = errors.New("answer too large")
)

// StatusError is an answer with a status other than 200. It is of the class [ErrStatus].
type StatusError struct {
	// Code is the HTTP status.
	Code int
}

func (e *StatusError) Error() string { return fmt.Sprintf("status %d", e.Code) }

// Is tells whether target is [ErrStatus].
func (e *StatusError) Is(target error) bool { return target == ErrStatus }

// Absent tells whether err says that the engine does not know the path or the method: what was asked for is not there, and
// nothing is broken.
func Absent(err error) bool {
	var s *StatusError
	return errors.As(err, &s) && (s.Code == http.StatusNotFound || s.Code == http.StatusMethodNotAllowed || s.Code == http.StatusNotImplemented)
}

// Retryable tells whether the same question may get another answer in a moment.
func Retryable(err error) bool {
	var s *StatusError
	if errors.As(err, &s) {
		return s.Code >= 500 && s.Code != http.StatusNotImplemented
	}
	return errors.Is(err, ErrUnreachable)
}

// Malformed returns an error of the class [ErrMalformed] that says what is wrong.
func Malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

const (
	// keepBuffer bounds the buffers that wait for their next use: a vLLM metrics page of one rank has 55 KiB, and an
	// exceptional page must not stay with us.
	keepBuffer = 1 << 20
	// drain is how much of a refusal is read so that its connection can be used again. FastAPI's refusals have under 100 bytes.
	drain = 4 << 10
)

var buffers = sync.Pool{New: func() any { return new([]byte) }}

// Get asks url and hands the whole body of a 200 to use, whose error it returns as it is. The body has at most limit bytes
// and is valid until use returns. accept is the Accept header.
//
// Compression is declined: an engine's pages are asked for every second over a fast network, and packing them would cost
// both sides more than sending them.
//
// The client should refuse redirects: an engine has no business sending the gateway elsewhere.
func Get(ctx context.Context, client *http.Client, url, accept string, limit int, use func(body []byte) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	req.Header["Accept"] = []string{accept}
	req.Header["Accept-Encoding"] = []string{"identity"}
	req.Header["User-Agent"] = userAgent
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("%w: %w", unreached(err), err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		_, _ = io.CopyN(io.Discard, resp.Body, drain) // a longer refusal costs its connection, nothing else
		return &StatusError{Code: resp.StatusCode}
	}
	if resp.ContentLength > int64(limit) {
		return fmt.Errorf("%w: %d bytes announced, at most %d expected", ErrTooLarge, resp.ContentLength, limit)
	}
	buf := buffers.Get().(*[]byte)
	defer func() {
		if cap(*buf) <= keepBuffer {
			buffers.Put(buf)
		}
	}()
	*buf, err = readAll((*buf)[:0], resp.Body, limit)
	if err != nil {
		return err
	}
	return use(*buf)
}

// unreached returns the class of an error that came in place of an answer.
func unreached(err error) error {
	if sock.Shortage(err) {
		return ErrShortage
	}
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" && !dial.Timeout() {
		return ErrNoConnection
	}
	return ErrUnreachable
}

var userAgent = []string{"perigee"} // shared by all requests: the transport only reads it

func readAll(b []byte, r io.Reader, limit int) ([]byte, error) {
	for {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		// One byte more than the limit is read, to tell an answer of just that length from a longer one.
		n, err := r.Read(b[len(b):min(cap(b), limit+1)])
		b = b[:len(b)+n]
		switch {
		case len(b) > limit:
			return b, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)
		case err == io.EOF:
			return b, nil
		case err != nil:
			return b, fmt.Errorf("%w: %w", ErrUnreachable, err)
		}
	}
}
