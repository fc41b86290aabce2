// Command tokenizers measures our tokenizers beside the reference implementation, in one run and on the same texts: the
// code and the prose that the tests of package bpe use. It prints a table; nothing else depends on it.
//
// One core each: ours by GOMAXPROCS, the reference because one text is encoded at a time. The reference's figure
// includes its Node binding and the offsets that it tracks, so the ratio says "several times", not more. The first pass
// is with empty word caches on both sides, the best one with full ones.
//
// Needs scripts/tokenizers.sh --oracle once, and node.
package main

import (
	"compress/gzip"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/tokens/bpe"
)

// A result is of one implementation on one text; times in seconds.
type result struct {
	Load, First, Best float64
	Tokens            int
}

func main() {
	passes := flag.Int("passes", 8, "passes over each text; the fastest counts")
	root := flag.String("root", ".", "root of the repository")
	flag.Parse()
	if err := run(*root, *passes); err != nil {
		fmt.Fprintln(os.Stderr, "tokenizers:", err)
		os.Exit(1)
	}
}

func run(root string, passes int) error {
	runtime.GOMAXPROCS(1)
	cache := filepath.Join(root, ".cache/tokenizers")
	dir, err := os.MkdirTemp("", "tokenizers")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	fmt.Printf("%-12s %-6s %8s | %9s %9s %8s | %9s %9s %8s | %6s %6s\n", "tokenizer", "text", "tokens", "ours 1st", "best MB/s", "load ms", "ref. 1st", "best MB/s", "load ms", "1st", "best")
	for _, name := range []string{"llama3_1", "qwen3", "deepseek_v3", "gptoss", "gemma3"} {
		for _, sample := range []string{"code", "prose"} {
			text, err := sampleText(root, sample)
			if err != nil {
				return err
			}
			file := filepath.Join(dir, sample)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				return err
			}
			vocab := filepath.Join(cache, name+".json")
			ours, err := measure(vocab, text, passes)
			if err != nil {
				return fmt.Errorf("%w; run scripts/tokenizers.sh --oracle first", err)
			}
			ref, err := reference(root, cache, vocab, file, passes)
			if err != nil {
				return err
			}
			if ours.Tokens != ref.Tokens {
				return fmt.Errorf("%s, %s: %d tokens, the reference has %d", name, sample, ours.Tokens, ref.Tokens)
			}
			mb := float64(len(text)) / 1e6
			fmt.Printf("%-12s %-6s %8d | %9.1f %9.1f %8.0f | %9.1f %9.1f %8.0f | %5.1fx %5.1fx\n", name, sample, ours.Tokens,
				mb/ours.First, mb/ours.Best, 1e3*ours.Load, mb/ref.First, mb/ref.Best, 1e3*ref.Load, ref.First/ours.First, ref.Best/ours.Best)
		}
	}
	return prefixes(root, cache, passes)
}

// prefixes shows what a prefix of about 8,192 tokens costs when it comes again with another turn after it.
func prefixes(root, cache string, passes int) error {
	text, err := sampleText(root, "prose")
	if err != nil {
		return err
	}
	text = text[:32<<10]
	fmt.Printf("\n%-12s %8s %14s %14s %8s %14s\n", "tokenizer", "tokens", "first time us", "again us", "ratio", "cache bytes")
	for _, name := range []string{"llama3_1", "qwen3", "deepseek_v3", "gptoss", "gemma3"} {
		tok, err := bpe.Open(filepath.Join(cache, name+".json"))
		if err != nil {
			return err
		}
		ids := tok.Encode(nil, text, bpe.Options{}) // a process that has been at work for a while
		first, again, bytes := time.Hour, time.Hour, 0
		for range 10 * passes {
			o := bpe.Options{Cache: bpe.NewCache(1 << 22)}
			begin := time.Now()
			ids = tok.Encode(ids[:0], text, o)
			first = min(first, time.Since(begin))
			begin = time.Now()
			ids = tok.Encode(ids[:0], text+"\nAnd one more turn.", o)
			again = min(again, time.Since(begin))
			bytes = o.Cache.Bytes()
		}
		fmt.Printf("%-12s %8d %14.0f %14.0f %7.3f %14d\n", name, len(ids), 1e6*first.Seconds(), 1e6*again.Seconds(), again.Seconds()/first.Seconds(), bytes)
	}
	return nil
}

func sampleText(root, name string) (string, error) {
	f, err := os.Open(filepath.Join(root, "internal/gateway/tokens/bpe/testdata", name+".txt.gz"))
	if err != nil {
		return "", err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(z)
	return string(b), err
}

func measure(vocab, text string, passes int) (r result, err error) {
	begin := time.Now()
	tok, err := bpe.Open(vocab)
	if err != nil {
		return r, err
	}
	r.Load = time.Since(begin).Seconds()
	var ids []uint32
	for i := range passes {
		begin := time.Now()
		ids = tok.Encode(ids[:0], text, bpe.Options{})
		s := time.Since(begin).Seconds()
		if i == 0 {
			r.First, r.Best = s, s
		}
		r.Best = min(r.Best, s)
	}
	r.Tokens = len(ids)
	return r, nil
}

func reference(root, cache, vocab, text string, passes int) (r result, err error) {
	cmd := exec.Command("node", filepath.Join(root, "bench/tokenizers/oracle.js"), vocab, text, strconv.Itoa(passes))
	cmd.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(cache, "oracle/node_modules"), "RAYON_NUM_THREADS=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return r, fmt.Errorf("the reference implementation: %w", err)
	}
	return r, json.Unmarshal(out, &r)
}
