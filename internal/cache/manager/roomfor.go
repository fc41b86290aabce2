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
//
// With huge, arenas lie in huge pages where there are some. Those are of the machine's memory, but memory.max does not count them, and what is reserved
// for them is not available to others: the bounds are for what goes beyond those that are free. There is a warning then, and no fault, since how many
// are free when engines register nobody knows yet: those of a Manager that ran before stay taken until its engines let go.
func RoomFor(poolBytes uint64, huge bool, root fs.FS) (fault, warning string) {
	total, totalKnown := meminfo(root, "MemTotal")
	if totalKnown && poolBytes > total {
		return fmt.Sprintf("pool_bytes: %s, and the machine has %s of memory", sizeText(poolBytes), sizeText(total)), ""
	}
	ordinary, what := poolBytes, "pool_bytes"
	if huge {
		free, known := freeHuge(root)
		switch {
		case !known:
			return "", "huge_pages: how many are free is not known"
		case poolBytes <= free:
			return "", ""
		}
		ordinary, what = poolBytes-free, "pool_bytes beyond the free huge pages"
		warning = fmt.Sprintf("pool_bytes is %s, and %s of huge pages are free: the rest takes ordinary ones", sizeText(poolBytes), sizeText(free))
	}
	for _, l := range limits(root) {
		switch {
		case ordinary <= l.bytes:
		case huge:
			return "", fmt.Sprintf("%s, and %s", warning, l.text)
		default:
			return fmt.Sprintf("%s: %s, and %s", what, sizeText(ordinary), l.text), ""
		}
	}
	if n, ok := meminfo(root, "MemAvailable"); ok && ordinary > n {
		warning = fmt.Sprintf("%s is %s, and %s of memory are available now", what, sizeText(ordinary), sizeText(n))
	}
	return "", warning
}

// freeHuge is how many bytes of huge pages of 2 MiB nobody has, nor has been promised.
func freeHuge(root fs.FS) (uint64, bool) {
	count := func(name string) (uint64, bool) {
		b, err := fs.ReadFile(root, "sys/kernel/mm/hugepages/hugepages-2048kB/"+name)
		n, bad := strconv.ParseUint(string(bytes.TrimSpace(b)), 10, 40)
		return n, err == nil && bad == nil
	}
	free, known := count("free_hugepages")
	promised, alsoKnown := count("resv_hugepages")
	if known && alsoKnown {
		return (free - min(free, promised)) << 21, true
	}
	// Where /sys is not to be seen; these are of the kernel's usual size, which may be another one.
	if size, ok := meminfo(root, "Hugepagesize"); !ok || size != 2<<20 {
		return 0, false
	}
	free, known = meminfo(root, "HugePages_Free")
	promised, alsoKnown = meminfo(root, "HugePages_Rsvd")
	return (free - min(free, promised)) << 21, known && alsoKnown
}

type limit struct {
	bytes uint64
	text  string
}

// limits are what can be found of what bounds the memory of the process's control groups.
func limits(root fs.FS) (all []limit) {
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

// meminfo returns a line of /proc/meminfo, in bytes, or a count where the line is one.
func meminfo(root fs.FS, key string) (uint64, bool) {
	b, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return 0, false
	}
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) < 2 || f[0] != key+":" {
			continue
		}
		n, err := strconv.ParseUint(f[1], 10, 40)
		if len(f) == 3 && f[2] == "kB" {
			n <<= 10
		} else if len(f) > 2 {
			return 0, false
		}
		return n, err == nil
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
