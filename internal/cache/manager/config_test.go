package manager

import (
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestConfig(t *testing.T) {
	c, err := ParseConfig([]byte(`
socket: /tmp/x
pool_bytes: 8GiB
instances: 2
admin: 127.0.0.1:9091
allowed_uids: [1000]
instance_bytes: 1048576
patience: 30s
scopes:
  - {id: 7, resident_bytes: 1 MiB}
`))
	want := Config{
		Socket: "/tmp/x", PoolBytes: 8 << 30, Instances: 2, Admin: "127.0.0.1:9091", AllowedUIDs: []uint32{1000}, InstanceBytes: 1 << 20,
		Patience: 30 * time.Second, Scopes: []ScopeConfig{{ID: 7, ResidentBytes: 1 << 20}},
	}
	if d := cmp.Diff(want, c); err != nil || d != "" {
		t.Fatalf("%v\n%s", err, d)
	}
	if f := c.Faults(); len(f) > 0 {
		t.Errorf("faults of a good one: %v", f)
	}
}

func TestConfigFaults(t *testing.T) {
	for text, want := range map[string]string{
		"pool_byte: 1":                 "pool_byte",
		"pool_bytes: 1GB":              "no size",
		"pool_bytes: -1":               "no size",
		"pool_bytes: 9999999999TiB":    "no size",
		"patience: 30":                 "",
		"pool_bytes: 1\n---\nadmin: x": "second document",
	} {
		if _, err := ParseConfig([]byte(text)); want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v", text, err)
		}
	}
	bad := Config{Instances: -1, Socket: strings.Repeat("x", 200), Wait: -1, Admin: "here", Scopes: []ScopeConfig{{}, {ID: 1}, {ID: 1}}}
	if f := bad.Faults(); len(f) != 7 {
		t.Errorf("%d faults: %q", len(f), f)
	}
}

// TestConfigBounds: what is just allowed and what is just not.
func TestConfigBounds(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{PoolBytes: 8192, Instances: 2}, ""},
		{Config{PoolBytes: 8191, Instances: 2}, "instances"},
		{Config{PoolBytes: 1 << 30, Instances: 1 << 20}, "instances"},
		{Config{PoolBytes: 1 << 20, Socket: strings.Repeat("x", 99)}, ""},
		{Config{PoolBytes: 1 << 20, Socket: strings.Repeat("x", 100)}, "socket"},
	} {
		f := c.cfg.Faults()
		if (c.want == "") != (len(f) == 0) || len(f) > 0 && !strings.HasPrefix(f[0], c.want+":") {
			t.Errorf("%+v: %q", c.cfg, f)
		}
	}
}

func TestConfigEvents(t *testing.T) {
	for text, want := range map[string]Endpoints{
		"{}":                        {},
		"{listen: '10.0.0.7:5567'}": {"tcp://10.0.0.7:5567", "tcp://10.0.0.7:5568", "tcp://10.0.0.7:5569"},
		"{listen: ':0'}":            {"tcp://127.0.0.1:0", "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"},
		"{listen: '*:1', snapshot: 'tcp://[::1]:7'}":            {"tcp://*:1", "tcp://*:2", "tcp://[::1]:7"},
		"{listen: ipc:///a, replay: ipc:///b, snapshot: 'h:9'}": {"ipc:///a", "ipc:///b", "tcp://h:9"},
		"{replay: 'h:9'}":                {Listen: "fault"},
		"{listen: here}":                 {Listen: "fault"},
		"{listen: 'h:65534'}":            {Listen: "fault"},
		"{listen: ipc:///a}":             {Listen: "fault"},
		"{listen: 'h:1', replay: 'h:x'}": {Listen: "fault"},
	} {
		c, err := ParseConfig([]byte("pool_bytes: 1\nevents: " + text))
		if err != nil {
			t.Fatal(err)
		}
		if f := c.Faults(); (len(f) > 0) != (want.Listen == "fault") {
			t.Errorf("%s: %q", text, f)
		}
		if got := c.Options().Events; want.Listen != "fault" && got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// TestConfigDocs: every key of the file is on its page.
func TestConfigDocs(t *testing.T) {
	page, err := os.ReadFile("../../../docs/cache-daemon.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, typ := range []reflect.Type{reflect.TypeFor[Config](), reflect.TypeFor[ScopeConfig](), reflect.TypeFor[EventsConfig]()} {
		for i := range typ.NumField() {
			if key := typ.Field(i).Tag.Get("yaml"); !strings.Contains(string(page), "`"+key+"`") {
				t.Errorf("%s is not on the page", key)
			}
		}
	}
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte("pool_bytes: 8GiB\nscopes: [{id: 1}]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := ParseConfig(b); err == nil {
			c.Faults()
			c.Options()
		}
	})
}
