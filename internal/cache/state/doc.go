// Package state says what a page of KV state is and when pages make a prefix that an engine can go on from: the identity, the
// recovery rules and the descriptors that the Cache Manager's parts share. It decides nothing about where pages live.
//
// It promises:
//
//   - Two pages have one [StateKey] only if their bytes are interchangeable: every field of a [Namespace], and every field of a
//     [Request], goes into the key. A page is opaque; nothing here converts one layout into another.
//   - An encoding is canonical: bytes decode to one value and that value encodes to the same bytes, or they are refused. So ids that
//     were computed in different languages agree, and docs/cache-identity.md is all that they need.
//   - A [Contract] answers with whole sets of boundaries. A boundary is in the set only if every group of the model can resume there,
//     so that ranks may intersect their sets; the longest boundary of one rank proves nothing for another.
//   - What cannot be known is an error or "unknown", never a zero that looks like an answer.
//
// The package is pure. All types are values that the holder owns; functions keep none of their arguments, and any of them may be called
// at once as long as nobody writes to what they read.
package state
