package downstream

// watched returns how many connections a watcher knows.
func watched(w *watcher) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.conns)
}
