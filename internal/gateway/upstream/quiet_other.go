//go:build !unix

package upstream

// quiet cannot look at an idle connection here without waiting; a request that fails on one says that it was reused.
func (c *conn) quiet() bool { return true }
