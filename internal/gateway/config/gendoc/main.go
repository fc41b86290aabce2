// Command gendoc writes the configuration reference to the file that it is given. A test of package config fails when the file is
// older than the schema.
package main

import (
	"fmt"
	"os"

	"github.com/perigee-llm/perigee/internal/gateway/config"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gendoc FILE")
		os.Exit(2)
	}
	if err := os.WriteFile(os.Args[1], []byte(config.Reference()), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, "gendoc:", err)
		os.Exit(1)
	}
}
