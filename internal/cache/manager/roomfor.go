package manager

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// RoomFor says whether a machine has the memory for a pool: fault is why a Manager with it is not to be started, warning what its operator is to
// know; both may be "". The rule: no more than the machine has, nor than the memory.max of the control group that the process is in and of those
// around it, since such a pool cannot be filled and the kernel ends somebody when it is tried; and a warning above what is available now, caches
// that the kernel would give up included. What cannot be read is unknown, and forbids nothing. root is the machine's file system, "/".
func RoomFor(poolBytes uint64, root fs.FS) (fault, warning string) {
	for _, l := range limits(root) {
		if poolBytes > l.bytes {
			return fmt.Sprintf("pool_bytes: %s, and %s", sizeText(poolBytes), l.text), ""
		}
	}
	if n, ok := meminfo(root, "MemAvailable"); ok && poolBytes > n {
		warning = fmt.Sprintf("pool_bytes is %s, and %s of memory are available now", sizeText(poolBytes), sizeText(n))
	}
	return "", warning
}

type limit struct {
	bytes uint64
	text  string
}

// limits are what can be found of what bounds the process's memory.
func limits(root fs.FS) (all []limit) {
	if n, ok := meminfo(root, "MemTotal"); ok {
		all = append(all, limit{n, "the machine has " + sizeText(n) + " of memory"})
	}
	own, _ := fs.ReadFile(root, "proc/self/cgroup")
	for line := range strings.Lines(string(own)) {
		group, unified := strings.CutPrefix(strings.TrimSpace(line), "0::/")
		for ; unified; group = path.Dir(group) {
			at := path.Join("sys/fs/cgroup", group, "memory.max")
			b, err := fs.ReadFile(root, at)
			if n, bad := strconv.ParseUint(string(bytes.TrimSpace(b)), 10, 64); err == nil && bad == nil { // else it is "max"
				all = append(all, limit{n, "/" + at + " allows " + sizeText(n)})
			}
			if group == "." || group == "" {
				break
			}
		}
	}
	return all
}

// meminfo returns a line of /proc/meminfo, in bytes.
func meminfo(root fs.FS, key string) (uint64, bool) {
	b, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return 0, false
	}
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) == 3 && f[0] == key+":" && f[2] == "kB" {
			n, err := strconv.ParseUint(f[1], 10, 50)
			return n << 10, err == nil
		}
	}
	return 0, false
}

// sizeText is bytes for people.
func sizeText(n uint64) string {
	if n >= 1<<30 {
		return strconv.FormatFloat(float64(n)/(1<<30), 'f', 1, 64) + " GiB"
	}
	return strconv.FormatFloat(float64(n)/(1<<20), 'f', 1, 64) + " MiB"
}
