package engine

import (
	"errors"
	"strconv"
	"time"
)

// ID names a request. The driver chooses it; it must not be in use. Zero is allowed.
type ID uint64

// Request is what [Core.Submit] takes.
type Request struct {
	ID ID
	// Prompt holds the token ids. The core keeps and reads it until the request has ended; it must not change meanwhile.
	Prompt []uint32
	// Blocks and Length stand for a prompt whose tokens are not known, as in a replay of a trace: Length is its tokens, and
	// Blocks has a hash for each block that it begins, the last one included even if it is not full. Equal hashes stand for
	// equal blocks behind equal blocks; LoRA and Salt do not enter them. Prompt must be nil then. KV events of such a prompt
	// carry no tokens. The core keeps Blocks as it keeps Prompt.
	Blocks []BlockHash
	Length int
	// MaxTokens is the length of the answer; 0: DefaultMaxTokens, or what the model length leaves if that is less. With 1
	// the request ends with its prefill. A PrefillHalf has one, whatever is asked for.
	MaxTokens int
	// LoRA and Salt separate prefixes: blocks are shared only between requests that have both in common.
	LoRA, Salt string
	// Half is which half of a pair this is, Room the pair's name with PrefillHalf.
	Half Half
	Room string
}

// promptLen is the length of the prompt in tokens.
func (r *Request) promptLen() int {
	if r.Blocks != nil {
		return r.Length
	}
	return len(r.Prompt)
}

// Reason says why a request ended.
type Reason uint8

// The reasons. The simulator has no end-of-sequence token, so a request that nothing disturbs ends by its length.
const (
	Unfinished    Reason = iota
	ReasonLength         // it has its MaxTokens
	ReasonCorrupt        // a cached page did not hold the bytes of its chain, or fetched KV was another prompt's

	ReasonUnfetched // of a decode half: its KV did not come

	// Why a room was closed.
	ReasonTaken     // the decode engine has the KV
	ReasonLeft      // one of the two gave up
	ReasonUnmatched // only one came within MeetFor
	ReasonExpired   // nobody took the KV within HoldFor
)

// Kind says what an Action reports.
type Kind uint8

// The kinds of actions.
const (
	Admitted  Kind = iota // the request entered the batch; Cached says how many prompt tokens the cache supplied
	Token                 // a token of the answer; with a Reason it is the last
	Ended                 // the request ended without a token; Reason says why
	Preempted             // the request lost its blocks and waits again; it will be Admitted anew
	KV                    // a change of the prefix cache, in Event; only with Config.KVEvents
	Lookup                // how much of Wanted can be restored? The driver answers with Found; only with Config.Restore
	Restore               // the driver brings Wanted, and then calls Restored; only after a Found above 0
	Fetch                 // of a DecodeHalf: the driver brings the KV of Missing tokens, and then calls Fetched or NotFetched
	Ready                 // the KV of Room is held, in Handover, and a decode engine waits for it
	Closed                // Room is no more; Reason says why. ID is that of its request, which has ended, if HasID
)

// Action reports one thing that happened. It is plain data, good until the next call on the Core.
type Action struct {
	Kind   Kind
	Reason Reason
	At     time.Duration // on the driver's clock
	ID     ID
	Index  int    // of a Token in the answer, from 0
	Token  uint32 // its id
	Cached int    // with Admitted: tokens that need not be computed; with Fetch: tokens that the cache has
	// Restored is how many of Cached were restored for this request; the rest was in the prefix cache.
	Restored int
	Event    *KVEvent
	Wanted   *Wanted // with Lookup and Restore
	Missing  int     // with Fetch: tokens
	Room     string  // with Ready and Closed
	HasID    bool    // with Closed
	Handover *Handover
}

// EventKind says what a KVEvent reports.
type EventKind uint8

// The kinds of events, named as the engines name them on their event streams.
const (
	BlockStored EventKind = iota
	BlockRemoved
	AllBlocksCleared
)

// KVEvent is a change of the prefix cache. It shares no memory with the Core.
type KVEvent struct {
	Kind   EventKind
	Hashes []BlockHash // stored, in the order of the chain, or removed
	// The rest belongs to BlockStored.
	Parent     BlockHash // of the first of Hashes; meaningful if HasParent
	HasParent  bool      // false at the start of a prompt
	First      int       // place of the first of Hashes in its prompt, in blocks
	Tokens     []uint32  // of all of Hashes; nil where the prompt was given by Request.Blocks
	BlockSize  int
	LoRA, Salt string // Salt is set on the event that holds a prompt's first block only, as in vLLM's extra keys
	Restored   bool   // the blocks were restored and not computed
}

