package managerwire

import "encoding/binary"

// What a gateway sends to the snapshot socket, behind an empty frame; and the first frame, behind another empty one, of what it gets.
const (
	SnapshotRequest = "snapshot.v1"
	HeaderWord      = "header"
	ChunkWord       = "chunk"
	EndWord         = "end"
	ErrorWord       = "error"
)

// Message is the frames of a live batch.
func Message(sequence uint64, batch []byte) [][]byte {
	return [][]byte{[]byte(Topic), be(sequence), batch}
}

// Replayed is the frames of a batch that is sent again.
func Replayed(sequence uint64, batch []byte) [][]byte {
	return [][]byte{nil, []byte(Topic), be(sequence), batch}
}

// ReplayEnd is the frames behind the last of a replay.
func ReplayEnd() [][]byte { return [][]byte{nil, nil, be(1<<64 - 1), nil} }

// ReplayFrom reads a request to the replay socket: the number of the first batch that is wanted. It returns false for what is none.
func ReplayFrom(frames [][]byte) (sequence uint64, ok bool) {
	if len(frames) != 2 || len(frames[0]) != 0 || len(frames[1]) != 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(frames[1]), true
}

// IsSnapshotRequest tells whether a message to the snapshot socket is a request of this version.
func IsSnapshotRequest(frames [][]byte) bool {
	return len(frames) == 2 && len(frames[0]) == 0 && string(frames[1]) == SnapshotRequest
}

// SnapshotHeader is the frames that a snapshot begins with: {"epoch", "resume", "records"}. Resume is the number of the first live batch
// that is not in it; records is how many events its chunks have, all together. With a resume of 0 there are none.
func SnapshotHeader(epoch, resume, records uint64) [][]byte {
	b := number(text([]byte{0x83}, "epoch"), epoch)
	b = number(text(b, "resume"), resume)
	b = number(text(b, "records"), records)
	return [][]byte{nil, []byte(HeaderWord), b}
}

// SnapshotChunk is the frames of a part of a snapshot, which is a batch of at most [ChunkBlocks] blocks.
func SnapshotChunk(batch []byte) [][]byte { return [][]byte{nil, []byte(ChunkWord), batch} }

// SnapshotEnd is the frames behind the last chunk.
func SnapshotEnd() [][]byte { return [][]byte{nil, []byte(EndWord)} }

// SnapshotError is the frames of a snapshot that cannot be had, or not to its end. The text is for people.
func SnapshotError(what string) [][]byte {
	return [][]byte{nil, []byte(ErrorWord), []byte(what)}
}

func be(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
