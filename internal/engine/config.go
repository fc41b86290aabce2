package engine

import (
	"errors"
	"strconv"
	"time"
)

// Defaults of Config. The scheduler's figures are vLLM's for a server on a data-centre GPU.
const (
	// DefaultBlockSize is the block size of vLLM on CUDA, in tokens.
	DefaultBlockSize = 16
	// DefaultKVBlocks gives 524,288 tokens with the default block size: the capacity that a real vLLM 0.32 reported
	// on the machine whose /metrics page we keep as test data.
	DefaultKVBlocks = 32768
	// DefaultMaxRunning is vLLM's max_num_seqs.
	DefaultMaxRunning = 256
	// DefaultMaxWaiting is the limit of llm-d's inference simulator. vLLM and SGLang have none unless asked; we do,
	// because a queue without a limit hides overload until memory ends.
	DefaultMaxWaiting = 1000
	// DefaultMaxBatchTokens is vLLM's max_num_batched_tokens for a server on an H100.
	DefaultMaxBatchTokens = 8192
	// DefaultMaxModelLen is the context of Llama 3.1, in tokens. Where the KV pool is smaller, its capacity is used.
	DefaultMaxModelLen = 131072
	// DefaultMaxTokens is the length of an answer whose request names none: OpenAI's default for completions, which
	// vLLM and SGLang keep.
	DefaultMaxTokens = 16
	// DefaultHoldFor is vLLM's kv_lease_duration with NIXL. A vLLM decode engine that is alive renews it; here it begins anew when one joins.
	DefaultHoldFor = 30 * time.Second
	// DefaultMeetFor and DefaultFetchFor are SGLang's SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT and _WAITING_TIMEOUT.
	DefaultMeetFor, DefaultFetchFor = 300 * time.Second, 300 * time.Second
)

// Config shapes an engine. Its zero value is a working engine: each zero field takes its default.
type Config struct {
	BlockSize      int // tokens a block; 0: DefaultBlockSize
	KVBlocks       int // blocks in the pool; 0: DefaultKVBlocks
	PageBytes      int // bytes of a block's page; 0: pages carry no bytes (replay)
	MaxRunning     int // sequences in a batch; 0: DefaultMaxRunning
	MaxWaiting     int // requests that may wait; 0: DefaultMaxWaiting. A preempted request is not counted.
	MaxBatchTokens int // tokens computed in one step; at least MaxRunning; 0: DefaultMaxBatchTokens or MaxRunning, the larger
	MaxModelLen    int // tokens of a prompt and its answer; 0: DefaultMaxModelLen or the pool's capacity, the smaller

	Timing   Timing
	Seed     uint64 // of the output tokens
	KVEvents bool   // report stored and removed blocks as actions
	Restore  bool   // ask the driver for what the prefix cache lacks: see Lookup
	NoReuse  bool   // the prefix cache stores nothing, as that of SGLang's decode engines

	// Of separated pairs; see Pairing and the time-outs in pair.go's figure. A zero time-out takes its default.
	Pairing                    Pairing
	MeetFor, HoldFor, FetchFor time.Duration
}

// withDefaults returns c with every zero field filled in.
func (c Config) withDefaults() Config {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&c.BlockSize, DefaultBlockSize)
	def(&c.KVBlocks, DefaultKVBlocks)
	def(&c.MaxRunning, DefaultMaxRunning)
	def(&c.MaxWaiting, DefaultMaxWaiting)
	def(&c.MaxBatchTokens, max(DefaultMaxBatchTokens, c.MaxRunning))
	def(&c.MaxModelLen, min(DefaultMaxModelLen, c.KVBlocks*c.BlockSize))
	for _, d := range []struct {
		p *time.Duration
		v time.Duration
	}{{&c.MeetFor, DefaultMeetFor}, {&c.HoldFor, DefaultHoldFor}, {&c.FetchFor, DefaultFetchFor}} {
		if *d.p == 0 {
			*d.p = d.v
		}
	}
	c.Timing = c.Timing.withDefaults()
	return c
}

// Validate reports every field that is out of range, joined. Zero fields are valid: they mean the default.
func (c Config) Validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		v    int
	}{
		{"BlockSize", c.BlockSize}, {"KVBlocks", c.KVBlocks}, {"PageBytes", c.PageBytes}, {"MaxRunning", c.MaxRunning},
		{"MaxWaiting", c.MaxWaiting}, {"MaxBatchTokens", c.MaxBatchTokens}, {"MaxModelLen", c.MaxModelLen},
	} {
		if f.v < 0 {
			errs = append(errs, errors.New("engine: "+f.name+" is negative: "+strconv.Itoa(f.v)))
		}
	}
	if c.MeetFor < 0 || c.HoldFor < 0 || c.FetchFor < 0 {
		errs = append(errs, errors.New("engine: a time-out of pairs is negative"))
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	d := c.withDefaults()
	if d.MaxBatchTokens < d.MaxRunning {
		// Every running sequence must be able to decode in each step, or the oldest would starve the youngest.
		errs = append(errs, errors.New("engine: MaxBatchTokens "+strconv.Itoa(d.MaxBatchTokens)+" is below MaxRunning "+strconv.Itoa(d.MaxRunning)))
	}
	// Block numbers are int32 in the pool, and page bytes are one allocation.
	if d.KVBlocks > 1<<30 || d.BlockSize > 1<<20 || d.PageBytes > 1<<30 {
		errs = append(errs, errors.New("engine: KVBlocks, BlockSize or PageBytes is too large"))
	}
	return errors.Join(append(errs, c.Timing.validate())...)
}

