package config

// Peers is this gateway among others that serve the same engines.
type Peers struct {
	Listen   string   // where the others hear this one; empty: it tells nothing
	Gateways []string // where the others are heard; this one's own endpoint may be among them
}

func (p *Peers) fields() []field {
	return []field{
		{key: "listen", fixed: true, val: textIn(&p.Listen, "", checkEndpoint),
			doc: "Where the others hear what this gateway sends, as `tcp://*:30002`. It has neither encryption nor keys: for a trusted network only. Without it this gateway hears, and tells nothing."},
		{key: "gateways", fixed: true, val: words(&p.Gateways, "endpoints", checkDialled, false),
			doc: "Where the others are heard, as `tcp://10.0.0.2:30002`. This gateway's own endpoint may be among them, so that all may have the same list."},
	}
}

func (d *decoder) comparePeers(p *Peers) {
	if p != nil && p.Listen == "" && len(p.Gateways) == 0 && d.ok("peers", "peers.listen", "peers.gateways") {
		d.faultAt("peers", classMisuse, "names nobody to tell and nobody to hear", "give peers.listen and peers.gateways, or remove it")
	}
}
