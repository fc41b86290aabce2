package gateway

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/fleet"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/ask"
	"github.com/perigee-llm/perigee/internal/gateway/fleet/keeper"
)

// TestAbsences: after which polls a breaker's cool-down ends. Each script is a row of polls, one a second: r refused, l the way was lost, s slow,
// n an answer over a new connection, k over a kept one, R a request that found nobody.
func TestAbsences(t *testing.T) {
	polls := map[rune]keeper.PollInfo{
		'r': {Err: fmt.Errorf("x: %w", ask.ErrNoConnection), Lost: true},
		'l': {Err: fmt.Errorf("x: %w", ask.ErrUnreachable), Lost: true},
		's': {Err: fmt.Errorf("x: %w", ask.ErrUnreachable), Fresh: true},
		'n': {Fresh: true}, 'k': {},
	}
	for script, ends := range map[string]bool{
		"k": false, "n": false, "sn": false, "skn": false, "lk": false, "ln": true, "lln": true, "lkn": true, "lsn": true,
		"rk": true, "rn": true, "rlk": true, "lrk": true, "Rk": true, "lRk": true, "rs": false, "lls": false,
	} {
		reg := fleet.NewRegistry(fleet.BreakerConfig{Threshold: 1, CoolDown: time.Hour}, 0)
		w := reg.Put(fleet.Spec{ID: "w", URL: "http://w", Kind: fleet.SGLang})
		began := time.Now()
		ticket, _ := reg.Claim(w, began)
		reg.Done(ticket, fleet.Failure, began)
		a := &absentees{registry: reg, log: slog.New(slog.DiscardHandler), gone: map[string]absence{}}
		for i, step := range script {
			at := began.Add(time.Duration(i+1) * time.Second)
			if step == 'R' {
				a.missed("w", at)
				continue
			}
			p := polls[step]
			p.ID, p.At = "w", at
			a.polled(p)
		}
		if got := reg.Admits(w, time.Now().Add(time.Minute)); got != ends {
			t.Errorf("%s: probed %v", script, got)
		}
		if ends != (len(a.gone) == 0) && strings.ContainsAny(script, "rlR") {
			t.Errorf("%s: %d are missed", script, len(a.gone))
		}
	}
}
