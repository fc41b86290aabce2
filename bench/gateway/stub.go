package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
)

const modelID = "stub-model"

// The stub speaks HTTP over plain TCP with answers made in advance: it must cost much less than what is measured.
type stub struct {
	chatJSON, textJSON []byte
	streamHead         []byte
	chatEvent          []byte
	streamEnd          []byte
	chunks             int
	hold               bool // a stream's first event is its last, and it does not end
	others             map[string][]byte
}

func newStub(chunks int) *stub {
	return &stub{
		chunks: chunks,
		chatJSON: answer("200 OK", "application/json", `{"id":"chatcmpl-stub","object":"chat.completion","created":1700000000,"model":"`+modelID+
			`","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":1,"total_tokens":11}}`),
		textJSON: answer("200 OK", "application/json", `{"id":"cmpl-stub","object":"text_completion","created":1700000000,"model":"`+modelID+
			`","choices":[{"index":0,"text":"ok","logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":1,"total_tokens":11}}`),
		streamHead: []byte("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"),
		chatEvent: chunk(`data: {"id":"chatcmpl-stub","object":"chat.completion.chunk","created":1700000000,"model":"` + modelID +
			`","choices":[{"index":0,"delta":{"content":"token "},"logprobs":null,"finish_reason":null}]}` + "\n\n"),
		streamEnd: append(chunk("data: [DONE]\n\n"), "0\r\n\r\n"...),
		// What a vLLM engine says of itself, for gateways that ask.
		others: map[string][]byte{
			"/health":  answer("200 OK", "text/plain", ""),
			"/version": answer("200 OK", "application/json", `{"version":"0.32.0"}`),
			"/v1/models": answer("200 OK", "application/json", `{"object":"list","data":[{"id":"`+modelID+
				`","object":"model","created":1700000000,"owned_by":"vllm","root":"`+modelID+`","parent":null,"max_model_len":131072}]}`),
			"/metrics": answer("200 OK", "text/plain; version=0.0.4",
				"vllm:num_requests_running{engine=\"0\",model_name=\""+modelID+"\"} 0.0\n"+
					"vllm:num_requests_waiting{engine=\"0\",model_name=\""+modelID+"\"} 0.0\n"+
					"vllm:kv_cache_usage_perc{engine=\"0\",model_name=\""+modelID+"\"} 0.0\n"),
			"/v1/loads": answer("200 OK", "application/json",
				`{"dp_rank_count":1,"loads":[{"dp_rank":0,"num_running_reqs":0,"num_waiting_reqs":0,"num_used_tokens":0,"max_total_num_tokens":1000000,"token_usage":0.0}]}`),
		},
	}
}

func answer(status, contentType, body string) []byte {
	return fmt.Appendf(nil, "HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s", status, contentType, len(body), body)
}

func chunk(text string) []byte { return fmt.Appendf(nil, "%x\r\n%s\r\n", len(text), text) }

var notFound = answer("404 Not Found", "application/json", `{"detail":"Not Found"}`)

// stubMain serves until ctx ends. It prints the addresses of its engines, separated by spaces, on one line.
func stubMain(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("stub", flag.ContinueOnError)
	engines := fs.Int("engines", 4, "engines, each on a port of its own")
	chunks := fs.Int("chunks", 64, "events of a streamed answer")
	hold := fs.Bool("hold", false, "streams fall silent after their first event")
	if err := fs.Parse(args); err != nil {
		return err
	}
	s := newStub(*chunks)
	s.hold = *hold
	var addrs []string
	for range *engines {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		addrs = append(addrs, ln.Addr().String())
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				go s.serve(c)
			}
		}()
	}
	fmt.Println(strings.Join(addrs, " "))
	<-ctx.Done()
	return nil
}

// serve answers requests on one connection, one after the other, until it is closed or sends what we do not expect.
func (s *stub) serve(c net.Conn) {
	defer c.Close()
	br := bufio.NewReaderSize(c, 64<<10)
	var body []byte
	for {
		path, length, err := readHead(br)
		if err != nil {
			return
		}
		if cap(body) < length {
			body = make([]byte, length)
		}
		body = body[:length]
		if _, err := io.ReadFull(br, body); err != nil {
			return
		}
		if s.reply(c, path, body) != nil {
			return
		}
	}
}

func (s *stub) reply(c net.Conn, path string, body []byte) error {
	full := s.chatJSON
	switch path {
	case "/v1/chat/completions":
	case "/v1/completions":
		full = s.textJSON
	default:
		out, ok := s.others[path]
		if !ok {
			out = notFound
		}
		_, err := c.Write(out)
		return err
	}
	if !bytes.Contains(body, []byte(`"stream":true`)) {
		_, err := c.Write(full)
		return err
	}
	// Each event is one write, as an engine sends them: merging them would hide what a proxy pays for each.
	if _, err := c.Write(s.streamHead); err != nil {
		return err
	}
	if s.hold {
		_, err := c.Write(s.chatEvent)
		return err
	}
	for range s.chunks {
		if _, err := c.Write(s.chatEvent); err != nil {
			return err
		}
	}
	_, err := c.Write(s.streamEnd)
	return err
}

// readHead reads a request's head. It understands content-length and chunked bodies of nothing: no proxy here sends
// another kind, because the load has content-length.
func readHead(br *bufio.Reader) (path string, length int, err error) {
	line, err := br.ReadSlice('\n')
	if err != nil {
		return "", 0, err
	}
	f := bytes.Fields(line)
	if len(f) != 3 {
		return "", 0, fmt.Errorf("request line %q", line)
	}
	path, _, _ = strings.Cut(string(f[1]), "?")
	for {
		if line, err = br.ReadSlice('\n'); err != nil {
			return "", 0, err
		}
		if len(line) <= 2 {
			return path, length, nil
		}
		name, value, _ := bytes.Cut(line, []byte{':'})
		switch {
		case bytes.EqualFold(name, []byte("content-length")):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return "", 0, err
			}
		case bytes.EqualFold(name, []byte("transfer-encoding")):
			return "", 0, fmt.Errorf("the stub wants content-length, not %q", line)
		}
	}
}
