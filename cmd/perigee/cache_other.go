//go:build !linux

package main

// Run says why not.
func (c *cacheCmd) Run(rc *runContext) error {
	if _, err := c.read(rc); err != nil {
		return err
	}
	return exitError{code: exitRun, msg: "the Cache Manager needs Linux: its shared memory is made of sealed memfds; the gateway and all else run here"}
}
