package engine

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var rewrite = flag.Bool("rewrite", false, "write what the scripts print into their files")

// TestScripts runs each file of testdata/scripts: blocks of commands, "----", and what they must print.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/scripts/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) { runScript(t, f) })
	}
}

func runScript(t *testing.T, file string) {
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	s := &script{}
	for i, block := range strings.Split(strings.TrimRight(string(raw), "\n"), "\n\n") {
		if i > 0 {
			got.WriteString("\n")
		}
		cmds, _, isTest := strings.Cut(block+"\n", "----\n")
		got.WriteString(cmds)
		if !isTest {
			continue
		}
		got.WriteString("----\n")
		for line := range strings.Lines(cmds) {
			if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
				s.do(t, &got, line)
			}
		}
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if got.String() != string(raw) {
		t.Errorf("%s: run go test -rewrite and look at the difference; got:\n%s", file, got.String())
	}
}

type script struct {
	c   *Core
	now time.Duration
	buf []Action
}

// do runs one command:
//
//	new blocks=N block=N page=N running=N waiting=N budget=N len=N fixed=D token=D seq=D kv=D speed=F events=1
//	at D                              the present time
//	submit ID prompt=FROM:TO[,FROM:TO…] max=N salt=S lora=S
//	abort ID
//	run [D]                           advance to D, or until idle, following Next; prints the actions
//	load · reset · blocks · spoil prompt=… block=N
func (s *script) do(t *testing.T, w *strings.Builder, line string) {
	f := strings.Fields(line)
	arg := map[string]string{}
	for _, a := range f[1:] {
		if k, v, ok := strings.Cut(a, "="); ok {
			arg[k] = v
		}
	}
	num := func(k string) int { n, _ := strconv.Atoi(arg[k]); return n }
	dur := func(v string) time.Duration {
		if v == "" {
			return 0
		}
		d, err := time.ParseDuration(v)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		return d
	}
	id := func() ID { n, _ := strconv.Atoi(f[1]); return ID(n) }
	switch f[0] {
	case "new":
		speed, _ := strconv.ParseFloat(arg["speed"], 64)
		c, err := New(Config{
			BlockSize: num("block"), KVBlocks: num("blocks"), PageBytes: num("page"), MaxRunning: num("running"),
			MaxWaiting: num("waiting"), MaxBatchTokens: num("budget"), MaxModelLen: num("len"), KVEvents: num("events") == 1,
			Timing: Timing{dur(arg["fixed"]), dur(arg["token"]), dur(arg["seq"]), dur(arg["kv"]), speed},
		})
		s.c, s.now = c, 0
		if err != nil {
			fmt.Fprintln(w, "error:", err)
		}
	case "at":
		s.now = dur(f[1])
	case "submit":
		r := Request{ID: id(), Prompt: promptOf(arg["prompt"]), MaxTokens: num("max"), Salt: arg["salt"], LoRA: arg["lora"]}
		if err := s.c.Submit(s.now, r); err != nil {
			fmt.Fprintln(w, "error:", err)
		}
	case "abort":
		fmt.Fprintln(w, s.c.Abort(s.now, id()))
	case "run":
		s.run(w, f[1:], dur)
	case "load":
		l := s.c.Load()
		fmt.Fprintf(w, "running %d, waiting %d (uncached %d), used %d + queued %d of %d, prefill %d in %v, cache %d/%d, cached blocks %d, preempted %d\n",
			l.Running, l.Waiting, l.WaitingUncachedTokens, l.UsedTokens, l.TotalTokens-l.UsedTokens, l.CapacityTokens,
			l.PrefillUncachedTokens, l.PrefillBusy, l.CacheHitTokens, l.CacheQueryTokens, l.CachedBlocks, l.Preemptions)
	case "reset":
		fmt.Fprintln(w, s.c.ResetPrefixCache(s.now))
	case "hit":
		chain := s.c.Chain(Request{Prompt: promptOf(arg["prompt"]), Salt: arg["salt"], LoRA: arg["lora"]}, nil)
		fmt.Fprintf(w, "%d of %d blocks\n", s.c.pool.match(chain), len(chain))
	case "spoil":
		chain := s.c.Chain(Request{Prompt: promptOf(arg["prompt"])}, nil)
		s.c.Page(chain[num("block")])[0] ^= 1
	default:
		t.Fatalf("unknown command %q", line)
	}
}

func (s *script) run(w *strings.Builder, args []string, dur func(string) time.Duration) {
	end := time.Duration(1<<63 - 1)
	if len(args) > 0 {
		end = dur(args[0])
	}
	for {
		at, ok := s.c.Next()
		if !ok || at > end {
			break
		}
		s.now = max(s.now, at)
		s.buf = s.c.Advance(s.now, s.buf[:0])
		for _, a := range s.buf {
			printAction(w, a)
		}
	}
	if len(args) > 0 {
		s.now = end
	}
}

func printAction(w *strings.Builder, a Action) {
	fmt.Fprintf(w, "%v ", a.At)
	switch a.Kind {
	case Admitted:
		fmt.Fprintf(w, "%d admitted, %d cached\n", a.ID, a.Cached)
	case Token:
		fmt.Fprintf(w, "%d token %d%s\n", a.ID, a.Index, []string{"", " (last)"}[min(a.Reason, 1)])
	case Ended:
		fmt.Fprintf(w, "%d ended: %s\n", a.ID, []string{"unfinished", "length", "corrupt page"}[a.Reason])
	case Preempted:
		fmt.Fprintf(w, "%d preempted\n", a.ID)
	case KV:
		e := a.Event
		switch e.Kind {
		case BlockStored:
			fmt.Fprintf(w, "stored %d blocks, parent %t, tokens %v, salt %q, lora %q\n", len(e.Hashes), e.HasParent, e.Tokens, e.Salt, e.LoRA)
		case BlockRemoved:
			fmt.Fprintf(w, "removed %d blocks\n", len(e.Hashes))
		case AllBlocksCleared:
			fmt.Fprintf(w, "all blocks cleared\n")
		}
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
