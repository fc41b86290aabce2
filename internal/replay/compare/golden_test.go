package compare

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
	"github.com/perigee-llm/perigee/internal/replay"
	"github.com/perigee-llm/perigee/internal/trace"
)

var update = flag.Bool("update", false, "write the present report into testdata")

// TestGolden holds every figure of a small report: two engines, one of which fails, and four requests, with steps of 100 ms and
// 1 ms a token. It can be checked by hand.
func TestGolden(t *testing.T) {
	log := `{"time":0,"input_tokens":400,"output_tokens":3,"block_size":100,"blocks":[1,2,3,4]}
{"time":0.1,"input_tokens":400,"output_tokens":2,"block_size":100,"blocks":[1,2,3,5]}
{"time":1,"input_tokens":401,"output_tokens":1,"block_size":100,"blocks":[1,2,3,4]}
{"time":1.1,"input_tokens":200,"output_tokens":9,"block_size":100,"blocks":[7]}
{"time":1.2,"input_tokens":2000,"output_tokens":1}
`
	r := mustRun(t, Job{
		Trace: func(yield func(trace.Request, error) bool) { trace.Read(strings.NewReader(log))(yield) }, TraceName: "small", Contenders: contenders(t, "round_robin", replay.Oracle),
		Options: replay.Options{
			Engines: 2, Seed: 1, Outages: []replay.Outage{{Engine: 1, At: 2 * time.Second, For: time.Second}},
			Engine: engine.Config{BlockSize: 100, KVBlocks: 10, Timing: engine.Timing{StepFixed: 100 * time.Millisecond, PrefillPerToken: time.Millisecond, DecodePerSeq: -1, PerKVToken: -1}},
		},
	})
	got, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, "\n"+r.Text()...)
	if *update {
		if err := os.WriteFile("testdata/small.txt", got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/small.txt")
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("the report is not testdata/small.txt (error %v); if it is right, run go test -update\n%s", err, got)
	}
}
