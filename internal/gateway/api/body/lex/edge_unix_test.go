//go:build unix

package lex

import (
	"os"
	"syscall"
	"testing"
)

// TestStringStaysInside reads strings of each length that end where memory does. Who reads beyond, crashes.
func TestStringStaysInside(t *testing.T) {
	page := os.Getpagesize()
	mem, err := syscall.Mmap(-1, 0, 2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Munmap(mem) }()
	if err := syscall.Mprotect(mem[page:], syscall.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	for i := range mem[:page] {
		mem[i] = '~'
	}
	for length := range 200 {
		b := mem[page-length-1 : page : page]
		b[0] = '"'
		if ok, s := whole(b); ok || s.Fault != Syntax || s.At != len(b) {
			t.Errorf("%d bytes without an end: %v, fault %d at %d", length, ok, s.Fault, s.At)
		}
		b[len(b)-1] = '"'
		if ok, _ := whole(b); ok != (length > 0) {
			t.Errorf("%d bytes with an end: %v", length, ok)
		}
		b[len(b)-1] = '\\'
		if ok, s := whole(b); ok || s.Fault != Syntax {
			t.Errorf("%d bytes with half an escape: %v, fault %d", length, ok, s.Fault)
		}
		b[0], b[len(b)-1] = '~', '~'
	}
}