// Errors of [Core.Submit]. A caller branches on them with errors.Is.
var (
	// ErrQueueFull: MaxWaiting requests are waiting. Another engine, or this one later, may take the request.
	ErrQueueFull = errors.New("the waiting queue is full")
	// ErrTooLong: the prompt and the answer exceed MaxModelLen. No engine of this model will take the request.
	ErrTooLong = errors.New("the prompt and the answer are longer than the model's context")
	// ErrNeverFits: the prompt and the answer need more blocks than the engine has.
	ErrNeverFits = errors.New("the prompt and the answer need more KV blocks than the engine has")
	// ErrEmptyPrompt: there is nothing to compute.
	ErrEmptyPrompt = errors.New("the prompt is empty")
	// ErrBlocks: Blocks and Length do not fit each other, or a Prompt is given too. A fault of the driver.
	ErrBlocks = errors.New("the prompt's blocks do not fit its length")
	// ErrRoom: a PrefillHalf names no room, or a DecodeHalf came to an engine that restores. A fault of the driver.
	ErrRoom = errors.New("the half of a pair is not one that this engine can be")
	// ErrRoomTaken: the same half of that pair is here already.
	ErrRoomTaken = errors.New("the room is taken")
	// ErrNoRoom: nothing is held under that name.
	ErrNoRoom = errors.New("there is no such room")
	// ErrDuplicateID: a request with this ID is running or waiting. A fault of the driver.
	ErrDuplicateID = errors.New("the request id is in use")
)

// LimitError is ErrQueueFull, ErrTooLong or ErrNeverFits with its figures: requests, tokens, or blocks.
type LimitError struct {
	Err         error
	Have, Limit int
}

func (e *LimitError) Error() string {
	return e.Err.Error() + ": " + strconv.Itoa(e.Have) + " of " + strconv.Itoa(e.Limit)
}

// Unwrap returns the class of the error.
func (e *LimitError) Unwrap() error { return e.Err }

// Load is what an engine knows about itself. Counters run from the start of the Core.
type Load struct {
	Running    int `json:"running"`     // requests
	Waiting    int `json:"waiting"`     // requests, those that are being restored or fetched or wait for the other half of their pair included
	Restoring  int `json:"restoring"`   // of them
	Fetching   int `json:"fetching"`    // of them: decode halves that hold their blocks
	Meeting    int `json:"meeting"`     // of them: prefill halves that wait for their decode engine
	Joined     int `json:"joined"`      // decode engines that wait for a prefill half that has not come
	Held       int `json:"held"`        // rooms whose KV is held for a decode engine
	HeldTokens int `json:"held_tokens"` // in them, whole blocks; UsedTokens counts them too, each block once
	MaxRunning int `json:"max_running"`
	// WaitingUncachedTokens are the prompt tokens of waiting requests that neither the cache would supply if they were
	// admitted now, nor, as far as is known, a restore.
	WaitingUncachedTokens int `json:"waiting_uncached_tokens"`
	UsedTokens            int `json:"used_tokens"`  // in blocks that a request or a room holds, whole blocks
	TotalTokens           int `json:"total_tokens"` // UsedTokens and the prompts of waiting requests
	CapacityTokens        int `json:"capacity_tokens"`
	CachedBlocks          int `json:"cached_blocks"` // held or idle

	PrefillUncachedTokens int64         `json:"prefill_uncached_tokens"` // prompt tokens computed, recomputation after a preemption included
	PrefillBusy           time.Duration `json:"prefill_busy_ns"`         // time of the steps that computed any
	CacheQueryTokens      int64         `json:"cache_query_tokens"`      // prompt tokens of admitted requests, looked up in the prefix cache
	CacheHitTokens        int64         `json:"cache_hit_tokens"`        // of those, supplied by it
	LookupTokens          int64         `json:"lookup_tokens"`           // that the cache lacked and the driver was asked for
	RestoredTokens        int64         `json:"restored_tokens"`         // of those, supplied by it
	FetchedTokens         int64         `json:"fetched_tokens"`          // of decode halves, brought from prefill engines
	Unfetched             int64         `json:"unfetched"`               // decode halves whose KV did not come
	RoomsExpired          int64         `json:"rooms_expired"`           // rooms to which only one half came, or whose KV nobody took
	PromptTokens          int64         `json:"prompt_tokens"`           // of requests that got their first token
	OutputTokens          int64         `json:"output_tokens"`
	Steps                 int64         `json:"steps"`
	Preemptions           int64         `json:"preemptions"`
	CorruptPages          int64         `json:"corrupt_pages"`
}

// Usage is the fraction of the KV pool that requests and rooms hold, 0 to 1.
func (l Load) Usage() float64 { return float64(l.UsedTokens) / float64(max(l.CapacityTokens, 1)) }

// HitRate is the share of the prompt tokens that were not computed, restored ones included, 0 to 1; 0 where there were none.
func (l Load) HitRate() float64 {
	return float64(l.CacheHitTokens+l.RestoredTokens) / float64(max(l.CacheQueryTokens, 1))
}
