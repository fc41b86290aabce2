// Command isstatic proves that Linux binaries need nothing beside themselves: built without cgo, with no program
// interpreter and no shared library. It exits 1 and names the first fault of each file that fails.
package main

import (
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"fmt"
	"os"
)

func main() {
	code := 0
	for _, name := range os.Args[1:] {
		if err := check(name); err != nil {
			fmt.Fprintf(os.Stderr, "%s: not static: %v\n", name, err)
			code = 1
		}
	}
	os.Exit(code)
}

// check returns why the binary cannot run alone, or nil.
func check(name string) error {
	bi, err := buildinfo.ReadFile(name)
	if err != nil {
		return err
	}
	for _, s := range bi.Settings {
		if s.Key == "CGO_ENABLED" && s.Value != "0" {
			return errors.New("built with cgo: set CGO_ENABLED=0")
		}
	}
	f, err := elf.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			return fmt.Errorf("it has a %v segment, so it asks for a dynamic loader", p.Type)
		}
	}
	return nil
}
