// Package downstream is the HTTP/1.1 server that clients reach the gateway by.
//
// net/http's server has two goroutines for each connection, of which the second waits in a read for the client to leave and is woken and
// stopped for every request, and 10 KiB of buffers, also while a stream waits for its engine. Here a connection has one goroutine and, while it
// waits, no buffer. The handler is an [http.Handler] all the same: HTTP/2 stays with net/http, and shares it. Over TLS, which is crypto/tls's, all of this
// holds too; connections with which HTTP/2 was agreed are given away when they have shaken hands.
//
// It promises:
//
//   - What it takes as a request, net/http takes too, and in the same way (FuzzRequest). It refuses more: a length and chunks together, lines
//     that are folded or end in LF alone, chunks for HTTP/1.0, versions other than 1.0 and 1.1, a Trailer that announces a field of framing also where
//     there are no chunks, an Expect that is not only 100-continue, chunk lines above 256 bytes. A guess is what smuggling needs. A head may have
//     1,000 fields and exactly the bytes that are set, where net/http lets some 4 KiB more pass.
//   - A request's context ends when its client leaves, closes its direction for sending, or its handler returns. On Linux the system tells of
//     the first two through one epoll for all connections, whatever of theirs is unread; elsewhere a goroutine of each connection reads ahead.
//     TLS's goodbye is one too, from when the request has come whole and while nothing of a further one has.
//   - Memory of a connection that waits for a request, or whose handler waits, is fixed: no buffer of ours. A head is bounded, whole.
//   - A head, a silence between requests, and a refusal's way out have time-outs; bodies and answers have those that the handler sets. It must set
//     both deadlines, for reading where there is a body and for writing: those of the request before are still there, and a first one has none.
//   - An answer and its head are written with one system call if they are there together, and so is each part of a stream with its framing.
//     What a handler does not finish, by a panic or by writing less than it said, never ends cleanly, and over TLS without a goodbye.
//   - [Server.Shutdown] ends idle connections and waits for the others; after [Server.Close] and [Server.Wait] no goroutine is left.
//
// A handler must not use the ResponseWriter, the Body or the Header of a request after it has returned: they are the connection's, which uses
// them again. The Request and its context are the request's own; its TLS is nil. Informational answers, trailers of answers and Hijack are not supported.
package downstream
