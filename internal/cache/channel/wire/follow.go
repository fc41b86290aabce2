package wire

// MaxAdapters bounds those of a Follow.
const MaxAdapters = 1024

// Follow says where the engine publishes its KV events for routers: what it has published without tokens the Manager may learn from there. It is
// said once a session, on any connection. Answer: Following, at once, whether the engine can be reached or not.
type Follow struct {
	// Events is where it publishes, Replay where what was missed can be asked for, or empty: tcp://host:port with a loopback address. Topic is what its messages begin with.
	Events, Replay, Topic string
	Adapters              []Adapter
}

// Adapter is a LoRA adapter: the name that the engine's events have, and what the engine's hashes have for it.
type Adapter struct{ Name, Extra string }

// Following answers Follow.
type Following struct{}

func (m *Follow) fields(c coder) {
	c.text(&m.Events, MaxText)
	c.text(&m.Replay, MaxText)
	c.text(&m.Topic, MaxText)
	list(c, &m.Adapters, MaxAdapters, 8, func(c coder, a *Adapter) {
		c.text(&a.Name, MaxText)
		c.text(&a.Extra, MaxText)
	})
}

func (m *Following) fields(coder) {}
