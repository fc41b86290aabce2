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
	for _, c := range []struct {
		name           string
		pool           uint64
		root           fstest.MapFS
		fault, warning string
	}{
		{"it is there", 4 << 30, fstest.MapFS{"proc/meminfo": mem}, "", ""},
		{"caches have to go", 4<<30 + 1, fstest.MapFS{"proc/meminfo": mem}, "", "4.0 GiB of memory are available"},
		{"more than there is", 8<<30 + 1, fstest.MapFS{"proc/meminfo": mem}, "the machine has 8.0 GiB", ""},
		{"the group's bound", 3 << 30, fstest.MapFS{
			"proc/meminfo": mem, "proc/self/cgroup": file("0::/a/b\n"), "sys/fs/cgroup/a/b/memory.max": file("2147483648\n"),
		}, "/sys/fs/cgroup/a/b/memory.max allows 2.0 GiB", ""},
		{"one around it", 3 << 30, fstest.MapFS{
			"proc/meminfo": mem, "proc/self/cgroup": file("1:cpu:/\n0::/a/b\n"), "sys/fs/cgroup/a/b/memory.max": file("max\n"), "sys/fs/cgroup/a/memory.max": file("1073741824\n"),
		}, "/sys/fs/cgroup/a/memory.max allows 1.0 GiB", ""},
		{"in a container", 3 << 30, fstest.MapFS{
			"proc/meminfo": mem, "proc/self/cgroup": file("0::/\n"), "sys/fs/cgroup/memory.max": file("1073741824\n"),
		}, "/sys/fs/cgroup/memory.max allows", ""},
		{"nothing is known", 1 << 60, fstest.MapFS{}, "", ""},
		{"nothing that is understood", 1 << 60, fstest.MapFS{"proc/meminfo": file("MemTotal: much\n"), "proc/self/cgroup": file("0::../x\n")}, "", ""},
	} {
		fault, warning := RoomFor(c.pool, c.root)
		if (c.fault == "") != (fault == "") || !strings.Contains(fault, c.fault) || (c.warning == "") != (warning == "") || !strings.Contains(warning, c.warning) {
			t.Errorf("%s: %q, %q", c.name, fault, warning)
		}
	}
	if fault, _ := RoomFor(1<<20, os.DirFS("/")); fault != "" {
		t.Errorf("here: %s", fault)
	}
}
