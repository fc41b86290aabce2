package replay

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/engine"
)

func TestOptionsRefused(t *testing.T) {
	for want, o := range map[string]Options{
		"engines: choose":           {Engines: -1},
		"gateways: choose":          {Gateways: 1000},
		"rate: choose":              {Rate: -1},
		"report interval: choose":   {ReportEvery: 1},
		"event delay: choose":       {EventDelay: -1},
		"event loss: choose":        {EventLoss: 1.5},
		"peer delay: choose":        {PeerDelay: 2 * time.Hour},
		"peer loss: choose":         {PeerLoss: -0.5},
		"attempts: choose":          {Attempts: 4},
		"there is no engine 8":      {Outages: []Outage{{Engine: 8}}},
		"times are not negative":    {Outages: []Outage{{Engine: 1, At: -1}}},
		"fails while it is down":    {Outages: []Outage{{Engine: 1, At: 5}, {Engine: 1, At: 9}}},
		"KVBlocks is negative":      {Engine: engine.Config{KVBlocks: -1}},
		"below MaxRunning":          {Engine: engine.Config{MaxBatchTokens: 1}},
		"engine 1 fails while it i": {Outages: []Outage{{Engine: 1, At: 5, For: 5}, {Engine: 1, At: 2, For: 4}}},
	} {
		c, _ := ByName("random")
		if _, err := Run(context.Background(), o, c, func(func(Arrival, error) bool) {}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want %q", o, err, want)
		}
	}
	ok := Options{Outages: []Outage{{Engine: 1, At: 5, For: 5}, {Engine: 1, At: 10, For: 4}, {Engine: 1, At: 20}, {Engine: 2, At: 6}}}.WithDefaults()
	if err := ok.Validate(); err != nil {
		t.Errorf("outages one after another: %v", err)
	}
}

func TestContenderNames(t *testing.T) {
	if _, err := ByName("best"); !errors.Is(err, ErrUnknownPolicy) || !strings.Contains(err.Error(), "oracle") {
		t.Errorf("error %v", err)
	}
	c, _ := ByName("random")
	c.Workers = []string{"a", "b", "a"}
	if _, err := Run(context.Background(), Options{}, c, func(func(Arrival, error) bool) {}); err == nil || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("an id twice: error %v", err)
	}
}

// TestWhatAContenderBrings: options that are set win, those that are not are the contender's, then the defaults.
func TestWhatAContenderBrings(t *testing.T) {
	c := Contender{Workers: []string{"a"}, ReportEvery: 3 * time.Second, Attempts: 2}
	o := Options{Engines: 5, Attempts: 1}.For(c)
	if o.Engines != 1 || o.ReportEvery != 3*time.Second || o.Attempts != 1 {
		t.Errorf("%+v", o)
	}
	if o = (Options{}).For(Contender{}); o.Engines != DefaultEngines || o.ReportEvery != time.Second || o.Attempts != 3 {
		t.Errorf("%+v", o)
	}
}

func TestBadArrivals(t *testing.T) {
	c, _ := ByName("random")
	run := func(list ...Arrival) error {
		_, err := Run(context.Background(), Options{}, c, (&replayScript{arrivals: list}).source())
		return err
	}
	one := Arrival{At: time.Second, InputTokens: 1, OutputTokens: 1, Blocks: make([]engine.BlockHash, 1)}
	early := one
	early.At = 0
	if err := run(one, early); !errors.Is(err, ErrBackwards) {
		t.Errorf("error %v", err)
	}
	var bad *ArrivalError
	for _, a := range []Arrival{{InputTokens: 1, OutputTokens: 1}, {InputTokens: 0, OutputTokens: 1}, {InputTokens: 1, Blocks: make([]engine.BlockHash, 1)}} {
		if err := run(one, func() Arrival { a.At = time.Minute; return a }()); !errors.As(err, &bad) || bad.Number != 1 {
			t.Errorf("%+v: error %v", a, err)
		}
	}
	broken := errors.New("broken")
	_, err := Run(context.Background(), Options{}, c, func(yield func(Arrival, error) bool) { yield(Arrival{}, broken) })
	if !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
}
