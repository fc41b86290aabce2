package manager

import "github.com/perigee-llm/perigee/internal/cache/core"

// statusVersion is the version of StatusPage. A key that is added leaves it; one that goes, or means something else, is another version.
const statusVersion = 1

// StatusPage is what GET /status says, as docs/cache-daemon.md has it. Bytes are of slots, padding included; counts are since the start. The words
// in its maps are those of the metrics' labels, and all of them are there, also those whose count is 0.
type StatusPage struct {
	Version        int             `json:"version"`
	Epoch          string          `json:"epoch"` // 16 hexadecimal digits, as the channel and the events say it
	UptimeSeconds  float64         `json:"uptime_seconds"`
	Connections    int             `json:"connections"`
	ResidentBlocks int             `json:"resident_blocks"`
	Pool           PoolStatus      `json:"pool"`
	Queries        QueryStatus     `json:"queries"`
	Offered        OfferedStatus   `json:"offered"`
	Counts         CountStatus     `json:"counts"`
	Sessions       []SessionStatus `json:"sessions"`
	Arenas         []ArenaStatus   `json:"arenas"`
}

// PoolStatus is what of the shared memory is what.
type PoolStatus struct {
	CapacityBytes    uint64 `json:"capacity_bytes"`
	ArenaBytes       uint64 `json:"arena_bytes"`
	WarmBytes        uint64 `json:"warm_bytes"`
	UsedBytes        int64  `json:"used_bytes"`
	PinnedBytes      int64  `json:"pinned_bytes"`
	GrantedBytes     int64  `json:"granted_bytes"`
	QuarantinedBytes int64  `json:"quarantined_bytes"`
}

// QueryStatus is what queries are charged, and in which phase they are.
type QueryStatus struct {
	ChargedBytes  int64 `json:"charged_bytes"`
	ReadingBytes  int64 `json:"reading_bytes"`
	LeasedBytes   int64 `json:"leased_bytes"`
	OrphanedBytes int64 `json:"orphaned_bytes"`
}

// OfferedStatus is of engines' own memory: how much is mapped, and how many copies between it and the pool are under way.
type OfferedStatus struct {
	Pools  int   `json:"pools"`
	Bytes  int64 `json:"bytes"`
	Copies int   `json:"copies"`
}

// CountStatus is the counts.
type CountStatus struct {
	PublishedBlocks map[string]int64 `json:"published_blocks"`
	CollectedBlocks int64            `json:"collected_blocks"`
	RemovedBlocks   map[string]int64 `json:"removed_blocks"`
	CorruptBlocks   int64            `json:"corrupt_blocks"`
	SpoiledPages    int64            `json:"spoiled_pages"`
	EmptyQueries    map[string]int64 `json:"empty_queries"`
	BusyQueries     int64            `json:"busy_queries"`
	BudgetWaits     int64            `json:"budget_waits"`
	Restores        map[string]int64 `json:"restores"`
	ExpiredLeases   int64            `json:"expired_leases"`
	Refused         map[string]int64 `json:"refused"`
}

// page is the status as it is served.
func (st *Status) page() StatusPage {
	u, n := &st.Usage, &st.Stats
	p := StatusPage{
		Version: statusVersion, Epoch: st.Epoch, UptimeSeconds: st.UptimeSeconds, Connections: st.Connections, ResidentBlocks: u.Blocks,
		Pool: PoolStatus{
			CapacityBytes: st.Pool.Bytes, ArenaBytes: st.Pool.Used, WarmBytes: st.Pool.Warm, UsedBytes: u.Pool - u.Free,
			PinnedBytes: u.Pinned, GrantedBytes: u.Granted, QuarantinedBytes: u.Quarantined,
		},
		Queries: QueryStatus{ChargedBytes: u.Queries, ReadingBytes: u.Reserved, LeasedBytes: u.Leased, OrphanedBytes: u.Orphaned},
		Offered: OfferedStatus{Pools: u.Pools, Bytes: u.Offered, Copies: u.Copies},
		Counts: CountStatus{
			PublishedBlocks: byWord(dispositions[:], n.Published[:]), CollectedBlocks: n.Collected,
			RemovedBlocks: byWord(reasons[:], n.Removed[:]), CorruptBlocks: n.Corrupt, SpoiledPages: st.Spoiled,
			EmptyQueries: map[string]int64{}, BusyQueries: n.Busy, BudgetWaits: n.BudgetWaits,
			Restores: byWord(outcomes[:], n.Restores[:]), ExpiredLeases: n.Expired, Refused: map[string]int64{},
		},
		Sessions: st.Sessions, Arenas: st.Arenas,
	}
	for w := core.Missing; w <= core.Unreadable; w++ {
		p.Counts.EmptyQueries[whyWord(w)] = n.Nothing[w]
	}
	for class, count := range n.Refused {
		if word := classWord(core.Class(class)); word != "" {
			p.Counts.Refused[word] = count
		}
	}
	return p
}

// byWord puts counts under their words.
func byWord(words []string, counts []int64) map[string]int64 {
	out := make(map[string]int64, len(words))
	for i, word := range words {
		out[word] = counts[i]
	}
	return out
}
