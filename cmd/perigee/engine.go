package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/engine/enginehttp"
)

// engineCmd runs simulated engines until a signal ends it. Flags whose zero means "the default" say so in their help.
type engineCmd struct {
	Host   string `default:"127.0.0.1" help:"Address to listen on. The engines ask nobody who they are: keep it on loopback."`
	Port   int    `default:"0" help:"Port of the first engine; the others follow. 0: any free ports, printed."`
	Count  int    `default:"1" help:"How many engines to run."`
	Flavor string `default:"vllm" enum:"vllm,sglang" help:"Whose HTTP interface they have: ${enum}."`

	Model []string `default:"perigee-sim" placeholder:"ID" help:"Model id that they serve; repeat it for several."`

	KVBlocks       int `name:"kv-blocks" help:"Blocks in the KV pool. 0: 32768."`
	BlockSize      int `help:"Tokens a block. 0: 16."`
	MaxRunning     int `help:"Requests in a batch. 0: 256."`
	MaxWaiting     int `help:"Requests that may wait; beyond, 503. 0: 1000."`
	MaxBatchTokens int `help:"Tokens computed in one step. 0: 8192."`
	MaxModelLen    int `help:"Tokens of prompt and answer. 0: 131072, or the pool's capacity if that is less."`
	PageBytes      int `help:"Bytes that stand for a block's KV page, checked at each reuse. 0: none."`

	Speed           float64       `default:"1" help:"Divides all times: 10 is an engine ten times as fast."`
	StepFixed       time.Duration `help:"Time of a step whatever is in it. 0: 20ms; negative: none."`
	PrefillPerToken time.Duration `help:"Time of a prompt token. 0: 125us; negative: none."`
	DecodePerSeq    time.Duration `help:"Time of each sequence in a decode step. 0: 125us; negative: none."`
	PerKVToken      time.Duration `name:"per-kv-token" help:"Time to read a context token in a decode step. 0: 20ns; negative: none."`
	RestoreFixed    time.Duration `help:"Time of a restore from a Cache Manager, whatever its length. 0: 1ms; negative: none."`
	RestorePerToken time.Duration `help:"Time of a token that is restored. 0: 2us; negative: none."`
	Seed            uint64        `help:"Seed of the answers."`

	KVEvents     bool   `name:"kv-events" help:"Publish what the prefix cache stores and evicts over ZeroMQ, with replay; as sglang, the load too. /server_info or /kv_event_sources say where."`
	KVEventsPort int    `name:"kv-events-port" help:"Port of the first engine's events; each engine takes three, for events, replay and load. 0: any free ports."`
	KVTopic      string `name:"kv-events-topic" help:"Topic of the events."`

	CacheManager string `placeholder:"SOCKET" help:"Socket of a Cache Manager (perigee cache): blocks are published there, and restored from there where the engine's own cache lacks them. Sets --page-bytes to 4096 if it is not given."`

	Role           string        `placeholder:"ROLE" help:"Half of separated pairs: prefill or decode. As sglang they meet in bootstrap rooms, as vllm by kv_transfer_params."`
	BootstrapPort  int           `help:"Prefill: port of the first engine's rooms, SGLang's bootstrap port and vLLM's side channel; the others follow; 0: any free ports. Decode: where a request names none. 0: 8998."`
	MeetFor        time.Duration `help:"As sglang, how long one half of a pair waits for the other at the prefill engine. 0: 300s."`
	HoldFor        time.Duration `help:"How long a prefill engine holds KV that is not taken. 0: 30s as vllm, 300s as sglang."`
	FetchFor       time.Duration `help:"How long a decode engine waits for its KV. 0: 300s."`
	TransferFixed  time.Duration `help:"Time of a transfer of KV to a decode engine, whatever its length. 0: 1ms; negative: none."`
	TransferPerTok time.Duration `name:"transfer-per-token" help:"Time of a token that is transferred. 0: 1us; negative: none."`

	HideCached bool `help:"Leave prompt_tokens_details null, as real engines do unless asked."`
	DevMode    bool `help:"vLLM: serve /server_info and /reset_prefix_cache, as with VLLM_SERVER_DEV_MODE=1."`
	Control    bool `help:"Serve the fault interface, /_control, on a second port of each engine."`
	JSON       bool `name:"json" help:"Print one JSON object instead of a line an engine."`
}

// Help is the example that --help shows.
func (engineCmd) Help() string {
	return `Example:

  perigee engine --count 2 --port 9001 --flavor sglang --model llama-3.1-8b --control
  curl -s http://127.0.0.1:9001/v1/completions -d '{"model":"llama-3.1-8b","prompt":"Hello","max_tokens":4}'

docs/simulated-engine.md says what the engines model and what not.`
}

