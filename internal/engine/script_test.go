package engine

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/script"
)

// TestScripts runs the engine through scripts; engineScript.do lists the commands.
func TestScripts(t *testing.T) {
	script.Run(t, "testdata/scripts/*.txt", func(*testing.T) script.Interpreter { return new(engineScript).do })
}

type engineScript struct {
	c      *Core
	now    time.Duration
	buf    []Action
	wanted map[ID]*Wanted // of each Restore that is open
}

// do runs one command:
//
//	new blocks=N block=N page=N running=N waiting=N budget=N len=N fixed=D token=D seq=D kv=D speed=N events=1
//	at D                              the present time
//	submit ID prompt=FROM:TO[,FROM:TO…] max=N salt=S lora=S
//	abort ID
//	run [D]                           advance to D, or until idle, following Next; prints the actions
//	load · reset · hit prompt=… · spoil prompt=… block=N
//	found ID N                        the outer cache has so many of the blocks that were asked for
//	restored ID N spoil=I             so many of them are in place, the page of block I with a wrong byte
//
// Of pairs, with new pairing=push noreuse=1 meet=D hold=D fetch=D and submit … half=prefill|decode room=R:
//
//	join R · leave R [taken=1]        the decode engine comes to the room, and goes
//	fetched ID prompt=… cached=N      the KV of that prompt is there, with the first token 'x'
//	notfetched ID
func (s *engineScript) do(c *script.Command) bool {
	switch c.Name {
	case "new":
		s.create(c)
	case "at":
		s.now = c.ParseDuration(c.Word())
	case "submit":
		r := s.request(c)
		r.ID, r.MaxTokens, r.Room = ID(c.ParseInt(c.Word())), int(c.Int("max", 0)), c.Arg("room", "")
		r.Half = map[string]Half{"": Whole, "prefill": PrefillHalf, "decode": DecodeHalf}[c.Arg("half", "")]
		if err := s.c.Submit(s.now, r); err != nil {
			c.Print("error:", err.Error())
		}
	case "abort":
		c.Print(fmt.Sprint(s.c.Abort(s.now, ID(c.ParseInt(c.Word())))))
	case "run":
		s.run(c)
	case "found":
		if !s.c.Found(s.now, ID(c.ParseInt(c.Word())), int(c.ParseInt(c.Word()))) {
			c.Print("nobody waits for it")
		}
	case "restored":
		s.restored(c)
	case "load":
		l := s.c.Load()
		c.Print(fmt.Sprintf("running %d, waiting %d (uncached %d), used %d + queued %d of %d, prefill %d in %v, cache %d/%d, cached blocks %d, preempted %d",
			l.Running, l.Waiting, l.WaitingUncachedTokens, l.UsedTokens, l.TotalTokens-l.UsedTokens, l.CapacityTokens,
			l.PrefillUncachedTokens, l.PrefillBusy, l.CacheHitTokens, l.CacheQueryTokens, l.CachedBlocks, l.Preemptions))
		if s.c.cfg.Restore {
			c.Print(fmt.Sprintf("restoring %d, restored %d/%d", l.Restoring, l.RestoredTokens, l.LookupTokens))
		}
	case "reset":
		c.Print(fmt.Sprint(s.c.ResetPrefixCache(s.now)))
	case "hit":
		chain := s.c.Chain(s.request(c), nil)
		c.Print(fmt.Sprintf("%d of %d blocks", s.c.pool.match(chain), len(chain)))
	case "spoil":
		s.c.Page(s.c.Chain(s.request(c), nil)[c.Int("block", 0)])[0] ^= 1
	default:
		return s.pair(c)
	}
	return true
}

// pair runs the commands of pairs.
func (s *engineScript) pair(c *script.Command) bool {
	switch c.Name {
	case "join":
		if err := s.c.Join(s.now, c.Word()); err != nil {
			c.Print("error:", err.Error())
		}
	case "leave":
		if !s.c.Leave(s.now, c.Word(), c.Int("taken", 0) == 1) {
			c.Print("nobody was there")
		}
	case "fetched":
		r := s.request(c)
		h := Handover{Prompt: rootHash(r.LoRA, "").next(r.Prompt), Length: len(r.Prompt), Token: 'x', Cached: int(c.Int("cached", 0))}
		if !s.c.Fetched(s.now, ID(c.ParseInt(c.Word())), h) {
			c.Print("nobody waits for it")
		}
	case "notfetched":
		if !s.c.NotFetched(s.now, ID(c.ParseInt(c.Word()))) {
			c.Print("nobody waits for it")
		}
	case "pairs":
		l := s.c.Load()
		c.Print(fmt.Sprintf("meeting %d+%d, held %d (%d tokens), fetching %d, fetched %d, unfetched %d, expired %d",
			l.Meeting, l.Joined, l.Held, l.HeldTokens, l.Fetching, l.FetchedTokens, l.Unfetched, l.RoomsExpired))
	default:
		return false
	}
	return true
}

