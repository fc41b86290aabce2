// Package channel is the Cache Manager's end of the socket: it accepts connections, knows who is at their other end, reads frames and
// queues answers. What a message means is its Handler's business; the bytes are package wire's.
//
// It promises that a peer hurts only itself: a frame is bounded before it is read and held only as far as it has come; answers that a
// peer does not read are bounded, and its connection ends when there are more; a peer that says nothing in time is let go; and a goroutine
// waits for a peer only in that peer's own service. One descriptor
// may come with a frame; a second one is dropped by the kernel, and one that the frame's handler does not take is closed. When there are
// no descriptors left for new connections, those that are there go on.
//
// A connection costs one goroutine, which ends with it: it reads, handles and answers, so that an answer costs no change of goroutine. Another one
// writes what others have to tell the peer, for as long as they have something. [Server.Close] waits for both.
package channel
