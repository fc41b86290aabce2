package trace

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestReadLog(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []Request
	}{
		{"the least", `{"time":0,"input_tokens":5,"output_tokens":2}`, []Request{{InputTokens: 5, OutputTokens: 2}}},
		{"seconds count from the first", `{"time": 1700000000.25, "input_tokens":5,"output_tokens":2}
{"time": 1700000001.250000001, "input_tokens":6,"output_tokens":3}`, []Request{
			{InputTokens: 5, OutputTokens: 2}, {Arrival: time.Second + 1, InputTokens: 6, OutputTokens: 3},
		}},
		{"dates in several zones", `{"time":"2026-01-01T01:00:00+01:00","input_tokens":5,"output_tokens":2}
{"time":"2026-01-01T00:00:00.5Z","input_tokens":5,"output_tokens":2}`, []Request{
			{InputTokens: 5, OutputTokens: 2}, {Arrival: 500 * time.Millisecond, InputTokens: 5, OutputTokens: 2},
		}},
		{"everything", `{"model":"a\"b","session":"ü","blocks":[18446744073709551615,7],"block_size":16,"output_tokens":1,"input_tokens":17,"time":3}`, []Request{
			{InputTokens: 17, OutputTokens: 1, Blocks: []uint64{1<<64 - 1, 7}, BlockSize: 16, Session: "ü", Model: `a"b`},
		}},
		{"fewer blocks than the prompt has", `{"time":3,"input_tokens":100,"output_tokens":1,"blocks":[4],"block_size":16}`, []Request{
			{InputTokens: 100, OutputTokens: 1, Blocks: []uint64{4}, BlockSize: 16},
		}},
		{"no blocks", `{"time":3,"input_tokens":100,"output_tokens":1,"blocks":[],"block_size":16}`, []Request{
			{InputTokens: 100, OutputTokens: 1, BlockSize: 16},
		}},
	} {
		got, err := collect(Read(strings.NewReader(c.text)))
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, error %v\nwant %+v", c.name, got, err, c.want)
		}
	}
	text := `{"time":3,"input_tokens":100,"output_tokens":1,"blocks":["00ff","00ff","7"],"block_size":16}`
	got, err := collect(Read(strings.NewReader(text)))
	if err != nil || len(got) != 1 || len(got[0].Blocks) != 3 || got[0].Blocks[0] != got[0].Blocks[1] || got[0].Blocks[0] == got[0].Blocks[2] {
		t.Errorf("named blocks: %+v, error %v", got, err)
	}
}