// Timing says how long a step takes:
//
//	(StepFixed + PrefillPerToken·prefill tokens + DecodePerSeq·decoding sequences + PerKVToken·context tokens of those) / Speed
//
// The defaults picture a 70-billion-parameter model in bfloat16 on eight A100-80GB. A zero field takes its default; a
// negative one means that this part costs nothing.
type Timing struct {
	// StepFixed is the cost of a step whatever is in it. Default 20 ms, the fixed cost in the public router
	// simulations that we compare with. The roof agrees: 140 GB of weights over eight times 2.0 TB/s (NVIDIA's data
	// sheet of the A100) are 8.6 ms if nothing is lost; engines reach about half.
	StepFixed time.Duration
	// PrefillPerToken is the cost of a prompt token. Default 125 µs: the 8,000 tokens a second of the same router
	// simulations. 140 GFLOP a token over eight times 312 TFLOPS make it 45 % of the peak.
	PrefillPerToken time.Duration
	// DecodePerSeq is the cost of one more sequence in a decode batch. Default 125 µs: a token takes the same
	// arithmetic in both phases, and what a decode step adds beyond it, reading the weights, is in StepFixed.
	DecodePerSeq time.Duration
	// PerKVToken is the cost of reading one token of a decoding sequence's context. Default 20 ns: Llama-2-70B keeps
	// 2·80 layers·8 heads·128·2 bytes = 320 KiB a token, over eight times 2.0 TB/s.
	PerKVToken time.Duration
	// RestoreFixed and RestorePerToken are what a restore from an outer cache takes; see [Timing.Restore]. Defaults 1 ms, for the questions
	// before it, and 2 µs: 320 KiB a token, as above, at 160 GB/s. Eight PCIe 4.0 x16 links carry 200 GB/s and more together, and the
	// memory of a host with two sockets (DDR4-3200, 16 channels, 410 GB/s in data sheets) gives about half of its figure to copies.
	RestoreFixed, RestorePerToken time.Duration
	// TransferFixed and TransferPerToken are what KV takes from a prefill to a decode engine; see [Timing.Transfer]. Defaults 1 ms, as for a
	// restore, and 1 µs: 320 KiB a token over eight links of 400 Gbit/s, of which 85 % were measured with NIXL.
	TransferFixed, TransferPerToken time.Duration
	// Speed divides all of it; 0 means 1.
	Speed float64
}

// Filled returns t with its defaults filled in, as an engine has it.
func (t Timing) Filled() Timing { return t.withDefaults() }

func (t Timing) withDefaults() Timing {
	def := func(d *time.Duration, v time.Duration) {
		switch {
		case *d == 0:
			*d = v
		case *d < 0:
			*d = 0
		}
	}
	def(&t.StepFixed, 20*time.Millisecond)
	def(&t.PrefillPerToken, 125*time.Microsecond)
	def(&t.DecodePerSeq, 125*time.Microsecond)
	def(&t.PerKVToken, 20*time.Nanosecond)
	def(&t.RestoreFixed, time.Millisecond)
	def(&t.RestorePerToken, 2*time.Microsecond)
	def(&t.TransferFixed, time.Millisecond)
	def(&t.TransferPerToken, time.Microsecond)
	if t.Speed == 0 {
		t.Speed = 1
	}
	return t
}

func (t Timing) validate() error {
	if t.Speed < 0 || t.Speed != t.Speed || t.Speed > 1e9 {
		return errors.New("engine: Speed is not between 0 and 1e9")
	}
	return nil
}

// Step returns how long a step takes that computes prefill prompt tokens and one token for each of decode sequences, whose
// contexts together hold kv tokens. It is never zero: a step that took no time would let a request run for ever
// within one call of [Core.Advance]. t must have its defaults filled in, as [Core.Timing] returns it.
func (t Timing) Step(prefill, decode, kv int) time.Duration {
	d := t.StepFixed + time.Duration(prefill)*t.PrefillPerToken + time.Duration(decode)*t.DecodePerSeq + time.Duration(kv)*t.PerKVToken
	if t.Speed != 1 {
		d = time.Duration(float64(d) / t.Speed)
	}
	return max(d, 1)
}

// Restore returns how long a restore of so many tokens takes: (RestoreFixed + RestorePerToken · tokens) / Speed. The core does not wait for
// it: the driver says when a restore has ended, and takes this time for it. t must have its defaults filled in.
func (t Timing) Restore(tokens int) time.Duration {
	return t.copyTime(t.RestoreFixed, t.RestorePerToken, tokens)
}

// Transfer returns how long the KV of so many tokens takes from one engine to another: (TransferFixed + TransferPerToken · tokens) / Speed. As with
// Restore it is the driver that takes this time.
func (t Timing) Transfer(tokens int) time.Duration {
	return t.copyTime(t.TransferFixed, t.TransferPerToken, tokens)
}

func (t Timing) copyTime(fixed, each time.Duration, tokens int) time.Duration {
	d := fixed + time.Duration(tokens)*each
	if t.Speed != 1 {
		d = time.Duration(float64(d) / t.Speed)
	}
	return d
}
