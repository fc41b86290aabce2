package config

import (
	"net"
	"strings"
)

// Manager is a Cache Manager that is followed, by its three sockets.
type Manager struct {
	ID                       string // unique
	Events, Replay, Snapshot string // tcp://host:port or ipc://path
}

func (m *Manager) fields() []field {
	return []field{
		{key: "id", required: true, val: textIn(&m.ID, "", checkName), doc: "What status, metrics and the log call it."},
		{key: "events", required: true, val: textIn(&m.Events, "", checkDialled), doc: "Where it publishes, as `tcp://10.0.0.1:5600`."},
		{key: "replay", required: true, val: textIn(&m.Replay, "", checkDialled), doc: "Where lost batches are asked for."},
		{key: "snapshot", required: true, val: textIn(&m.Snapshot, "", checkDialled), doc: "Where everything is asked for: at the start, and when a replay does not reach back."},
	}
}

func (m *Manager) called() string { return m.ID }

// checkDialled holds an endpoint to what can be dialled: a host, and no wildcard.
func checkDialled(s string) (string, string) {
	if what, cure := checkEndpoint(s); what != "" {
		return what, cure
	}
	if rest, ok := strings.CutPrefix(s, "tcp://"); ok {
		host, _, err := net.SplitHostPort(rest)
		if ip := net.ParseIP(host); err != nil || host == "*" || ip != nil && ip.IsUnspecified() {
			return quote(s) + " is where somebody listens, not where he is reached", "write the host's name or address"
		}
	}
	return "", ""
}

// compareManagers holds ids and publishers apart: one that is followed twice would count twice. The three sockets of one are three. It warns of Managers that nobody listens
// to: where a policy asks a service, that may be following them by this same file.
func (d *decoder) compareManagers(c *Config) {
	all := c.Managers
	if len(all) > 0 && d.clean("models") && d.clean("managers") && !ownIndex(c.Models) && !anyPolicy(c.Models, asksService) {
		d.warnAt("managers", "has no effect: no policy looks prefixes up in the gateway's own index", "choose cache_aware or cost with prefix_provider radix_tree, or remove it")
	}
	ids, publishers := map[string]bool{}, map[string]bool{}
	for i := range all {
		at := index("managers", i)
		if m := &all[i]; d.ok(at, at+".id", at+".events") {
			if ids[m.ID] {
				d.faultAt(at+".id", classValue, quote(m.ID)+" is the id of a Manager above", "choose another")
			}
			if publishers[m.Events] {
				d.faultAt(at+".events", classValue, quote(m.Events)+" is the publisher of a Manager above", "remove one of the two")
			}
			ids[m.ID], publishers[m.Events] = true, true
			d.compareSockets(at, m)
		}
	}
}

// compareSockets holds what is asked apart from what publishes, and the two that are asked from each other: a question at the wrong one has no answer.
func (d *decoder) compareSockets(at string, m *Manager) {
	if d.ok(at+".replay") && m.Replay == m.Events {
		d.faultAt(at+".replay", classValue, quote(m.Replay)+" is the Manager's publisher", "write the replay socket of the line that the Manager prints")
	}
	if d.ok(at+".snapshot") && (m.Snapshot == m.Events || d.ok(at+".replay") && m.Snapshot == m.Replay) {
		d.faultAt(at+".snapshot", classValue, quote(m.Snapshot)+" is another socket of the Manager", "write the snapshot socket of the line that the Manager prints")
	}
}
