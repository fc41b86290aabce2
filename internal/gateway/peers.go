package gateway

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perigee-llm/perigee/internal/gateway/config"
	"github.com/perigee-llm/perigee/internal/gateway/peers"
	"github.com/perigee-llm/perigee/internal/telemetry"
)

// meetPeers begins to tell the other gateways what this one sends, and to hear them, if the configuration names any. It comes before the first
// request: the tracker's observer is not changed later.
func (g *Gateway) meetPeers(c *config.Peers) (err error) {
	if c == nil {
		return nil
	}
	g.peers, err = peers.Start(peers.Options{Listen: c.Listen, Gateways: c.Gateways, Registry: g.registry, Log: g.log})
	if err != nil {
		return err
	}
	g.tracker.Observer = g.peers.Observer()
	g.prefixes.others.Store(g.peers)
	g.metrics.Registry().MustRegister(newPeerCollector(g.peers))
	return nil
}

// leavePeers ends both.
func (g *Gateway) leavePeers() {
	if g.peers != nil {
		g.peers.Close()
	}
}

// peerCollector shows what gateways tell each other.
type peerCollector struct {
	p                                           *peers.Peers
	connected, prompts, age, messages, records  *prometheus.Desc
	happenings, subscribers, told, toldMessages *prometheus.Desc
}

func newPeerCollector(p *peers.Peers) *peerCollector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("perigee_peer_"+name, help, labels, nil)
	}
	return &peerCollector{
		p:            p,
		connected:    d("connected", "1 while the other gateway is connected, or is this one itself.", "gateway"),
		prompts:      d("prompts", "Prompts that the other gateway has without a first token, as far as is known.", "gateway"),
		age:          d("age_seconds", "Since the other gateway was heard last; absent before.", "gateway"),
		messages:     d("messages_total", "Messages heard: news, everything, unreadable.", "gateway", "kind"),
		records:      d("records_total", "Records heard: used, unknown_engine, refused (too many).", "gateway", "outcome"),
		happenings:   d("stream_total", "What happened to what the other gateway tells: gap, restart, silence.", "gateway", "what"),
		subscribers:  d("subscribers", "Gateways that hear this one."),
		toldMessages: d("told_messages_total", "Messages told: news, everything, unsent (somebody was too slow).", "kind"),
		told:         d("told_records_total", "Records told, and those without a place in a message.", "outcome"),
	}
}

// Describe implements prometheus.Collector.
func (c *peerCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.connected, c.prompts, c.age, c.messages, c.records, c.happenings, c.subscribers, c.told, c.toldMessages,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *peerCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	now := time.Now()
	for _, s := range c.p.Status() {
		gauge(c.connected, telemetry.Truth(s.Connected), s.Gateway)
		gauge(c.prompts, float64(s.Prompts), s.Gateway)
		if !s.Heard.IsZero() {
			gauge(c.age, now.Sub(s.Heard).Seconds(), s.Gateway)
		}
		count(c.messages, s.News, s.Gateway, "news")
		count(c.messages, s.Everything, s.Gateway, "everything")
		count(c.messages, s.Bad, s.Gateway, "unreadable")
		count(c.records, s.Records-s.Unknown-s.Refused, s.Gateway, "used")
		count(c.records, s.Unknown, s.Gateway, "unknown_engine")
		count(c.records, s.Refused, s.Gateway, "refused")
		count(c.happenings, s.Gaps, s.Gateway, "gap")
		count(c.happenings, s.Restarts, s.Gateway, "restart")
		count(c.happenings, s.Silences, s.Gateway, "silence")
	}
	t := c.p.Told()
	gauge(c.subscribers, float64(t.Subscribers))
	count(c.toldMessages, t.News, "news")
	count(c.toldMessages, t.Everything, "everything")
	count(c.toldMessages, t.Unsent, "unsent")
	count(c.told, t.Records, "told")
	count(c.told, t.Unnamed, "unnamed")
}

// PeerStatus is one other gateway as GET /debug/prefixes shows it.
type PeerStatus struct {
	Gateway   string `json:"gateway"`
	Connected bool   `json:"connected"`
	// Self: it is this gateway. Twice: it counts under another endpoint.
	Self     bool       `json:"self,omitempty"`
	Twice    bool       `json:"twice,omitempty"`
	Prompts  int        `json:"prompts"`
	Heard    *time.Time `json:"heard,omitempty"`
	Gaps     uint64     `json:"gaps"`
	Restarts uint64     `json:"restarts"`
	Silences uint64     `json:"silences"`
	Unknown  uint64     `json:"records_of_unknown_engines"`
	Fault    string     `json:"fault,omitempty"`
}

// describePeers returns nothing where there are no peers.
func describePeers(p *peers.Peers) (out []PeerStatus) {
	if p == nil {
		return nil
	}
	for _, s := range p.Status() {
		d := PeerStatus{
			Gateway: s.Gateway, Connected: s.Connected, Self: s.Self, Twice: s.Twice, Prompts: s.Prompts,
			Gaps: s.Gaps, Restarts: s.Restarts, Silences: s.Silences, Unknown: s.Unknown, Fault: s.Fault,
		}
		if !s.Heard.IsZero() {
			d.Heard = &s.Heard
		}
		out = append(out, d)
	}
	return out
}
