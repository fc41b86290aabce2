//go:build linux

// Command loop is what speed.py holds restores against: one goroutine that copies pages out of one memory into pieces of another and checksums each, as the Manager does it,
// with the same checksum.
//
//	loop SOURCE DESTINATION PAGES BYTES FROM FIRST SECOND
//
// SOURCE and DESTINATION are files that it maps. Page i lies in the source at FROM + i·BYTES as a whole; its first half goes to FIRST + i·BYTES/2 of the destination, the other to
// SECOND + i·BYTES/2. For each line of its input it does all pages once, and writes how many nanoseconds that took and the
// checksums' sum, since what nobody reads is not computed.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/zeebo/xxh3"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 7 {
		return fmt.Errorf("usage: loop SOURCE DESTINATION PAGES BYTES FROM FIRST SECOND")
	}
	var n [5]int
	for i := range n {
		v, err := strconv.Atoi(args[2+i])
		if err != nil {
			return err
		}
		n[i] = v
	}
	from, err := mapped(args[0], syscall.PROT_READ)
	if err != nil {
		return err
	}
	to, err := mapped(args[1], syscall.PROT_READ|syscall.PROT_WRITE)
	if err != nil {
		return err
	}
	pages, half := n[0], n[1]/2
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		sum, t := uint64(0), time.Now()
		for i := range pages {
			page := from[n[2]+2*half*i:][:2*half]
			copy(to[n[3]+half*i:][:half], page)
			copy(to[n[4]+half*i:][:half], page[half:])
			sum ^= xxh3.Hash(page)
		}
		fmt.Println(time.Since(t).Nanoseconds(), sum)
	}
	return nil
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
