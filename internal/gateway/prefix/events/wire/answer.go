package wire

import "encoding/binary"

// Answer takes a message of a replay apart: ["", topic, number, payload], of older engines ["", number, payload]; at the end the number is -1. The frames keep their memory.
func Answer(frames [][]byte) (seq int64, topic, payload []byte, ok bool) {
	if len(frames) > 0 && len(frames[0]) == 0 {
		frames = frames[1:]
	}
	if len(frames) == 3 {
		topic, frames = frames[0], frames[1:]
	}
	if len(frames) != 2 || len(frames[0]) != 8 {
		return 0, nil, nil, false
	}
	return int64(binary.BigEndian.Uint64(frames[0])), topic, frames[1], true
}
