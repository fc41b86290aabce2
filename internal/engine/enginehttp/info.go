package enginehttp

import (
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
)

// The versions whose HTTP interfaces the flavors have.
const (
	vllmVersion   = "0.32.0"
	sglangVersion = "0.5.23"
)

// routes returns the flavor's endpoints.
func (s *Server) routes() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("POST /v1/chat/completions", s.chat)
	m.HandleFunc("POST /v1/completions", s.completions)
	get := func(path string, h http.HandlerFunc) { m.HandleFunc("GET "+path, s.faulty(h)) }
	both := func(path string, h http.HandlerFunc) { get(path, h); m.HandleFunc("POST "+path, s.faulty(h)) }
	get("/v1/models", s.models)
	get("/health", empty)
	m.HandleFunc("POST /tokenize", s.faulty(s.tokenize))
	m.HandleFunc("POST /detokenize", s.faulty(s.detokenize))
	if s.opt.Flavor == SGLang {
		get("/health_generate", empty)
		get("/metrics", s.sglangMetrics)
		get("/server_info", s.sglangServerInfo)
		get("/get_server_info", s.sglangServerInfo)
		get("/model_info", s.modelInfo)
		get("/get_model_info", s.modelInfo)
		get("/v1/loads", s.loads)
		both("/flush_cache", s.flushCache)
		m.HandleFunc("POST /abort_request", s.faulty(s.abortRequest))
		m.HandleFunc("POST /generate", s.generate)
		m.HandleFunc("PUT /generate", s.generate)
	} else {
		both("/ping", empty)
		get("/version", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, map[string]string{"version": vllmVersion}) })
		get("/load", func(w http.ResponseWriter, _ *http.Request) {
			writeJSON(w, map[string]int{"server_load": s.load().Running + s.load().Waiting})
		})
		get("/metrics", s.vllmMetrics)
		get("/kv_event_sources", s.kvEventSources)
		if s.opt.DevMode {
			get("/server_info", s.vllmServerInfo)
			m.HandleFunc("POST /reset_prefix_cache", s.faulty(s.resetPrefixCache))
		}
	}
	m.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"detail":"Not Found"}`)) // FastAPI's own answer in both engines
	})
	return m
}

// faulty lets the faults meet requests that do not generate.
func (s *Server) faulty(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		f := s.faults.next(r.URL.Path, false)
		handled, err := f.before(w, r, s)
		if err != nil {
			panic(http.ErrAbortHandler) // nothing was answered
		}
		if !handled {
			h(w, r)
		}
	}
}

func empty(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }

func writeJSON(w http.ResponseWriter, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // only values that have a JSON form are passed
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b) // a client that has left needs no answer
}

// load returns the core's load with the lies that were asked for.
func (s *Server) load() engine.Load {
	var l engine.Load
	_ = s.owner.do(func() { l = s.owner.core.Load() })
	return s.lie(l)
}

func (s *Server) lie(l engine.Load) engine.Load {
	lies := s.faults.lies()
	if lies == nil {
		return l
	}
	for _, x := range []struct {
		lie   *int
		field *int
	}{
		{lies.Running, &l.Running}, {lies.Waiting, &l.Waiting}, {lies.WaitingUncachedTokens, &l.WaitingUncachedTokens},
		{lies.UsedTokens, &l.UsedTokens}, {lies.TotalTokens, &l.TotalTokens}, {lies.CapacityTokens, &l.CapacityTokens},
	} {
		if x.lie != nil {
			*x.field = *x.lie
		}
	}
	return l
}

// usage is the fraction of the KV pool in use, or the lie about it.
func (s *Server) usage(l engine.Load) float64 {
	if lies := s.faults.lies(); lies != nil && lies.Usage != nil {
		return *lies.Usage
	}
	return l.Usage()
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	type card struct {
		ID         string            `json:"id"`
		Object     string            `json:"object"`
		Created    int64             `json:"created"`
		OwnedBy    string            `json:"owned_by"`
		Root       string            `json:"root"`
		Parent     *string           `json:"parent"`
		MaxLen     int               `json:"max_model_len"`
		Permission []json.RawMessage `json:"permission,omitempty"`
	}
	list := struct {
		Object string `json:"object"`
		Data   []card `json:"data"`
	}{Object: "list"}
	for _, id := range s.opt.Models {
		list.Data = append(list.Data, card{
			ID: id, Object: "model", Created: s.started.Unix(), OwnedBy: string(s.opt.Flavor), Root: id, MaxLen: s.owner.cfg.MaxModelLen,
		})
	}
	writeJSON(w, list)
}

func (s *Server) modelInfo(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, map[string]any{
		"model_path": s.opt.Models[0], "tokenizer_path": s.opt.Models[0], "is_generation": true, "preferred_sampling_params": nil,
		"weight_version": "default", "has_image_understanding": false, "has_audio_understanding": false, "model_type": "simulated",
	})
}

// sglangServerInfo answers with the part of SGLang's 556 keys that a router can use. The kv_events block is there only if the engine
// publishes events.
func (s *Server) sglangServerInfo(w http.ResponseWriter, _ *http.Request) {
	cfg := s.owner.cfg
	host, port, _ := net.SplitHostPort(s.addr) // empty for a listener without ports
	n, _ := strconv.Atoi(port)                 // then 0
	l := s.load()
	info := map[string]any{
		"model_path": s.opt.Models[0], "tokenizer_path": s.opt.Models[0], "served_model_name": s.opt.Models[0],
		"host": host, "port": n, "status": "ready", "version": sglangVersion,
		"disaggregation_mode": s.mode(), "disaggregation_bootstrap_port": s.bootstrapPort(),
		"context_length": cfg.MaxModelLen, "max_req_input_len": cfg.MaxModelLen - 1,
		"page_size": cfg.BlockSize, "max_total_num_tokens": cfg.BlockSize * cfg.KVBlocks, "max_running_requests": cfg.MaxRunning,
		"max_queued_requests": cfg.MaxWaiting, "max_prefill_tokens": cfg.MaxBatchTokens, "chunked_prefill_size": cfg.MaxBatchTokens,
		"schedule_policy": "fcfs", "disable_radix_cache": false, "speculative_algorithm": nil, "random_seed": cfg.Seed,
		"tp_size": 1, "dp_size": 1, "pp_size": 1, "ep_size": 1, "device": "simulated",
		"enable_cache_report": !s.opt.HideCached, "enable_metrics": true, "kv_events_config": nil, "load_publish_endpoint": nil,
		"internal_states": []map[string]any{{
			"last_gen_throughput": s.throughput(), "effective_max_running_requests_per_dp": cfg.MaxRunning,
			"memory_usage": map[string]any{"token_capacity": l.CapacityTokens},
		}},
	}
	s.addKVEvents(info)
	writeJSON(w, info)
}

// mode is the engine's role as SGLang names it.
func (s *Server) mode() string {
	if r := s.opt.role(); r != "" {
		return string(r)
	}
	return "null"
}

func (s *Server) bootstrapPort() int {
	switch s.opt.role() {
	case Prefill:
		return s.BootstrapPort()
	case Decode:
		return s.opt.Pair.BootstrapPort
	}
	return defaultBootstrapPort
}

// preallocating is how many requests of a decode engine wait for their blocks.
func (s *Server) preallocating(l engine.Load) int {
	if s.opt.role() != Decode {
		return 0
	}
	return max(0, l.Waiting-l.Fetching)
}

// addKVEvents adds where the events are, as SGLang says it: once as it was configured, and once as it came out.
func (s *Server) addKVEvents(info map[string]any) {
	if s.kv == nil || s.opt.KVEvents.Connect != "" {
		return
	}
	at := s.kv.endpoints()
	config := map[string]any{"publisher": "zmq", "endpoint": at.events, "topic": s.opt.KVEvents.Topic}
	block := map[string]any{
		"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": port(at.events), "topic": s.opt.KVEvents.Topic,
		"block_size": s.owner.cfg.BlockSize, "dp_size": 1,
	}
	if !s.opt.KVEvents.NoReplay {
		config["replay_endpoint"] = at.replay
	}
	if !s.opt.KVEvents.NoLoad {
		block["load_endpoint_port_base"], block["load_topic"] = port(at.load), loadTopic
		info["load_publish_endpoint"] = "auto"
	}
	text, _ := json.Marshal(config) // strings only
	info["kv_events_config"], info["kv_events"] = string(text), block
}

// kvEventSources serves vLLM's /kv_event_sources: the configuration of each rank's publisher. Without one it is an empty object.
func (s *Server) kvEventSources(w http.ResponseWriter, _ *http.Request) {
	sources := map[string]any{}
	if s.kv != nil {
		at := s.kv.endpoints()
		rank := map[string]any{
			"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": at.events, "replay_endpoint": nil,
			"buffer_steps": s.opt.KVEvents.BufferSteps, "hwm": highWater, "max_queue_size": highWater, "topic": s.opt.KVEvents.Topic,
		}
		if s.opt.KVEvents.Connect != "" {
			rank["endpoint"] = s.opt.KVEvents.Connect
		}
		if !s.opt.KVEvents.NoReplay {
			rank["replay_endpoint"] = at.replay
		}
		sources["0"] = rank
	}
	writeJSON(w, sources)
}

func (s *Server) throughput() (v float64) {
	_ = s.owner.do(func() { v = s.owner.metrics.rate.perSecond(s.owner.now()) })
	return v
}

func (s *Server) vllmServerInfo(w http.ResponseWriter, _ *http.Request) {
	cfg := s.owner.cfg
	writeJSON(w, map[string]any{"vllm_config": map[string]any{
		"model_config":     map[string]any{"model": s.opt.Models[0], "max_model_len": cfg.MaxModelLen},
		"cache_config":     map[string]any{"block_size": cfg.BlockSize, "num_gpu_blocks": cfg.KVBlocks, "enable_prefix_caching": true},
		"scheduler_config": map[string]any{"max_num_seqs": cfg.MaxRunning, "max_num_batched_tokens": cfg.MaxBatchTokens},
	}})
}

// loads serves /v1/loads. include picks sections: core alone, or memory, disagg, queues, or all; without it all are given, as the
// engine that we compare with does.
func (s *Server) loads(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if dp := q.Get("dp_rank"); dp != "" && dp != "0" {
		s.fail(w, http.StatusBadRequest, "dp_rank", "the engine has only rank 0")
		return
	}
	l, now := s.load(), time.Now()
	hit := l.HitRate()
	rank := map[string]any{
		"timestamp": float64(now.UnixNano()) / 1e9, "dp_rank": 0,
		"num_running_reqs": l.Running, "num_waiting_reqs": l.Waiting, "num_waiting_uncached_tokens": l.WaitingUncachedTokens,
		"num_used_tokens": l.UsedTokens, "num_total_tokens": l.TotalTokens, "num_active_tokens": l.UsedTokens, "num_prealloc_ready_tokens": 0,
		"max_total_num_tokens": l.CapacityTokens, "max_running_requests": l.MaxRunning, "token_usage": s.usage(l),
		"gen_throughput": s.throughput(), "cache_hit_rate": hit, "utilization": float64(l.Running) / float64(max(l.MaxRunning, 1)),
		"total_prefill_uncached_tokens": l.PrefillUncachedTokens, "total_prefill_busy_us": l.PrefillBusy.Microseconds(),
	}
	include := strings.Split(q.Get("include"), ",")
	want := func(section string) bool {
		return include[0] == "" || slices.Contains(include, section) || slices.Contains(include, "all")
	}
	if want("memory") {
		rank["memory"] = map[string]any{"weight_gb": 0.0, "kv_cache_gb": 0.0, "graph_gb": 0.0, "token_capacity": l.CapacityTokens}
	}
	if want("disagg") {
		rank["disaggregation"] = map[string]any{
			"mode": s.mode(), "prefill_bootstrap_queue_reqs": l.Meeting, "prefill_inflight_queue_reqs": l.Held,
			"decode_prealloc_queue_reqs": s.preallocating(l), "decode_transfer_queue_reqs": l.Fetching, "decode_retracted_queue_reqs": 0, "kv_transfer_speed_gb_s": 0.0, "kv_transfer_latency_ms": 0.0,
		}
	}
	if want("queues") {
		rank["queues"] = map[string]any{"waiting": l.Waiting, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0}
	}
	writeJSON(w, map[string]any{
		"timestamp": now.UTC().Format("2006-01-02T15:04:05.000000-07:00"), "version": sglangVersion,
		"accelerator": nil, "num_accelerators": 1, "loads": []any{rank},
	})
}

func (s *Server) flushCache(w http.ResponseWriter, _ *http.Request) {
	ok := s.resetCache()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if !ok {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte("Flush cache failed: there are running or waiting requests.\n"))
		return
	}
	_, _ = w.Write([]byte("Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, the operation will not be performed.)\n"))
}

func (s *Server) resetPrefixCache(w http.ResponseWriter, _ *http.Request) {
	if !s.resetCache() {
		s.fail(w, http.StatusInternalServerError, "", "requests are running")
	}
}

func (s *Server) resetCache() (ok bool) {
	_ = s.owner.do(func() { ok = s.owner.core.ResetPrefixCache(s.owner.now()) })
	return ok
}

// abortRequest serves SGLang's /abort_request. Like the engine it answers 200 whether or not there was such a request.
func (s *Server) abortRequest(w http.ResponseWriter, r *http.Request) {
	var body struct {
		RID      string `json:"rid"`
		AbortAll bool   `json:"abort_all"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&body); err != nil {
		s.failBody(w, err)
		return
	}
	s.owner.abortRID(body.RID, body.AbortAll)
	w.WriteHeader(http.StatusOK)
}

