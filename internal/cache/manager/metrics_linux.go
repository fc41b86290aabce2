package manager

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perigee-llm/perigee/internal/cache/core"
	"github.com/perigee-llm/perigee/internal/cache/events"
	"github.com/perigee-llm/perigee/internal/cache/follow"
	"github.com/perigee-llm/perigee/internal/managerwire"
)

// collector reads the metrics as they are asked for: all of them are counts that are kept anyway. Bytes are of slots, padding included, except
// those of checksums, which are of payloads.
type collector struct{ m *Manager }

const prefix = "perigee_cache_"

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prefix+name, help, labels, nil)
}

var (
	poolCapacity  = desc("pool_capacity_bytes", "Shared memory that arenas may take.")
	poolArenas    = desc("pool_arena_bytes", "Shared memory that arenas take.")
	poolWarm      = desc("pool_warm_bytes", "Bytes of arenas that were faulted in ahead.")
	poolUsed      = desc("pool_used_bytes", "Slots in use.")
	residentN     = desc("resident_blocks", "Blocks that can be restored.")
	residentBytes = desc("resident_bytes", "Their slots.")
	residence     = desc("resident_block_seconds_total", "Blocks that can be restored, summed over time: by removed_blocks_total it is how long one stays.")
	queries       = desc("queries_total", "Queries that were answered, busy and refused ones apart, by mode.", "mode")
	askedBlocks   = desc("query_blocks_total", "Blocks that answered queries asked for, by mode and by where they were: memory, below; missing: they or one before them is not there; unserved: the query brought nothing for another reason.", "mode", "tier")
	specBytes     = desc("query_speculative_bytes", "The part of what queries are charged that is speculation.")
	sharedReads   = desc("coalesced_reads_total", "Blocks from below memory that were being read for another query already.")
	failedReads   = desc("failed_reads_total", "Reads from below memory that brought nothing.")
	moves         = desc("transfers_total", "Publishes that sealed something and restores that were whole, by direction and by who copied: engine or manager.", "direction", "route")
	moveBytes     = desc("transfer_bytes_total", "Their slots.", "direction", "route")
	moveSeconds   = desc("transfer_seconds_total", "Seconds from each one's grant or first start to its end, whatever the engine did meanwhile.", "direction", "route")
	queryBytes    = desc("query_reserved_bytes", "What queries are charged, by phase.", "phase")
	pinnedBytes   = desc("pinned_bytes", "Blocks that somebody holds, each once.")
	grantedBytes  = desc("granted_bytes", "Slots that a client or a read may write.")
	quarantined   = desc("quarantined_bytes", "Slots that a lost client may still write.")
	sessions      = desc("sessions", "Instances, lost ones that are not gone included.")
	connections   = desc("connections", "Connections of clients.")
	turned        = desc("connections_turned_away_total", "Connections that were not served.")
	published     = desc("published_blocks_total", "Blocks that clients wanted to publish, by disposition.", "disposition")
	collected     = desc("collected_blocks_total", "Blocks given up before all their parts were sealed.")
	removed       = desc("removed_blocks_total", "Blocks withdrawn, by reason.", "reason")
	answers       = desc("query_empty_total", "Queries that brought nothing, by reason.", "reason")
	busy          = desc("query_busy_total", "Queries that were not admitted.")
	budgetWaits   = desc("query_budget_waits_total", "Queries that had to wait for bytes.")
	refused       = desc("refused_total", "Messages refused by the core, by class.", "class")
	restores      = desc("restores_total", "Restores that ended, by outcome.", "outcome")
	expired       = desc("leases_expired_total", "Leases that nobody came for.")
	sealedBytes   = desc("checksum_sealed_bytes_total", "Bytes whose checksum was made here.")
	verifiedBytes = desc("checksum_verified_bytes_total", "Bytes that were compared with their checksum for a restore.")
	copiedBytes   = desc("copied_bytes_total", "Bytes copied between the pool and engines' own memory, by direction.", "direction")
	copySeconds   = desc("copy_seconds_total", "Seconds that copiers were at it, checksums included, by direction.", "direction")
	copies        = desc("copies", "Copies between the pool and engines' own memory that are under way.")
	offeredPools  = desc("offered_pools", "Pools of engines' own memory that are mapped.")
	offeredBytes  = desc("offered_pool_bytes", "Engines' own memory that is mapped.")
	untold        = desc("log_lines_left_out_total", "Lines that were not logged: too many of a kind, or nobody reads the log.")
	spoiled       = desc("spoiled_pages_total", "Pages found to be other than was sealed, each time one was asked for.")
)

