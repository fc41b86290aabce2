package enginehttp

import (
	"fmt"
	"net/http"

	"github.com/perigee-llm/perigee/internal/engine"
)

// vllmMetrics serves the part of vLLM's page that a router or a dashboard reads. Names, kinds, labels and bucket bounds are the real
// page's, except that the "_created" samples are left out.
func (s *Server) vllmMetrics(w http.ResponseWriter, _ *http.Request) {
	p := &page{prefix: "vllm:", labels: `engine="0",model_name="` + s.opt.Models[0] + `"`}
	_ = s.owner.do(func() { s.writeVLLM(p, s.lie(s.owner.core.Load()), &s.owner.metrics) })
	writePage(w, p)
}

func (s *Server) writeVLLM(p *page, l engine.Load, m *metrics) {
	p.one("gauge", "num_requests_running", "Number of requests in model execution batches.", float64(l.Running))
	p.one("gauge", "num_requests_waiting", "Number of requests waiting to be processed.", float64(l.Waiting))
	p.head("num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.")
	p.sample("num_requests_waiting_by_reason", `reason="capacity"`, float64(l.Waiting-l.Restoring-l.Fetching))
	p.sample("num_requests_waiting_by_reason", `reason="deferred"`, float64(l.Restoring+l.Fetching))
	p.one("gauge", "kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", s.usage(l))
	p.one("counter", "prefix_cache_queries_total", "Prefix cache queries, in terms of number of queried tokens.", float64(l.CacheQueryTokens))
	p.one("counter", "prefix_cache_hits_total", "Prefix cache hits, in terms of number of cached tokens.", float64(l.CacheHitTokens))
	p.one("counter", "external_prefix_cache_queries_total", "External prefix cache queries from KV connector cross-instance cache sharing, in terms of number of queried tokens.", float64(l.LookupTokens+l.FetchedTokens))
	p.one("counter", "external_prefix_cache_hits_total", "External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of cached tokens.", float64(l.RestoredTokens+l.FetchedTokens))
	p.one("counter", "num_preemptions_total", "Cumulative number of preemption from the engine.", float64(l.Preemptions))
	p.one("counter", "prompt_tokens_total", "Number of prefill tokens processed.", float64(l.PromptTokens))
	p.one("counter", "prompt_tokens_cached_total", "Number of cached prompt tokens (local + external).", float64(l.CacheHitTokens+l.RestoredTokens+l.FetchedTokens))
	p.one("counter", "generation_tokens_total", "Number of generation tokens processed.", float64(l.OutputTokens))
	p.head("request_success_total", "counter", "Count of successfully processed requests.")
	// A real vLLM leaves "abort" at 0 when a client has left; so does this.
	for _, x := range []struct {
		reason string
		n      int64
	}{{"stop", 0}, {"length", m.byLength}, {"abort", 0}, {"error", m.failed}, {"repetition", 0}} {
		p.sample("request_success_total", `finished_reason="`+x.reason+`"`, float64(x.n))
	}
	p.histogram("request_prompt_tokens", "Number of prefill tokens processed.", &m.prompt)
	p.histogram("request_generation_tokens", "Number of generation tokens processed.", &m.output)
	p.histogram("request_params_max_tokens", "Histogram of the max_tokens request parameter.", &m.maxTokens)
	p.histogram("time_to_first_token_seconds", "Histogram of time to first token in seconds.", &m.ttft)
	p.histogram("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", &m.itl)
	p.histogram("request_time_per_output_token_seconds", "Histogram of time_per_output_token_seconds per request.", &m.tpot)
	p.histogram("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", &m.e2e)
	p.histogram("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", &m.queue)
	p.histogram("request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", &m.inference)
	p.histogram("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", &m.prefill)
	p.histogram("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", &m.decode)
	if s.opt.Pair != nil { // a real page has these with a NIXL connector only
		p.one("counter", "nixl_num_failed_transfers_total", "Number of failed NIXL KV Cache transfers.", float64(l.Unfetched))
		p.one("counter", "nixl_num_kv_expired_reqs_total", "Number of requests whose KV Cache expired before it was read.", float64(l.RoomsExpired))
	}
	p.labels = fmt.Sprintf(`block_size="%d",cache_dtype="auto",enable_prefix_caching="True",engine="0",kv_cache_size_tokens="%d",num_cpu_blocks="None",num_gpu_blocks="%d",num_gpu_blocks_override="None"`,
		s.owner.cfg.BlockSize, l.CapacityTokens, s.owner.cfg.KVBlocks)
	p.one("gauge", "cache_config_info", "Information of the LLMEngine CacheConfig", 1)
}