func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	body := &genBody{}
	if err := readBody(w, r, body); err != nil {
		s.failBody(w, err)
		return
	}
	var ids [][]uint32
	if len(body.Messages) > 0 {
		msgs := make([]engine.Message, len(body.Messages))
		for i, m := range body.Messages {
			msgs[i] = engine.Message{Role: m.Role, Content: string(m.Content)}
		}
		ids = [][]uint32{engine.AppendChat(nil, msgs)}
	} else {
		var err error
		if ids, err = body.prompts(body.Prompt, "prompt"); err != nil || len(ids) == 0 {
			s.fail(w, http.StatusBadRequest, "prompt", "prompt is neither text nor a list of texts")
			return
		}
	}
	out := map[string]any{"max_model_len": s.owner.cfg.MaxModelLen}
	if len(ids) == 1 {
		out["tokens"], out["count"] = ids[0], len(ids[0])
	} else { // SGLang takes a list
		counts := make([]int, len(ids))
		for i := range ids {
			counts[i] = len(ids[i])
		}
		out["tokens"], out["count"] = ids, counts
	}
	if s.opt.Flavor == VLLM {
		out["token_strs"] = nil
	}
	writeJSON(w, out)
}

func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Tokens []uint32 `json:"tokens"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&body); err != nil {
		s.failBody(w, err)
		return
	}
	var text []byte
	for _, t := range body.Tokens {
		text = engine.AppendText(text, t)
	}
	name := "prompt"
	if s.opt.Flavor == SGLang {
		name = "text"
	}
	writeJSON(w, map[string]string{name: string(text)})
}
