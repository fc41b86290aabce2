package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/load"
	"github.com/perigee-llm/perigee/internal/trace"
)

// vocabulary is that of Llama 3, so that the token ids in the requests are as long as real ones.
const vocabulary = 128256

// bodiesAhead is how many request bodies are written before they are due: a second's worth at a hundred requests a
// second would be 7 MB; a few are enough to keep the writing out of the sender's way.
const bodiesAhead = 8

// maxEvent bounds one line of an answer, in bytes. A chunk has one token; errors are sentences.
const maxEvent = 64 << 10

// player is the client: it sends requests when the trace says, whether or not earlier ones were answered.
type player struct {
	transport http.RoundTripper
	url       string // of the gateway
	speed     float64
}

// outcome is what became of one request. Times are wall times from when the request was due.
type outcome struct {
	late time.Duration // until it was sent
	// ttft is the time to the first token; no answer began if it is 0.
	ttft                       time.Duration
	prompt, cached, completion load.Count
	err                        error
}

// Errors of a request, for the report's classes. What the gateway answered is a *statusError.
var (
	errBroken  = errors.New("the stream broke off")
	errWrong   = errors.New("the answer does not have the tokens that were asked for")
	errNotSent = errors.New("not sent: the run was ended")
)

type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string { return fmt.Sprintf("status %d: %s", e.status, e.text) }

// play replays the requests and returns what became of each, in their order, when all have ended. done is called for each
// at its end, from several goroutines.
func (p *player) play(ctx context.Context, reqs []trace.Request, done func(*outcome)) []outcome {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	outcomes := make([]outcome, len(reqs))
	for i := range outcomes {
		outcomes[i].err = errNotSent
	}
	bodies := make(chan []byte, bodiesAhead)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { writeBodies(ctx, reqs, bodies) })

	var start time.Time
	for i := range reqs {
		var body []byte
		select {
		case body = <-bodies:
		case <-ctx.Done():
			return outcomes
		}
		if i == 0 {
			start = time.Now() // with the first body at hand
		}
		due := start.Add(time.Duration(float64(reqs[i].Arrival-reqs[0].Arrival) / p.speed))
		if !sleepUntil(ctx, due) {
			return outcomes
		}
		wg.Go(func() {
			o := &outcomes[i]
			p.send(ctx, i+1, body, due, o)
			if n, ok := o.completion.Get(); o.err == nil && (!ok || n != int64(reqs[i].OutputTokens)) {
				o.err = errWrong
			}
			done(o)
		})
	}
	wg.Wait()
	return outcomes
}

func sleepUntil(ctx context.Context, due time.Time) bool {
	t := time.NewTimer(time.Until(due))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// writeBodies writes the requests' bodies in order, a few ahead of the sender.
func writeBodies(ctx context.Context, reqs []trace.Request, bodies chan<- []byte) {
	var tokens []uint32
	for i := range reqs {
		tokens = trace.Tokens(tokens[:0], reqs[i], vocabulary)
		select {
		case bodies <- requestBody(tokens, reqs[i].OutputTokens):
		case <-ctx.Done():
			return
		}
	}
}

// requestBody writes a completion request with a prompt of token ids.
func requestBody(tokens []uint32, answer int) []byte {
	b := make([]byte, 0, 160+7*len(tokens)) // six digits and a comma each
	b = append(b, `{"model":"`+Model+`","stream":true,"stream_options":{"include_usage":true},"max_tokens":`...)
	b = strconv.AppendInt(b, int64(answer), 10)
	b = append(b, `,"prompt":[`...)
	for i, t := range tokens {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(t), 10)
	}
	return append(b, "]}"...)
}

// requestID names the n-th request, from 1, in the gateway's decision log.
func requestID(n int) string { return "demo-" + strconv.Itoa(n) }

// send makes one request and reads its answer.
func (p *player) send(ctx context.Context, n int, body []byte, due time.Time, o *outcome) {
	o.late = time.Since(due)
	o.err = func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+"/v1/completions", bytes.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Request-Id", requestID(n))
		res, err := p.transport.RoundTrip(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			text, err := io.ReadAll(io.LimitReader(res.Body, maxEvent))
			return errors.Join(&statusError{res.StatusCode, string(bytes.TrimSpace(text))}, err)
		}
		return readAnswer(res.Body, due, o)
	}()
}

// readAnswer reads a stream of server-sent events to its end mark.
func readAnswer(r io.Reader, due time.Time, o *outcome) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 4<<10), maxEvent)
	ended := false
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		switch {
		case bytes.Equal(data, []byte("[DONE]")):
			ended = true
		case bytes.HasPrefix(data, []byte(`{"error"`)):
			return fmt.Errorf("%w: %s", errBroken, data)
		default:
			if o.ttft == 0 {
				o.ttft = time.Since(due)
			}
			// Text is escaped in JSON: these bytes cannot be part of an answer's text.
			if bytes.Contains(data, []byte(`"usage":{`)) {
				if err := readUsage(data, o); err != nil {
					return err
				}
			}
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%w: %w", errBroken, err)
	}
	if !ended {
		return errBroken
	}
	return nil
}

func readUsage(data []byte, o *outcome) error {
	var chunk struct {
		Usage struct {
			Prompt     load.Count `json:"prompt_tokens"`
			Completion load.Count `json:"completion_tokens"`
			Details    struct {
				Cached load.Count `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(data, &chunk); err != nil {
		return fmt.Errorf("usage: %w", err)
	}
	o.prompt, o.completion, o.cached = chunk.Usage.Prompt, chunk.Usage.Completion, chunk.Usage.Details.Cached
	return nil
}
