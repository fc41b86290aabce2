package bpe

import "runtime"

// A scratch is what one call of Encode works with. It belongs to one call at a time.
type scratch struct {
	syms  []uint32
	ranks []uint32
	links []link
	heap  heap
	own   []uint32 // the answer of a question that a word asks about itself
	norm  []byte   // the text after a replacement
	nfc   []byte   // the text in normal form
	piece int      // see splitter
	fold  []rune   // one run of combining characters
	run   []byte   // the same, short and composed
	words *wordCache

	maxWord int  // of this call; 0: any
	tooLong bool // it met a longer one: the ids are of no use
}

type link struct{ prev, next int32 }

// keepSymbols bounds what a scratch keeps between calls: [WordBytes] a symbol, so 1.3 MB. Only words that long, which are
// not words, need more, and pay for it themselves.
const keepSymbols = 1 << 15

// keepNorm is the same for normalized text: the longest prompts in use are of about this many bytes.
const keepNorm = 1 << 20

func (s *scratch) trim() {
	if cap(s.syms) > keepSymbols || cap(s.own) > keepSymbols || cap(s.fold) > keepSymbols {
		s.syms, s.ranks, s.links, s.heap, s.own, s.fold = nil, nil, nil, nil, nil, nil
	}
	if cap(s.norm) > keepNorm || cap(s.nfc) > keepNorm {
		s.norm, s.nfc = nil, nil
	}
}

// A scratchPool keeps one scratch for each processor: more calls cannot run at the same instant. Not a sync.Pool,
// which the collector empties: a scratch holds the word cache, which takes a while to fill.
type scratchPool struct {
	free    chan *scratch
	noWords bool // for the tests and benchmarks that want to see the speed without the word cache
}

func newScratchPool() *scratchPool {
	return &scratchPool{free: make(chan *scratch, runtime.GOMAXPROCS(0))}
}

func (p *scratchPool) get() *scratch {
	select {
	case s := <-p.free:
		return s
	default:
		s := &scratch{}
		if !p.noWords {
			s.words = &wordCache{}
		}
		return s
	}
}

func (p *scratchPool) put(s *scratch) {
	s.trim()
	select {
	case p.free <- s:
	default: // more calls than processors: one of them was put aside while it ran
	}
}

// A wordCache remembers the tokens of words. It has one place for each word, and the last to come keeps it: anything
// cleverer costs more than a merge of a word of a few letters. 512 KiB, half a second-level cache.
type wordCache [1 << 13]wordLine

// A wordLine is one line of memory: longer words, and words of more tokens, are too rare to pay for two.
type wordLine struct {
	len, n uint8
	key    [30]byte
	ids    [8]uint32
}

// line returns the place for w, nil if there is none.
func (c *wordCache) line(w string, h uint64) *wordLine {
	if c == nil || len(w) > len(wordLine{}.key) {
		return nil
	}
	return &c[h>>40%uint64(len(c))]
}

func (l *wordLine) holds(w string) bool { return int(l.len) == len(w) && string(l.key[:l.len]) == w }

func (l *wordLine) put(w string, ids []uint32) {
	if len(ids) <= len(l.ids) {
		l.len, l.n = uint8(len(w)), uint8(len(ids))
		copy(l.key[:], w)
		copy(l.ids[:], ids)
	}
}
