package main

import "os"

// heapFloor is how much the heap grows at least between two collections, in bytes. A gateway's heap holds a few MiB, and each request leaves some
// 10 KiB behind and its body: without a floor it was collected every few hundred requests, and one of 32 KiB bodies every hundred, which was
// a tenth of the gateway's time. It is memory that is never touched, and so not resident; what becomes resident is the garbage, of which there may
// be so much more.
const heapFloor = 16 << 20

// heapPerEngine is how much higher it is for each engine, in bytes: twice what the gateway keeps of one, which each collection looks through. With the same floor a
// thousand engines cost a request some 1.1 µs of collections more than four did.
const heapPerEngine = 16 << 10

// raiseHeap returns what holds the floor for as long as it is referred to, and by how much each engine is to raise it; nothing where the operator has said in the
// environment how memory is to be kept, of which a floor would take a part without use.
func raiseHeap() (floor []byte, perEngine int) {
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		if os.Getenv(name) != "" {
			return nil, 0
		}
	}
	return make([]byte, heapFloor), heapPerEngine
}