func (s *engineScript) create(c *script.Command) {
	num := func(key string) int { return int(c.Int(key, 0)) }
	core, err := New(Config{
		BlockSize: num("block"), KVBlocks: num("blocks"), PageBytes: num("page"), MaxRunning: num("running"),
		MaxWaiting: num("waiting"), MaxBatchTokens: num("budget"), MaxModelLen: num("len"), KVEvents: num("events") == 1, Restore: num("outer") == 1,
		Pairing: map[string]Pairing{"": Pull, "push": Push}[c.Arg("pairing", "")], NoReuse: num("noreuse") == 1,
		MeetFor: c.Duration("meet", 0), HoldFor: c.Duration("hold", 0), FetchFor: c.Duration("fetch", 0),
		Timing: Timing{
			StepFixed: c.Duration("fixed", 0), PrefillPerToken: c.Duration("token", 0), DecodePerSeq: c.Duration("seq", 0), PerKVToken: c.Duration("kv", 0),
			Speed: float64(num("speed")),
		},
	})
	s.c, s.now, s.wanted = core, 0, map[ID]*Wanted{}
	if err != nil {
		c.Print("error:", err.Error())
	}
}

func (s *engineScript) restored(c *script.Command) {
	id, n := ID(c.ParseInt(c.Word())), int(c.ParseInt(c.Word()))
	if w := s.wanted[id]; w != nil {
		for i, p := range w.Pages[:min(n, len(w.Pages))] {
			w.Hashes[i].Fill(p)
		}
		if bad := int(c.Int("spoil", -1)); bad >= 0 {
			w.Pages[bad][0] ^= 1
		}
		delete(s.wanted, id)
	}
	if !s.c.Restored(s.now, id, n) {
		c.Print("there was no such restore")
	}
}

func (s *engineScript) request(c *script.Command) Request {
	return Request{Prompt: promptOf(c.Arg("prompt", "")), Salt: c.Arg("salt", ""), LoRA: c.Arg("lora", "")}
}

func (s *engineScript) run(c *script.Command) {
	end, limited := time.Duration(1<<63-1), false
	for _, w := range c.Words() {
		end, limited = c.ParseDuration(w), true
	}
	for {
		at, ok := s.c.Next()
		if !ok || at > end {
			break
		}
		s.now = max(s.now, at)
		s.buf = s.c.Advance(s.now, s.buf[:0])
		for _, a := range s.buf {
			c.Print(show(a))
			if a.Kind == Restore {
				s.wanted[a.ID] = a.Wanted
			}
		}
	}
	if limited {
		s.now = end
	}
}

var reasons = []string{"unfinished", "length", "corrupt page", "not fetched", "taken", "left", "unmatched", "expired"}

func show(a Action) string {
	switch a.Kind {
	case Admitted:
		if a.Restored > 0 {
			return fmt.Sprintf("%v %d admitted, %d cached, %d of them restored", a.At, a.ID, a.Cached, a.Restored)
		}
		return fmt.Sprintf("%v %d admitted, %d cached", a.At, a.ID, a.Cached)
	case Lookup:
		return fmt.Sprintf("%v %d asks for %d blocks from block %d", a.At, a.ID, len(a.Wanted.Hashes), a.Wanted.First)
	case Restore:
		return fmt.Sprintf("%v %d restores %d blocks from block %d", a.At, a.ID, len(a.Wanted.Hashes), a.Wanted.First)
	case Token:
		return fmt.Sprintf("%v %d token %d%s", a.At, a.ID, a.Index, []string{"", " (last)"}[a.Reason])
	case Ended:
		return fmt.Sprintf("%v %d ended: %s", a.At, a.ID, reasons[a.Reason])
	case Fetch:
		return fmt.Sprintf("%v %d fetches %d tokens, %d cached", a.At, a.ID, a.Missing, a.Cached)
	case Ready:
		return fmt.Sprintf("%v room %s is ready: %d tokens, %d of them cached", a.At, a.Room, a.Handover.Length, a.Handover.Cached)
	case Closed:
		if !a.HasID {
			return fmt.Sprintf("%v room %s closed: %s", a.At, a.Room, reasons[a.Reason])
		}
		return fmt.Sprintf("%v room %s of %d closed: %s", a.At, a.Room, a.ID, reasons[a.Reason])
	case Preempted:
		return fmt.Sprintf("%v %d preempted", a.At, a.ID)
	}
	switch e := a.Event; e.Kind {
	case BlockStored:
		if e.Restored {
			return fmt.Sprintf("%v stored %d restored blocks, parent %t, tokens %v", a.At, len(e.Hashes), e.HasParent, e.Tokens)
		}
		return fmt.Sprintf("%v stored %d blocks, parent %t, tokens %v, salt %q, lora %q", a.At, len(e.Hashes), e.HasParent, e.Tokens, e.Salt, e.LoRA)
	case BlockRemoved:
		return fmt.Sprintf("%v removed %d blocks", a.At, len(e.Hashes))
	default:
		return fmt.Sprintf("%v all blocks cleared", a.At)
	}
}

// promptOf reads "0:8,100:104" as the tokens 0 to 7 and 100 to 103.
func promptOf(spec string) []uint32 {
	var p []uint32
	for part := range strings.SplitSeq(spec, ",") {
		from, to, _ := strings.Cut(part, ":")
		a, _ := strconv.Atoi(from)
		b, _ := strconv.Atoi(to)
		for ; a < b; a++ {
			p = append(p, uint32(a))
		}
	}
	return p
}
