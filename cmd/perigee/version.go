package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// versionCmd prints what was built.
type versionCmd struct{}

// Run prints one line: the module's version, the commit where the build knows it, the compiler and the platform.
func (versionCmd) Run(rc *runContext) error {
	version, commit := "(devel)", ""
	if bi, ok := debug.ReadBuildInfo(); ok {
		if bi.Main.Version != "" {
			version = bi.Main.Version
		}
		for _, s := range bi.Settings {
			if s.Key == "vcs.revision" {
				commit = " " + s.Value
			}
		}
	}
	_, err := fmt.Fprintf(rc.stdout, "perigee %s%s %s %s/%s\n", version, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}
