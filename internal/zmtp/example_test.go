package zmtp_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/perigee-llm/perigee/internal/zmtp"
)

// An engine publishes KV events, and a gateway follows them: it dials again when the connection breaks, and learns that it did.
func ExampleMaintain() {
	engine, _ := zmtp.NewPublisher(zmtp.PublisherOptions{HighWater: 100_000})
	defer engine.Close()
	endpoint, _ := engine.Listen("tcp://127.0.0.1:*")

	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_ = engine.WaitSubscribed(ctx, 1)
		engine.Publish([]byte("kv"), binary.BigEndian.AppendUint64(nil, 7), []byte("payload"))
	}()

	dial := func(ctx context.Context) (*zmtp.Conn, error) {
		return zmtp.Dial(ctx, zmtp.Sub, endpoint, zmtp.Options{Topics: []string{"kv"}})
	}
	serve := func(c *zmtp.Conn) error {
		var m zmtp.Message // used again for each message
		for {
			err := c.Receive(&m)
			if over, ok := errors.AsType[*zmtp.OversizeError](err); ok {
				fmt.Println("lost one message:", over) // m.Frames has the topic and the number, if they came before
				continue
			}
			if err != nil {
				return err // the index learns now that events may be lost
			}
			fmt.Printf("%s %d %s\n", m.Frames[0], binary.BigEndian.Uint64(m.Frames[1]), m.Frames[2])
			cancel()
		}
	}
	err := zmtp.Maintain(ctx, zmtp.Backoff{}, dial, serve, func(err error) { fmt.Println("down:", err) })
	fmt.Println(err)
	// Output:
	// kv 7 payload
	// context canceled
}

// A replay as vLLM has it: one question by a DEALER, many answers by a ROUTER, and a marker at the end.
func ExampleListener_Serve() {
	l, _ := zmtp.Listen(zmtp.Router, "tcp://127.0.0.1:*", zmtp.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error)
	go func() {
		served <- l.Serve(ctx, func(c *zmtp.Conn) { // for each peer, in a goroutine of its own
			var m zmtp.Message
			for c.Receive(&m) == nil && len(m.Frames) == 2 {
				for seq := binary.BigEndian.Uint64(m.Frames[1]); seq < 10; seq++ {
					_ = c.Send(nil, []byte("kv"), binary.BigEndian.AppendUint64(nil, seq), []byte("payload"))
				}
				_ = c.Send(nil, nil, binary.BigEndian.AppendUint64(nil, ^uint64(0)), nil)
			}
		})
	}()

	c, _ := zmtp.Dial(ctx, zmtp.Dealer, l.Endpoint(), zmtp.Options{})
	_ = c.Send(nil, binary.BigEndian.AppendUint64(nil, 8))
	var m zmtp.Message
	for c.Receive(&m) == nil {
		seq := int64(binary.BigEndian.Uint64(m.Frames[2]))
		fmt.Println(seq)
		if seq == -1 {
			break
		}
	}
	_ = c.Close()
	cancel()
	fmt.Println(<-served)
	// Output:
	// 8
	// 9
	// -1
	// <nil>
}
