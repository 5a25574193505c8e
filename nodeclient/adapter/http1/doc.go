// Package http1 holds one exchange with one provider over HTTP/1.1, for all
// adapters that speak it. An adapter is a [Server] and what its protocol adds:
// an inventory, and where requests go.
//
// It does not use http.Client, for three reasons. Heads are written by hand
// from the request's own fields, because http.Header keeps copies of a
// credential in memory long after the request. Connecting and sending are two
// steps, because only a failed connect proves that nothing ran. And
// the pool must never put a request on a connection that the provider is just
// closing, because a POST cannot be retried. Answers are parsed by
// net/http.ReadResponse: parsing what a peer sends is not worth owning.
//
//	origin.go      the server: reading its origin
//	dial.go        connections
//	pool.go        idle connections, and why they live for 20 ms
//	exchange.go    one request on one connection
//	head.go        the request's head, and what may stand in it
//	credential.go  the one line that stands nowhere else
//	answer.go      the response's head and body
//	get.go         a small question on a connection of its own
//
// No proxy of the environment is used, no redirect followed, nothing
// decompressed. There is no limit on how long an answer may take to begin: a
// model's load and the wait behind other requests pass in silence.
// The run's context is the only clock.
package http1
