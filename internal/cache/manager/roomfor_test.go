package manager

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

func TestRoomFor(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	mem := file("MemTotal:       8388608 kB\nMemFree:  1 kB\nMemAvailable:    4194304 kB\n") // 8 GiB, 4 GiB

	// group lets have 1 GiB of memory.
	group := func(files fstest.MapFS) fstest.MapFS {
		files["proc/self/cgroup"], files["sys/fs/cgroup/memory.max"] = file("0::/\n"), file("1073741824\n")
		return files
	}
	huge := func(free, promised string) fstest.MapFS { // pages of 2 MiB
		const at = "sys/kernel/mm/hugepages/hugepages-2048kB/"
		return fstest.MapFS{"proc/meminfo": mem, at + "free_hugepages": file(free + "\n"), at + "resv_hugepages": file(promised + "\n")}
	}
	told := func(size string) fstest.MapFS {
		return fstest.MapFS{"proc/meminfo": file(string(mem.Data) + "HugePages_Free:   2600\nHugePages_Rsvd:      40\nHugepagesize:       " + size + " kB\n")}
	}
	for _, c := range []struct {
		name           string
		pool           uint64
		root           fstest.MapFS
		fault, warning string
		huge           bool
	}{
		{"it is there", 4 << 30, fstest.MapFS{"proc/meminfo": mem}, "", "", false},
		{"caches have to go", 4<<30 + 1, fstest.MapFS{"proc/meminfo": mem}, "", "4.0 GiB of memory are available", false},
		{"more than there is", 8<<30 + 1, fstest.MapFS{"proc/meminfo": mem}, "the machine has 8.0 GiB", "", false},
		{"the group's bound", 3 << 30, fstest.MapFS{
			"proc/meminfo": mem, "proc/self/cgroup": file("0::/a/b\n"), "sys/fs/cgroup/a/b/memory.max": file("2147483648\n"),
		}, "/sys/fs/cgroup/a/b/memory.max allows 2.0 GiB", "", false},
		{"one around it", 3 << 30, fstest.MapFS{
			"proc/meminfo": mem, "proc/self/cgroup": file("1:cpu:/\n0::/a/b\n"), "sys/fs/cgroup/a/b/memory.max": file("max\n"), "sys/fs/cgroup/a/memory.max": file("1073741824\n"),
		}, "/sys/fs/cgroup/a/memory.max allows 1.0 GiB", "", false},
		{"in a container", 3 << 30, fstest.MapFS{
			"proc/meminfo": mem, "proc/self/cgroup": file("0::/\n"), "sys/fs/cgroup/memory.max": file("1073741824\n"),
		}, "/sys/fs/cgroup/memory.max allows", "", false},
		{"nothing is known", 1 << 60, fstest.MapFS{}, "", "", false},
		{"nothing that is understood", 1 << 60, fstest.MapFS{"proc/meminfo": file("MemTotal: much\n"), "proc/self/cgroup": file("0::../x\n")}, "", "", false},
		{"huge: all of it, more than is available", 5 << 30, huge("2600", "40"), "", "", true},
		{"huge: all of it, more than the group's bound", 5 << 30, group(huge("2560", "0")), "", "", true},
		{"huge: some are promised to others", 5 << 30, huge("2600", "41"), "", "5.0 GiB, and 5.0 GiB of huge pages are free", true},
		{"huge: some lie in ordinary ones", 2 << 30, group(huge("768", "0")), "", "1.5 GiB of huge pages are free: the rest", true},
		{"huge: more than the group's bound beyond them", 4 << 30, group(huge("512", "0")), "", "memory.max allows 1.0 GiB", true},
		{"huge: more than is available beyond them", 6 << 30, huge("512", "0"), "", "is 5.0 GiB, and 4.0 GiB of memory are available", true},
		{"huge: there are none", 2 << 30, group(huge("0", "0")), "", "memory.max allows", true},
		{"huge: more than there is", 8<<30 + 1, huge("9999", "0"), "the machine has 8.0 GiB", "", true},
		{"huge: not told by size", 5 << 30, told("2048"), "", "", true},
		{"huge: of another size", 5 << 30, told("1048576"), "", "is not known", true},
		{"huge: not known", 3 << 30, group(fstest.MapFS{"proc/meminfo": mem}), "", "is not known", true},
		{"huge pages that are not taken", 5 << 30, group(huge("2600", "40")), "memory.max allows", "", false},
	} {
		fault, warning := RoomFor(c.pool, c.huge, c.root)
		if (c.fault == "") != (fault == "") || !strings.Contains(fault, c.fault) || (c.warning == "") != (warning == "") || !strings.Contains(warning, c.warning) {
			t.Errorf("%s: %q, %q", c.name, fault, warning)
		}
	}
	if fault, _ := RoomFor(1<<20, false, os.DirFS("/")); fault != "" {
		t.Errorf("here: %s", fault)
	}
}
