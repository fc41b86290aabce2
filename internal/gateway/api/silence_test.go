package api

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perigee-llm/perigee/internal/gateway/lifetime"
)

// TestSilence plays streams of parts that come and clients that are slow, and holds that a leg ends when its engine has said nothing for exactly as
// long as it may, wherever the clock stood, and never else.
func TestSilence(t *testing.T) {
	const limit = 20 * time.Second
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 300 {
		parts := rng.IntN(6)
		dies := rng.IntN(2) == 0
		synctest.Test(t, func(t *testing.T) {
			l := &leg{sentAt: time.Now()}
			l.life.Beside(t.Context())
			l.clock = time.AfterFunc(time.Minute, l.timedOut)
			time.Sleep(time.Duration(rng.Int64N(int64(50 * time.Second)))) // the answer's head
			l.clock.Stop()
			l.boundSilence(limit)
			for range parts {
				l.listen()
				time.Sleep(time.Duration(rng.Int64N(int64(limit)))) // the engine
				l.heard()
				time.Sleep(time.Duration(rng.Int64N(int64(3 * limit)))) // the client
				if l.life.Err() != nil {
					t.Fatal("ended, and the engine was not silent for so long")
				}
			}
			if dies {
				l.listen()
				time.Sleep(limit - 1)
				synctest.Wait()
				if l.life.Err() != nil {
					t.Error("too soon")
				}
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				if lifetime.Cause(&l.life) != causeTimeout {
					t.Error("not on time")
				}
				return
			}
			l.silence.Lock()
			l.silence.over = true // as end has it
			l.silence.Unlock()
			l.clock.Stop()
			time.Sleep(time.Hour)
			if l.life.Err() != nil {
				t.Error("a clock ran on after the end")
			}
		})
	}
}