// sglangMetrics serves what SGLang does with --enable-metrics, as far as a router or a dashboard reads it.
func (s *Server) sglangMetrics(w http.ResponseWriter, _ *http.Request) {
	p := &page{prefix: "sglang:", labels: `engine_type="` + s.engineType() + `",model_name="` + s.opt.Models[0] + `",pp_rank="0",tp_rank="0"`}
	_ = s.owner.do(func() {
		l, m := s.lie(s.owner.core.Load()), &s.owner.metrics
		hit := l.HitRate()
		p.one("gauge", "num_running_reqs", "The number of running requests.", float64(l.Running))
		p.one("gauge", "num_queue_reqs", "The number of requests in the waiting queue.", float64(l.Waiting))
		p.one("gauge", "num_used_tokens", "The number of used tokens.", float64(l.UsedTokens))
		p.one("gauge", "max_total_num_tokens", "Maximum total number of tokens in the KV cache pool.", float64(l.CapacityTokens))
		p.one("gauge", "token_usage", "The token usage.", s.usage(l))
		p.one("gauge", "gen_throughput", "The generation throughput (token/s).", m.rate.perSecond(s.owner.now()))
		p.one("gauge", "cache_hit_rate", "The prefix cache hit rate.", hit)
		p.one("counter", "prompt_tokens_total", "Number of prefill tokens processed.", float64(l.PromptTokens))
		p.one("counter", "generation_tokens_total", "Number of generation tokens processed.", float64(l.OutputTokens))
		p.one("counter", "cached_tokens_total", "Number of cached prompt tokens.", float64(l.CacheHitTokens+l.RestoredTokens))
		p.one("counter", "num_requests_total", "Number of requests processed.", float64(m.byLength))
		p.one("counter", "num_aborted_requests_total", "Number of requests aborted.", float64(m.aborted))
		p.histogram("time_to_first_token_seconds", "Histogram of time to first token in seconds.", &m.ttft)
		p.histogram("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", &m.itl)
		p.histogram("e2e_request_latency_seconds", "Histogram of End-to-end request latency in seconds", &m.e2e)
		p.histogram("queue_time_seconds", "Histogram of queueing time in seconds.", &m.queue)
		if s.opt.Pair != nil {
			p.one("gauge", "num_prefill_bootstrap_queue_reqs", "The number of requests in the prefill bootstrap queue.", float64(l.Meeting))
			p.one("gauge", "num_prefill_inflight_queue_reqs", "The number of requests in the prefill inflight queue.", float64(l.Held))
			p.one("gauge", "num_decode_prealloc_queue_reqs", "The number of requests in the decode prealloc queue.", float64(s.preallocating(l)))
			p.one("gauge", "num_decode_transfer_queue_reqs", "The number of requests in the decode transfer queue.", float64(l.Fetching))
			p.one("counter", "num_bootstrap_failed_reqs_total", "The number of bootstrap failed requests.", float64(m.bootstrapFailed))
			p.one("counter", "num_transfer_failed_reqs_total", "The number of transfer failed requests.", float64(m.transferFailed))
		}
	})
	writePage(w, p)
}

func (s *Server) engineType() string {
	if r := s.opt.role(); r != "" {
		return string(r)
	}
	return "unified"
}

func writePage(w http.ResponseWriter, p *page) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(p.b) // a client that has left needs no page
}