// Describe implements prometheus.Collector: unchecked, since Collect knows them all.
func (c collector) Describe(chan<- *prometheus.Desc) {}

var (
	dispositions = [...]string{"write", "present", "taken", "no_room"}
	reasons      = [...]string{"evicted", "flushed", "corrupted"}
	directions   = [...]string{"publish", "restore"}
	outcomes     = [...]string{"failed", "whole"}
	modes        = [...]string{"prefix", "exact", "discover", "warm"}
	tiers        = [...]string{"memory", "below", "missing", "unserved"}
	routes       = [...]string{"engine", "manager"}
)

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	m := c.m
	m.mu.Lock()
	u, st := m.mu.core.Usage(), m.mu.core.Stats()
	followed, engines := m.followedAll()
	m.mu.Unlock()
	pool := m.pool.Usage()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	seconds := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v int64, labels ...string) { seconds(d, float64(v), labels...) }
	gauge(poolCapacity, float64(pool.Bytes))
	gauge(poolArenas, float64(pool.Used))
	gauge(poolWarm, float64(pool.Warm))
	gauge(poolUsed, float64(u.Pool-u.Free))
	gauge(residentN, float64(u.Blocks))
	gauge(residentBytes, float64(u.Resident))
	seconds(residence, st.Residence)
	c.asked(st, count)
	c.moved(st, count, seconds)
	gauge(specBytes, float64(u.Speculative))
	gauge(queryBytes, float64(u.Reserved), "reading")
	gauge(queryBytes, float64(u.Leased), "leased")
	gauge(queryBytes, float64(u.Orphaned), "orphaned")
	gauge(pinnedBytes, float64(u.Pinned))
	gauge(grantedBytes, float64(u.Granted))
	gauge(quarantined, float64(u.Quarantined))
	gauge(sessions, float64(u.Sessions))
	gauge(connections, float64(m.server.Conns()))
	count(turned, m.server.Turned.Load())
	for i, word := range dispositions {
		count(published, st.Published[i], word)
	}
	count(collected, st.Collected)
	for i, word := range reasons {
		count(removed, st.Removed[i], word)
	}
	for w := core.Missing; w <= core.Unreadable; w++ {
		count(answers, st.Nothing[w], whyWord(w))
	}
	count(busy, st.Busy)
	count(budgetWaits, st.BudgetWaits)
	for i, word := range outcomes {
		count(restores, st.Restores[i], word)
	}
	count(expired, st.Expired)
	count(sealedBytes, m.counts.sealedBytes.Load())
	count(verifiedBytes, m.counts.verifiedBytes.Load())
	count(spoiled, m.counts.spoiled.Load())
	count(untold, m.journal.untold.Load())
	c.copies(u, gauge, count)
	for i, word := range directions {
		seconds(copySeconds, time.Duration(m.counts.copyNanos[i].Load()).Seconds(), word)
	}
	c.refused(st, count)
	if m.tells.pub != nil {
		c.events(m.tells.pub.Stats(), gauge, count)
		c.followed(followed, engines, gauge, count)
	}
}

// followed tells of what is learned from engines' own events.
func (c collector) followed(n follow.Counts, engines int, gauge func(*prometheus.Desc, float64, ...string), count func(*prometheus.Desc, int64, ...string)) {
	count(eventsNamedLate, c.m.counts.named.Load())
	gauge(followedEngines, float64(engines))
	count(followedBatches, int64(n.Batches), "read")
	count(followedBatches, int64(n.Missed), "missed")
	count(followedBatches, int64(n.Bad), "bad")
	count(followedBlocks, int64(n.Learned), "learned")
	count(followedBlocks, int64(n.Orphans), "orphan")
	count(followedBlocks, int64(n.Strange), "strange")
}

