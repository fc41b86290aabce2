// Package sock has the system calls on sockets that a proxy makes for each part that it passes on.
//
// The sockets never block, so the scheduler need not be told of these calls. Telling it costs more than the call's own way into the system: it
// wakes the runtime's monitor, which sleeps whenever there is nothing to do, and so once or twice for each request of a gateway that is not
// busy; woken it looks every 20 µs whether somebody needs it. On Linux the calls here do not tell; elsewhere they are package syscall's.
//
// The monitor is what takes a processor away from who computes for long, and so it must be awake when that begins. Long work follows long input:
// what is longer than [Most] is to be read with ordinary calls, which wake it, and once awake it stays so while anybody computes. In case that
// something short makes long work, one write of [Telling] tells too. A call takes as long as its bytes take to be copied, and a collection of
// garbage waits for that; so none takes more than Most.
//
// A waiting is the runtime's all the same, by [syscall.RawConn]: deadlines and closing hold as for a net.Conn.
package sock

// Most is how much is written or read without telling the scheduler, in bytes: some 20 µs over loopback, as long as the monitor lets pass before
// it takes a processor away from a call of which it knows. To compute with so much takes some 0.1 ms.
const Most = 64 << 10

// Telling is how many writes of a connection there are to one that tells the scheduler.
const Telling = 64