// Run starts the engines, prints where they are, and waits for SIGINT or SIGTERM.
func (c *engineCmd) Run(rc *runContext) error {
	if c.Count < 1 || c.Port < 0 || c.Port+c.Count-1 > 65535 {
		return exitError{exitUsage, "engine: --count must be at least 1 and all ports between 0 and 65535"}
	}
	if c.KVEventsPort < 0 || c.KVEventsPort+3*c.Count-1 > 65535 {
		return exitError{exitUsage, "engine: --kv-events-port and three ports for each engine must be between 0 and 65535"}
	}
	if c.BootstrapPort < 0 || c.BootstrapPort+c.Count-1 > 65535 {
		return exitError{exitUsage, "engine: --bootstrap-port and the ports after it must be between 0 and 65535"}
	}
	opt := c.options()
	if err := opt.Validate(); err != nil {
		return exitError{exitUsage, err.Error()}
	}
	ctx, stop := signal.NotifyContext(rc.ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	servers, err := c.start(opt)
	defer func() {
		for _, s := range servers {
			s.Close()
		}
	}()
	if err != nil {
		return err
	}
	if err := c.announce(rc.stdout, servers); err != nil {
		return err
	}
	<-ctx.Done()
	if err := ctx.Err(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (c *engineCmd) options() enginehttp.Options {
	return enginehttp.Options{
		Engine: engine.Config{
			BlockSize: c.BlockSize, KVBlocks: c.KVBlocks, PageBytes: c.PageBytes, MaxRunning: c.MaxRunning, MaxWaiting: c.MaxWaiting,
			MaxBatchTokens: c.MaxBatchTokens, MaxModelLen: c.MaxModelLen, Seed: c.Seed,
			MeetFor: c.MeetFor, HoldFor: c.HoldFor, FetchFor: c.FetchFor,
			Timing: engine.Timing{
				StepFixed: c.StepFixed, PrefillPerToken: c.PrefillPerToken, DecodePerSeq: c.DecodePerSeq, PerKVToken: c.PerKVToken,
				RestoreFixed: c.RestoreFixed, RestorePerToken: c.RestorePerToken,
				TransferFixed: c.TransferFixed, TransferPerToken: c.TransferPerTok, Speed: c.Speed,
			},
		},
		Flavor: enginehttp.Flavor(c.Flavor), Models: c.Model, HideCached: c.HideCached, DevMode: c.DevMode,
		Control: c.Control, ControlAddr: net.JoinHostPort(c.Host, "0"), CacheManager: c.cacheManager(),
		Pair: c.pair(0),
	}
}

// cacheManager is the Manager that the engines use, nil for none.
func (c *engineCmd) cacheManager() *enginehttp.CacheManager {
	if c.CacheManager == "" {
		return nil
	}
	return &enginehttp.CacheManager{Socket: c.CacheManager}
}

// pair is the half of pairs that engine i is, nil for neither.
func (c *engineCmd) pair(i int) *enginehttp.Pair {
	if c.Role == "" {
		return nil
	}
	port := 0
	if c.BootstrapPort > 0 {
		port = c.BootstrapPort + i
	}
	return &enginehttp.Pair{Role: enginehttp.Role(c.Role), Addr: net.JoinHostPort(c.Host, strconv.Itoa(port)), BootstrapPort: c.BootstrapPort}
}

// start starts all engines. On an error it returns those that run.
func (c *engineCmd) start(opt enginehttp.Options) (servers []*enginehttp.Server, err error) {
	for i := range c.Count {
		port := 0
		if c.Port > 0 {
			port = c.Port + i
		}
		opt.Addr = net.JoinHostPort(c.Host, strconv.Itoa(port))
		opt.KVEvents = c.kvEvents(i)
		opt.Pair = c.pair(i)
		s, err := enginehttp.Start(opt)
		if err != nil {
			return servers, err
		}
		servers = append(servers, s)
	}
	return servers, nil
}

// kvEvents says where engine i publishes, nil where it does not.
func (c *engineCmd) kvEvents(i int) *enginehttp.KVEvents {
	if !c.KVEvents {
		return nil
	}
	at := func(offset int) string {
		if c.KVEventsPort == 0 {
			return "tcp://" + net.JoinHostPort(c.Host, "*")
		}
		return "tcp://" + net.JoinHostPort(c.Host, strconv.Itoa(c.KVEventsPort+3*i+offset))
	}
	return &enginehttp.KVEvents{Endpoint: at(0), ReplayEndpoint: at(1), LoadEndpoint: at(2), Topic: c.KVTopic}
}

func (c *engineCmd) announce(w io.Writer, servers []*enginehttp.Server) error {
	type where struct {
		URL     string `json:"url"`
		Control string `json:"control,omitempty"`
		Port    int    `json:"bootstrap_port,omitempty"`
	}
	var list []where
	for _, s := range servers {
		list = append(list, where{s.URL(), s.ControlURL(), s.BootstrapPort()})
	}
	if c.JSON {
		return json.NewEncoder(w).Encode(map[string]any{"flavor": c.Flavor, "models": c.Model, "engines": list})
	}
	for i, e := range list {
		line := fmt.Sprintf("engine %d: %s", i, e.URL)
		if e.Control != "" {
			line += " (control " + e.Control + ")"
		}
		if e.Port > 0 {
			line += fmt.Sprintf(" (rooms at port %d)", e.Port)
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}
