// Package upstream is the HTTP/1.1 client that the gateway reaches engines with.
//
// net/http's transport gives each connection two goroutines, and each request some channels between them: at one connection
// that is more than half of what a proxy adds. Here a request runs on the goroutine that asks for it: it writes, then it reads.
// The semantics are HTTP's, strictly: what is ambiguous (two lengths, a length and chunks, folded lines, a size that is
// not a number) is refused rather than guessed, since a guess is what smuggling needs.
//
// It promises:
//
//   - An answer's body is passed to its reader as it comes, and ends with io.EOF only where HTTP says that it ended;
//     anything else is io.ErrUnexpectedEOF or the connection's error.
//   - A connection is used again only after an answer that was read to its end on a connection that both sides keep, whose
//     request was written whole, and over which nothing came that nobody asked for.
//   - When the request's context ends, the connection is closed at once, whatever it was doing.
//   - Memory for a connection is fixed: one read buffer and the head, both bounded.
//   - Every error before an answer is an *Error that says how far the request got.
//
// A [Transport] may be used by any number of goroutines; a response belongs to one.
package upstream