// asked tells of queries: from these a hit rate is made.
func (c collector) asked(st core.Stats, count func(*prometheus.Desc, int64, ...string)) {
	for m, mode := range modes {
		count(queries, st.Queries[m], mode)
		for t, tier := range tiers {
			count(askedBlocks, st.Asked[m][t], mode, tier)
		}
	}
	count(sharedReads, st.SharedReads)
	count(failedReads, st.FailedReads)
}

// moved tells of publishes and restores by both routes.
func (c collector) moved(st core.Stats, count func(*prometheus.Desc, int64, ...string), seconds func(*prometheus.Desc, float64, ...string)) {
	for d, all := range [...][core.ByManager + 1]core.Moved{st.Saves, st.Loads} {
		for r, n := range all {
			count(moves, n.Count, directions[d], routes[r])
			count(moveBytes, n.Bytes, directions[d], routes[r])
			seconds(moveSeconds, n.Time.Seconds(), directions[d], routes[r])
		}
	}
}

// copies tells of the second route.
func (c collector) copies(u core.Usage, gauge func(*prometheus.Desc, float64, ...string), count func(*prometheus.Desc, int64, ...string)) {
	gauge(copies, float64(u.Copies))
	gauge(offeredPools, float64(u.Pools))
	gauge(offeredBytes, float64(u.Offered))
	for i, word := range directions {
		count(copiedBytes, c.m.counts.copiedBytes[i].Load(), word)
	}
}

func (c collector) refused(st core.Stats, count func(*prometheus.Desc, int64, ...string)) {
	for class, n := range st.Refused {
		if word := classWord(core.Class(class)); word != "" {
			count(refused, n, word)
		}
	}
}

var (
	eventsTold        = desc("events_total", "Events told to gateways, by type.", "type")
	eventsBatches     = desc("events_batches_total", "Batches of events.")
	eventsNames       = desc("events_names", "Blocks that gateways were told of.")
	eventsWaiting     = desc("events_waiting", "Blocks that changed and are to be told of.")
	eventsUnnamed     = desc("events_unnamed_blocks_total", "Blocks that could not be told of when they came: tokens or model unknown. Those of events_named_late_blocks_total were told of later.")
	eventsNamedLate   = desc("events_named_late_blocks_total", "Blocks that had no name when they came, and got one from the engine's own events, or since somebody published them again with their tokens.")
	followedEngines   = desc("followed_engines", "Engines whose own events are read.")
	followedBatches   = desc("followed_batches_total", "Batches of engines' own events, by outcome: missed ones never came, bad ones could not be read.", "outcome")
	followedBlocks    = desc("followed_blocks_total", "Blocks that engines' own events told of, by outcome: of orphans the block before is not known, strange ones have an unknown adapter or no tokens.", "outcome")
	eventsUnaddressed = desc("events_unaddressed_engines_total", "Engines that registered without a base URL: no gateway counts on them.")
	eventsSubscribers = desc("events_subscribers", "Connections to the events socket.")
	eventsDropped     = desc("events_dropped_total", "Batches that a subscriber was too slow for.")
	eventsReplays     = desc("events_replays_total", "Replays asked for.")
	eventsSnapshots   = desc("events_snapshots_total", "Snapshots asked for, by outcome.", "outcome")
	eventsReplayBytes = desc("events_replay_bytes", "Batches kept for replays.")
)

// events tells of what gateways are told.
func (c collector) events(s events.Stats, gauge func(*prometheus.Desc, float64, ...string), count func(*prometheus.Desc, int64, ...string)) {
	for k, n := range s.Events {
		count(eventsTold, int64(n), managerwire.Kind(k).String())
	}
	count(eventsBatches, int64(s.Batches))
	gauge(eventsNames, float64(s.Names))
	gauge(eventsWaiting, float64(s.Waiting))
	count(eventsUnnamed, int64(s.Unnamed))
	count(eventsUnaddressed, int64(s.Unaddressed))
	gauge(eventsSubscribers, float64(s.Subscribers))
	count(eventsDropped, int64(s.Dropped))
	count(eventsReplays, int64(s.Replays))
	count(eventsSnapshots, int64(s.Snapshots), "begun")
	count(eventsSnapshots, int64(s.Refused), "refused")
	gauge(eventsReplayBytes, float64(s.ReplayBytes))
}