func TestReadLogRefuses(t *testing.T) {
	const ok = `{"time":10,"input_tokens":20,"output_tokens":1,"blocks":[1,2],"block_size":16}` + "\n"
	edit := func(old, new string) string { return strings.Replace(ok, old, new, 1) }
	for _, c := range []struct{ name, text, want string }{
		{"too many blocks", edit("[1,2]", "[1,2,3]"), "trace line 1: blocks: 3, but input_tokens 20 has no more than 2 of 16"},
		{"blocks of no size", edit(`,"block_size":16`, ""), "blocks need a block_size"},
		{"size of nothing", edit("16", "0"), "block_size: must be at least 1"},
		{"two sizes", ok + edit("16", "32"), "trace line 2: block_size: 32, but a line before has 16"},
		{"backwards", edit("10", "11") + "\n\n" + edit("10", "12") + edit("10", "11.5"), "trace line 5: time: 500ms before that of the line before; sort"},
		{"before the first", ok + edit("10", "9"), "trace line 2: time: before that of the first line; sort"},
		{"a year later", ok + edit("10", "40000000"), "more than a year"},
		{"milliseconds", edit("10", "1700000000000"), "divide milliseconds by 1000"},
		{"two kinds of time", ok + edit("10", `"2026-01-01T00:00:00Z"`), "trace line 2: time: numbers and dates in one file"},
		{"no date", edit("10", `"yesterday"`), `"yesterday" is no date of RFC 3339`},
		{"date without a zone", edit("10", `"2026-01-01T00:00:00"`), "is no date"},
		{"date before time", edit("10", `"1969-01-01T00:00:00Z"`), "is no date"},
		{"point without decimals", edit("10", "10."), "a point without decimals"},
		{"ten decimals", edit("10", "0.0123456789"), "more than nine decimals"},
		{"exponent", edit("10", "1e3"), "want '}'"},
		{"negative", edit("10", "-1"), "want a whole number"},
		{"empty prompt", edit("20", "0"), "at least 1"},
		{"missing time", edit(`"time":10,`, ""), "missing key"},
		{"mooncake's key", edit(`{`, `{"timestamp":1,`), `unknown key "timestamp"`},
		{"twice", edit(`{`, `{"time":1,`), `repeated key "time"`},
		{"empty session", edit(`{`, `{"session":"",`), "session: 0 bytes"},
		{"long session", edit(`{`, `{"session":"`+strings.Repeat("x", 257)+`",`), "session: 257 bytes"},
		{"session without an end", `{"input_tokens":1,"session":"a\"`, "string without an end"},
		{"broken UTF-8", edit(`{`, "{\"session\":\"\xff\","), "not a string of UTF-8"},
		{"broken escape", edit(`{`, `{"session":"\x",`), "not a string of UTF-8"},
		{"null", edit("[1,2]", "null"), "want '['"},
		{"a trace's line in a log", ok + line(1, 512, 1, 1), `trace line 2: unknown key "timestamp"`},
		{"a log's line in a trace", line(1, 512, 1, 1) + "\n" + ok, `trace line 2: unknown key "time"`},
	} {
		_, err := collect(Read(strings.NewReader(c.text)))
		var le *LineError
		if !errors.As(err, &le) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want a LineError with %q", c.name, err, c.want)
		}
	}
}

// FuzzLogLine checks that whatever we take, encoding/json takes and understands alike, and that what we yield is in bounds.
func FuzzLogLine(f *testing.F) {
	f.Add([]byte(`{"time":10.5,"input_tokens":20,"output_tokens":1,"blocks":[1,"a"],"block_size":16,"session":"s","model":"m"}`))
	f.Add([]byte(`{"time":"2026-01-01T00:00:00.000000001+05:30","input_tokens":4194304,"output_tokens":1}`))
	f.Add([]byte(`{"time":9000000000.999999999,"input_tokens":1,"output_tokens":1,"session":"\u00fc\"\\"}`))
	f.Add([]byte(`{"time":0.,"input_tokens":1,"output_tokens":1,"session":"\"`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var l logReader
		req, reason := l.parse(text)
		if reason != "" {
			if !reflect.DeepEqual(req, Request{}) || l != (logReader{}) {
				t.Errorf("refused (%s) and yet returned %+v, kept %+v", reason, req, l)
			}
			return
		}
		var ref struct {
			Time    any               `json:"time"`
			Input   int               `json:"input_tokens"`
			Output  int               `json:"output_tokens"`
			Blocks  []json.RawMessage `json:"blocks"`
			Size    int               `json:"block_size"`
			Session string            `json:"session"`
			Model   string            `json:"model"`
		}
		if err := json.Unmarshal(text, &ref); err != nil {
			t.Fatalf("encoding/json refuses what we took: %v", err)
		}
		if req.InputTokens != ref.Input || req.OutputTokens != ref.Output || len(req.Blocks) != len(ref.Blocks) || req.BlockSize != ref.Size ||
			req.Session != ref.Session || req.Model != ref.Model {
			t.Errorf("%+v, encoding/json reads %+v", req, ref)
		}
		if req.InputTokens < 1 || req.InputTokens > maxTokens || req.OutputTokens < 1 || req.Arrival != 0 || l.start < 0 {
			t.Errorf("out of bounds: %+v", req)
		}
		if s, ok := ref.Time.(float64); ok && (l.start.Seconds() < s-1e-5 || l.start.Seconds() > s+1e-5) {
			t.Errorf("time %v, encoding/json reads %v", l.start.Seconds(), s)
		}
	})
}
