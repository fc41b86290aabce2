//go:build !amd64 || race

package index

// look returns the slots whose entries have a tag, a bit each, and the bucket's word. The tag is in its place, ids are the other bits. A free slot
// has the tag 0. Readers may call it: an entry is never read half written.
func look(b *bucket, tag, ids uint32) (slots, word uint32) { return b.matches(tag, ids) }

// free returns the slots that are free. It is the writer's.
func free(b *bucket) (found uint32) {
	for i := 1; i <= slots; i++ {
		if b.at(i) == 0 {
			found |= 1 << i
		}
	}
	return found
}
