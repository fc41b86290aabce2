//go:build linux

// Command loop is what speed.py holds restores against: one goroutine that copies pages out of one memory into pieces of another and checksums each, as the Manager does it,
// with the same checksum.
//
//	loop SOURCE DESTINATION BYTES PIECE...
//
// SOURCE and DESTINATION are files that it maps, BYTES is how long a page is, and PIECE how long each of its pieces. A line of its input has, as decimal numbers, where each page lies in the
// source, and then where each of the pages' pieces goes in the destination. It does all of them once, and writes how many nanoseconds that took and the checksums' sum, since what
// nobody reads is not computed. What a line says is read before the time begins. With 0 it copies by Go's copy and sums afterwards, with 1 it does both in one pass that passes the
// caches by, where the pieces are made for that, as the Manager does.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/perigee-llm/perigee/internal/cache/copysum"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 4 {
		return fmt.Errorf("usage: loop SOURCE DESTINATION BYTES PIECE")
	}
	sizes, err := numbers(args[2:])
	if err != nil {
		return err
	}
	from, err := mapped(args[0], syscall.PROT_READ)
	if err != nil {
		return err
	}
	to, err := mapped(args[1], syscall.PROT_READ|syscall.PROT_WRITE)
	if err != nil {
		return err
	}
	bytes, pieces := sizes[0], sizes[1:]
	lines := bufio.NewScanner(os.Stdin)
	for lines.Buffer(nil, 16<<20); lines.Scan(); {
		places, err := numbers(strings.Fields(lines.Text()))
		if err != nil {
			return err
		}
		past, places := places[0] == 1, places[1:]
		for _, n := range pieces[:len(pieces)-1] {
			past = past && n%copysum.Block == 0
		}
		past = past && copysum.CanSum(bytes, pieces[len(pieces)-1])
		pages := len(places) / (1 + len(pieces))
		took, sum := once(from, to, places[:pages], places[pages:], bytes, pieces, past)
		fmt.Println(took.Nanoseconds(), sum)
	}
	return lines.Err()
}

func once(from, to []byte, pages, places []int, bytes int, pieces []int, past bool) (time.Duration, uint64) {
	sum, began := uint64(0), time.Now()
	for i, at := range pages {
		page := from[at:][:bytes]
		done := 0
		var s copysum.Sum
		for j, n := range pieces {
			dst, src := to[places[i*len(pieces)+j]:][:n], page[done:][:n]
			switch {
			case !past:
				copy(dst, src)
			case j < len(pieces)-1:
				s.Past(dst, src)
			default:
				sum ^= s.End(dst, src)
			}
			done += n
		}
		if !past {
			sum ^= xxh3.Hash(page)
		}
	}
	copysum.Fence()
	return time.Since(began), sum
}

func numbers(words []string) ([]int, error) {
	out := make([]int, len(words))
	for i, w := range words {
		n, err := strconv.Atoi(w)
		if err != nil {
			return nil, err
		}
		out[i] = n
	}
	return out, nil
}

func mapped(path string, prot int) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return syscall.Mmap(int(f.Fd()), 0, int(s.Size()), prot, syscall.MAP_SHARED|syscall.MAP_POPULATE)
}
