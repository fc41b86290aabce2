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
func (s *engineScript) do(c *script.Command) bool {
	switch c.Name {
	case "new":
		s.create(c)
	case "at":
		s.now = c.ParseDuration(c.Word())
	case "submit":
		r := s.request(c)
		r.ID, r.MaxTokens = ID(c.ParseInt(c.Word())), int(c.Int("max", 0))
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
		return false
	}
	return true
}

func (s *engineScript) create(c *script.Command) {
	num := func(key string) int { return int(c.Int(key, 0)) }
	core, err := New(Config{
		BlockSize: num("block"), KVBlocks: num("blocks"), PageBytes: num("page"), MaxRunning: num("running"),
		MaxWaiting: num("waiting"), MaxBatchTokens: num("budget"), MaxModelLen: num("len"), KVEvents: num("events") == 1, Restore: num("outer") == 1,
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
		return fmt.Sprintf("%v %d ended: %s", a.At, a.ID, []string{"unfinished", "length", "corrupt page"}[a.Reason])
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
