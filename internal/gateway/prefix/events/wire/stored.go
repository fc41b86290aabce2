package wire

import (
	"bytes"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
)

// removed fills the event in from the fields of a removal.
func (d *Decoder) removed() {
	f := &d.f
	tier, known := f.tier()
	d.Event = prefix.Event{
		Kind: prefix.Removed, Group: int(f.group), Hashes: d.hashes,
		Tier: tier, AnyTier: !known || f.medium == nil,
	}
}

// stored fills the event in from the fields of a store, and checks that they fit each other.
func (d *Decoder) stored() (Class, bool) {
	f := &d.f
	tier, known := f.tier()
	if !known {
		return UnknownMedium, false
	}
	if class, ok := d.fit(); !ok {
		return class, false
	}
	lora, ok := d.loraName()
	if !ok {
		return Oversized, false
	}
	d.Event = prefix.Event{
		Kind: prefix.Stored, Group: int(f.group), Tier: tier, Hashes: d.hashes, Parent: f.parent, HasParent: f.hasParent,
		Tokens: d.tokens, BlockSize: f.blockSize, LoRA: lora,
	}
	if !f.hasParent {
		d.Event.Parent = 0
	}
	if len(d.tokens) == 0 {
		d.Event.Tokens = nil
	}
	d.Event.Window, d.Event.Recurrent = f.attention()
	return d.finishExtras()
}

// fit makes hashes and tokens fit. A last block that is not full has no name for us, and no chain can go on behind it, so it is
// left out; SGLang hashes such tails, though it was not seen to publish them.
func (d *Decoder) fit() (Class, bool) {
	f := &d.f
	if f.blockSize > MaxBlockSize {
		return Oversized, false
	}
	if len(d.tokens) == 0 {
		return 0, true // placeholders: the engine names blocks that it has published before, or does not say what is in them
	}
	if f.blockSize == 0 {
		return BadField, false
	}
	full := len(d.tokens) / f.blockSize
	switch whole := full * f.blockSize; {
	case whole == len(d.tokens) && full == len(d.hashes):
	case whole != len(d.tokens) && full+1 == len(d.hashes):
		d.tokens, d.hashes = d.tokens[:whole], d.hashes[:full]
		if len(d.spans) > full {
			d.spans = d.spans[:full]
		}
	default:
		return BadShape, false
	}
	return 0, true
}

// tier is where, and false if nobody knows the medium.
func (f *fields) tier() (prefix.Tier, bool) {
	t, known := tierOf(f.medium)
	if known && t != prefix.Device && bytes.EqualFold(f.locality, []byte("REMOTE")) {
		t = prefix.External
	}
	return t, known
}

func tierOf(medium []byte) (prefix.Tier, bool) {
	var upper [12]byte
	if len(medium) > len(upper) {
		return 0, false
	}
	for i, c := range medium {
		if 'a' <= c && c <= 'z' { // vLLM's Mooncake connector says cpu
			c -= 'a' - 'A'
		}
		upper[i] = c
	}
	switch string(upper[:len(medium)]) {
	case "", "GPU": // vLLM on a CPU says GPU of its own pool too
		return prefix.Device, true
	case "CPU", "CPU_PINNED":
		return prefix.Host, true
	case "DISK", "STORAGE":
		return prefix.Disk, true
	case "EXTERNAL", "REMOTE":
		return prefix.External, true
	}
	return 0, false
}

// attention says what the group's kind is; see [prefix.Event].
func (f *fields) attention() (window int, recurrent bool) {
	switch string(f.spec) {
	case "full_attention", "mla_attention", "sink_full_attention":
		return 0, false
	case "":
		return int(min(f.window, MaxTokens)), false
	case "sliding_window", "sliding_window_mla":
		if f.window > 0 {
			return int(min(f.window, MaxTokens)), false
		}
	case "mamba":
		return 0, true
	}
	return prefix.Boundless, false
}
