//go:build !race

package index

// look returns the slots whose entries have a tag, a bit each, and the bucket's word. The tag is in its place, ids are the other bits. A free slot
// has the tag 0. Readers may call it: an entry is never read half written.
//
//go:noescape
func look(b *bucket, tag, ids uint32) (slots, word uint32)

// free returns the slots that are free. It is the writer's.
func free(b *bucket) uint32 {
	slots, _ := look(b, 0, 0)
	return slots
}
