package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/script"
)

func example() *Message {
	return &Message{
		Kind: News, Incarnation: 0x0102030405060708, Number: 9, Engines: [][]byte{[]byte("http://a:1"), []byte("http://b:2")},
		Records: []Record{
			{What: Sent, Engine: 1, ID: 300, Age: 1500 * time.Microsecond, Tokens: 128},
			{What: SentUnseen, ID: 301, Tokens: 1},
			{What: Prefilled, Engine: 1, ID: 300, Age: time.Millisecond},
			{What: GivenUp, ID: 301},
		},
	}
}

// TestBytes holds the layout: other bytes are another version.
func TestBytes(t *testing.T) {
	const want = "50475052" + "01" + "01" + "0102030405060708" + "0000000000000009" +
		"02" + "0a" + "687474703a2f2f613a31" + "0a" + "687474703a2f2f623a32" +
		"04" + "0101ac02dc0b8001" + "0200ad020001" + "0301ac02e807" + "0400ad0200"
	if got := hex.EncodeToString(Append(nil, example())); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestReadsWhatIsWritten(t *testing.T) {
	rng := script.Rand(t)
	var got Message
	for range 2000 {
		m := Message{Kind: News, Incarnation: rng.Uint64(), Number: 1 + rng.Uint64N(1000)}
		for range 1 + rng.IntN(5) {
			m.Engines = append(m.Engines, bytes.Repeat([]byte{'x'}, rng.IntN(MaxURL+1)))
		}
		most := GivenUp
		if rng.IntN(2) == 0 {
			m.Kind, most = Everything, SentUnseen
		}
		for range rng.IntN(20) {
			r := Record{What: What(1 + rng.IntN(int(most))), Engine: rng.IntN(len(m.Engines)), ID: rng.Uint64() >> 1, Age: time.Duration(rng.Int64N(1e9)) * time.Microsecond}
			if r.What <= SentUnseen {
				r.Tokens = rng.Int64()
			}
			m.Records = append(m.Records, r)
		}
		b := Append(nil, &m)
		if err := Read(b, &got); err != nil {
			t.Fatal(err)
		}
		if len(m.Records) == 0 {
			got.Records = nil
		}
		if !reflect.DeepEqual(got, m) {
			t.Fatalf("got %+v, want %+v", got, m)
		}
	}
}

func TestRefused(t *testing.T) {
	good := Append(nil, example())
	for n := range good {
		if err := Read(good[:n], new(Message)); err == nil {
			t.Errorf("the first %d bytes are a message", n)
		}
	}
	change := func(f func(*Message)) []byte {
		m := example()
		f(m)
		return Append(nil, m)
	}
	for name, c := range map[string]struct {
		b    []byte
		want error
	}{
		"another version":     {append([]byte("PGPR\x02"), good[5:]...), ErrVersion},
		"something behind":    {append(bytes.Clone(good), 0), ErrTrailing},
		"no such kind":        {change(func(m *Message) { m.Kind = 3 }), ErrValue},
		"number 0":            {change(func(m *Message) { m.Number = 0 }), ErrValue},
		"no such engine":      {change(func(m *Message) { m.Records[0].Engine = 2 }), ErrValue},
		"nothing happened":    {change(func(m *Message) { m.Records[0].What = 0 }), ErrValue},
		"everything and ends": {change(func(m *Message) { m.Kind = Everything }), ErrValue},
		"a long URL":          {change(func(m *Message) { m.Engines[0] = make([]byte, MaxURL+1) }), ErrTooLarge},
		"many engines":        {change(func(m *Message) { m.Engines = make([][]byte, MaxEngines+1) }), ErrTooLarge},
		"many records":        {change(func(m *Message) { m.Records = make([]Record, MaxRecords+1) }), ErrTooLarge},
		"a large id":          {change(func(m *Message) { m.Records[0].ID = math.MaxUint64 }), ErrTooLarge},
		"too long":            {make([]byte, MaxBytes+1), ErrTooLarge},
	} {
		if err := Read(c.b, new(Message)); !errors.Is(err, c.want) {
			t.Errorf("%s: error %v, want %v", name, err, c.want)
		}
	}
}

// FuzzRead: nothing crashes, nothing beyond a bound comes in, and what was read is written as what is read again.
func FuzzRead(f *testing.F) {
	f.Add(Append(nil, example()))
	f.Add(Append(nil, &Message{Kind: Everything, Number: 1}))
	f.Add([]byte("PGPR\x01\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m, again Message
		if Read(b, &m) != nil {
			return
		}
		for _, r := range m.Records {
			if r.Engine >= len(m.Engines) || r.Age < 0 || r.Tokens < 0 {
				t.Fatalf("%+v", r)
			}
		}
		if err := Read(Append(nil, &m), &again); err != nil || !reflect.DeepEqual(m, again) {
			t.Fatalf("%+v and then %+v, error %v", m, again, err)
		}
	})
}
