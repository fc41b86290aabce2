package managertest_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/perigee-llm/perigee/internal/managerwire"
	"github.com/perigee-llm/perigee/internal/managerwire/managertest"
	"github.com/perigee-llm/perigee/internal/zmtp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestManager: what it says arrives, and a snapshot has it too.
func TestManager(t *testing.T) {
	m := managertest.Start(t, 7, managertest.Loopback)
	defer m.Stop()
	receive := func(typ zmtp.Type, endpoint string, ask func(*zmtp.Conn) error) [][]byte {
		t.Helper()
		c, err := zmtp.Dial(t.Context(), typ, endpoint, zmtp.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := ask(c); err != nil {
			t.Fatal(err)
		}
		var msg zmtp.Message
		if err := c.Receive(&msg); err != nil {
			t.Fatal(err)
		}
		return msg.Frames
	}
	live := receive(zmtp.Sub, m.Events, func(*zmtp.Conn) error {
		m.WaitSubscribed(t)
		m.Say(managerwire.Event{Kind: managerwire.AllBlocksCleared})
		return nil
	})
	if len(live) != 3 || string(live[0]) != managerwire.Topic {
		t.Errorf("%q", live)
	}
	head := receive(zmtp.Dealer, m.Snapshot, func(c *zmtp.Conn) error { return c.Send(nil, []byte(managerwire.SnapshotRequest)) })
	if len(head) != 3 || string(head[1]) != managerwire.HeaderWord || m.Asked("snapshot") != 1 {
		t.Errorf("%q", head)
	}
	refused := receive(zmtp.Dealer, m.Snapshot, func(c *zmtp.Conn) error { return c.Send(nil, []byte("snapshot.v2")) })
	if string(refused[1]) != managerwire.ErrorWord {
		t.Errorf("%q", refused)
	}
}
