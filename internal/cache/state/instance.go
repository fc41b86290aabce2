package state

import (
	"crypto/sha256"
	"encoding/binary"
	"strconv"
)

// instanceMagic begins what is digested for an instance. Version history: 1 is the first.
const instanceMagic = "perigee/instance\x00\x01"

// MaxRanks bounds the ranks of an instance.
const MaxRanks = 4096

// InstanceID names what all ranks of an instance hold together: SHA-256 of the magic, u16 count, and the ranks' namespace ids. A block of an
// instance is one page a rank and group, its parts, in the order of the ranks given here. So blocks of two instances are exchangeable,
// part by part, if and only if all of their ranks are.
//
// The ranks must be one model's: they may differ in Shard's indexes and in Layout's groups, since stages hold different layers, and must
// be the product of Shard's sizes in number, each there once, in the order of (pipeline, prefill context, decode context, tensor, heads),
// the last fastest. ErrInvalid says which is not.
func InstanceID(ranks []Namespace) (NamespaceID, error) {
	if len(ranks) == 0 || len(ranks) > MaxRanks {
		return NamespaceID{}, fail(ErrInvalid, strconv.Itoa(len(ranks)), " ranks")
	}
	buf := binary.BigEndian.AppendUint16([]byte(instanceMagic), uint16(len(ranks)))
	for i := range ranks {
		id, err := ranks[i].ID()
		if err != nil {
			return NamespaceID{}, err
		}
		buf = append(buf, id[:]...)
	}
	for i := range ranks {
		if err := checkRank(&ranks[0], &ranks[i], i, len(ranks)); err != nil {
			return NamespaceID{}, err
		}
	}
	return NamespaceID(sha256.Sum256(buf)), nil
}

// checkRank wants r to be number i of n ranks whose first is first.
func checkRank(first, r *Namespace, i, n int) error {
	// Below MaxRanks a product of five sizes could overflow only if one of them is beyond it.
	place, size := uint64(0), uint64(1)
	for _, axis := range r.Shard.axes() {
		if axis.Size > MaxRanks || size > MaxRanks {
			return fail(ErrInvalid, "more than MaxRanks ranks")
		}
		place = place*uint64(axis.Size) + uint64(axis.Index)
		size *= uint64(axis.Size)
	}
	if place != uint64(i) || size != uint64(n) {
		return fail(ErrInvalid, "rank ", strconv.Itoa(i), " of ", strconv.Itoa(n), " says that it is ", strconv.FormatUint(place, 10),
			" of ", strconv.FormatUint(size, 10))
	}
	ours, theirs := *first, *r
	ours.Shard, theirs.Shard = first.Shard.shape(), r.Shard.shape()
	ours.Layout.Groups, theirs.Layout.Groups = nil, nil
	if d := Differences(&ours, &theirs); len(d) > 0 {
		return fail(ErrInvalid, "rank ", strconv.Itoa(i), " has another ", d[0].Name, " than rank 0")
	}
	return checkGroups(first, r, i)
}

// checkGroups wants the same rules from all ranks: a boundary is one for all of them.
func checkGroups(first, r *Namespace, i int) error {
	ours, theirs := first.Requirements(), r.Requirements()
	if len(ours) != len(theirs) {
		return fail(ErrInvalid, "rank ", strconv.Itoa(i), " has other groups than rank 0")
	}
	for g := range ours {
		if ours[g] != theirs[g] {
			return fail(ErrInvalid, "rank ", strconv.Itoa(i), " has another rule for group ", strconv.Itoa(g), " than rank 0")
		}
	}
	return nil
}

// axes are the ranks, slowest first.
func (s *Shard) axes() [5]Rank {
	return [...]Rank{s.Pipeline, s.PrefillContext, s.DecodeContext, s.Tensor, s.Heads}
}

// shape is the shard without its place.
func (s *Shard) shape() Shard {
	out := *s
	for _, r := range []*Rank{&out.Tensor, &out.Pipeline, &out.DecodeContext, &out.PrefillContext, &out.Heads} {
		r.Index = 0
	}
	return out
}

// blockMagic begins what is digested for a block's name. Version history: 1 is the first.
const blockMagic = "perigee/block\x00\x01"

// BlockName is the name, of one length, of a block within an instance and group: the engine's hash and what the request adds. Where the
// request adds nothing it is the hash itself, with zeros behind it: an instance's hashes have one length, so that these are no other hash.
// Else it is SHA-256 of the magic, the request's id, u8 length and the hash. Only requests with a salt or an adapter pay for a digest.
func BlockName(h EngineHash, r RequestID) [32]byte {
	if r == (RequestID{}) {
		return h.bytes
	}
	buf := make([]byte, 0, len(blockMagic)+len(r)+1+MaxEngineHash)
	buf = append(append(buf, blockMagic...), r[:]...)
	return sha256.Sum256(h.AppendTo(append(buf, h.size)))
}
