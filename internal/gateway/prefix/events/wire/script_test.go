package wire

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/perigee-llm/perigee/internal/gateway/prefix"
	"github.com/perigee-llm/perigee/internal/script"
)

// The scripts of testdata show what becomes of a payload.
//
//	file NAME             the messages that a real engine published
//	batch JSON            one batch, written as JSON; see fromJSON
//	event JSON            the same of one event
//	raw HEX               the same as msgpack
//	load JSON             a load report
//	manager JSON          an event of a Cache Manager, in a batch of its own
//	managerbatch JSON     one batch of a Cache Manager
func TestScripts(t *testing.T) {
	script.Run(t, "testdata/*.txt", func(t *testing.T) script.Interpreter {
		var d Decoder
		return func(c *script.Command) bool {
			switch c.Name {
			case "file":
				name := c.Word()
				for i, payload := range captured(t, name) {
					c.Print("message", fmt.Sprint(i), fmt.Sprint(len(payload)), "bytes")
					show(c, &d, payload)
				}
			case "batch":
				show(c, &d, fromJSON(t, strings.Join(c.Words(), " ")))
			case "event":
				show(c, &d, fromJSON(t, "[0,["+strings.Join(c.Words(), " ")+"],0]"))
			case "raw":
				raw, err := hex.DecodeString(strings.Join(c.Words(), ""))
				if err != nil {
					c.Fatalf("%v", err)
				}
				show(c, &d, raw)
			case "manager":
				showManagers(c, fromJSON(t, "[0,["+strings.Join(c.Words(), " ")+`],null,{"epoch":1}]`))
			case "managerbatch":
				showManagers(c, fromJSON(t, strings.Join(c.Words(), " ")))
			case "load":
				r, err := ParseLoad(fromJSON(t, strings.Join(c.Words(), " ")))
				if err != nil {
					c.Print(err.Error())
					return true
				}
				c.Print("running", r.Running.String(), "waiting", r.Waiting.String(), "uncached", r.WaitingUncached.String(), "used", r.Used.String(),
					"total", r.Total.String(), "capacity", r.Capacity.String(), "max", r.MaxRunning.String(),
					"prefilled", r.PrefillTokens.String(), "busy", r.PrefillBusy.String())
			default:
				return false
			}
			return true
		}
	})
}

// show prints what a decoder makes of a payload: times and ranks only where they are not 0.
func show(c *script.Command, d *Decoder, payload []byte) {
	before := d.Bad
	if err := d.Begin(payload); err != nil {
		c.Print(err.Error())
		return
	}
	for step := d.Next(); step != End; step = d.Next() {
		switch step {
		case Event:
			c.Print(text(&d.Event))
		case Lost:
			c.Print("LOST")
		case Broken:
			c.Print("BROKEN")
		}
	}
	for class := range Class(Classes) {
		if n := d.Bad[class] - before[class]; n > 0 {
			c.Print("bad:", class.String(), fmt.Sprint(n))
		}
	}
	if rank, ok := d.Rank(); ok && rank != 0 {
		c.Print("rank", fmt.Sprint(rank))
	}
	if d.Time() != 0 {
		c.Print("time", fmt.Sprint(d.Time()))
	}
}

func text(e *prefix.Event) string {
	var b strings.Builder
	b.WriteString([...]string{"stored", "removed", "cleared"}[e.Kind])
	if e.Kind == prefix.Cleared {
		return b.String()
	}
	if e.AnyTier {
		b.WriteString(" any")
	} else {
		b.WriteString(" " + e.Tier.String())
	}
	if e.Group != 0 || e.Window != 0 || e.Recurrent {
		fmt.Fprintf(&b, " group=%d window=%d recurrent=%v", e.Group, e.Window, e.Recurrent)
	}
	if e.HasParent {
		fmt.Fprintf(&b, " parent=%016x", uint64(e.Parent))
	}
	fmt.Fprintf(&b, " hashes=%d:%s", len(e.Hashes), ends(len(e.Hashes), func(i int) string { return fmt.Sprintf("%016x", uint64(e.Hashes[i])) }))
	if e.Kind == prefix.Removed {
		return b.String()
	}
	fmt.Fprintf(&b, " block=%d tokens=%d:%s", e.BlockSize, len(e.Tokens), ends(len(e.Tokens), func(i int) string { return fmt.Sprint(e.Tokens[i]) }))
	if e.LoRA != "" {
		fmt.Fprintf(&b, " lora=%q", e.LoRA)
	}
	if e.Salt != "" {
		fmt.Fprintf(&b, " salt=%q", e.Salt)
	}
	for i, x := range e.Extras {
		if x != nil {
			fmt.Fprintf(&b, " extra[%d]=%q", i, x)
		}
	}
	return b.String()
}

// ends shows a list, of a long one its ends.
func ends(n int, at func(int) string) string {
	var parts []string
	for i := range n {
		if n <= 8 || i < 2 || i >= n-2 {
			parts = append(parts, at(i))
		} else if i == 2 {
			parts = append(parts, "…")
		}
	}
	return strings.Join(parts, ",")
}

// captured returns the payloads of a file of messages, in either of the forms that the captures have.
func captured(t testing.TB, name string) (payloads [][]byte) {
	t.Helper()
	raw, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Frames []struct {
			FramesHex []string `json:"frames_hex"` // vLLM: topic, number, payload
			Payload   string   `json:"payload_hex"`
			Hex       []string `json:"hex"` // SGLang's replay: "", topic, number, payload
		}
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	for _, f := range file.Frames {
		text := f.Payload
		switch {
		case len(f.FramesHex) == 3:
			text = f.FramesHex[2]
		case len(f.Hex) == 4:
			text = f.Hex[3]
		}
		payload, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		if len(payload) > 0 { // the end of a replay has none
			payloads = append(payloads, payload)
		}
	}
	return payloads
}
