// Package adapter is the border between a node and its providers: an Adapter
// speaks one provider protocol to one target, and everything above it sees
// only connections, requests and answers.
//
// The interface follows the order that a run keeps on a node: admit, Connect,
// open the lease, Do. Connect is apart from Do so that a provider that cannot
// be reached costs nothing: its error means that nothing ran, the run goes
// elsewhere, and no lease was burned.
//
//	conn, err := a.Connect(ctx, own)   // err: nothing ran
//	defer conn.Close()                 // harmless once Do was called
//	resp, err := conn.Do(ctx, req)     // errors.Is(err, ErrNotSent): nothing ran
//	io.Copy(w, resp.Body)              // nil: complete; any error: cut
//	resp.Body.Close()
//
// Invariants that every adapter holds:
//
//   - A request reaches the provider at most once. An adapter never retries,
//     never follows a redirect and never asks another address once a byte of
//     the request went out.
//   - The end of Do's context closes the connection at once, whatever is being
//     written or read. Providers notice a caller's disconnect only by that.
//   - A cut answer is an error from Response.Body, never io.EOF.
//   - Only the headers of the Request are written, and of those only the ones
//     that may cross this hop.
package adapter

import (
	"context"
	"errors"
	"io"
)

// ErrNotSent marks an error after which the provider is known to have seen
// nothing of the request. Connect's errors carry it, and Do's as long as no
// byte was written. Any other error of Do leaves open whether the request ran.
var ErrNotSent = errors.New("nothing was sent")

// ErrBadResponse marks an answer that is not acceptable HTTP: malformed, a
// status outside 200 to 599, or a head over its bound. Whether the request ran
// is unknown.
var ErrBadResponse = errors.New("bad provider response")

// ErrUnauthorized is Probe's answer when the provider lives but lists its models only for a credential, which this node does not have: the
// gateway asks instead, with a lease.
var ErrUnauthorized = errors.New("the provider asks for a credential")

// Adapter speaks one provider protocol to one target. It is safe for
// concurrent use.
type Adapter interface {
	// Target is the provider's name on this node, such as "ollama".
	Target() string
	// Kind is the protocol, such as "ollama".
	Kind() string
	// Origin is the provider's scheme://host:port.
	Origin() string
	// Probe reads what the provider holds now. It is bounded in time by ctx
	// alone and in size by the adapter.
	Probe(ctx context.Context) (Inventory, error)
	// Connect returns a connection on which nothing of this run has been
	// sent. An error means that nothing ran; it matches ErrNotSent. With own the
	// connection is dialled now and closed after the request: a credential will go
	// over it.
	Connect(ctx context.Context, own bool) (Conn, error)
}

// Inventory is what a provider holds.
type Inventory struct {
	Version string   // as the provider states it; "" if it does not
	Models  []Model  // in the provider's order
	Loaded  []Loaded // those in memory; empty if the provider cannot tell
	// Skipped says which of the provider's entries were left out as unusable;
	// nil if none. One bad entry does not hide the others.
	Skipped error
}

// Model is one model that a provider can run.
type Model struct {
	Name string
	JSON []byte // the provider's own entry (Ollama: of /api/tags), unchanged
}

// Loaded is one model in a provider's memory.
type Loaded struct {
	Name string
	JSON []byte // the provider's own entry (Ollama: of /api/ps), unchanged
}

// Conn carries one request. Its methods are called from one goroutine.
type Conn interface {
	// Do sends the request and returns once the head of the answer is in,
	// which may be before the body was sent. The connection belongs to the
	// returned Response from then on; after an error it is closed. ctx governs
	// the whole exchange, not only Do: its end closes the connection and fails
	// a pending Body.Read.
	//
	// The request's body may be read until ctx ends, also after Do returned
	// and after the answer's end: its Read must return soon after ctx ended,
	// and the caller should end ctx when it is through.
	Do(ctx context.Context, r *Request) (*Response, error)
	// Close gives up a connection whose Do was never called. After Do it does
	// nothing.
	Close()
}

// Request is one request, as it is to be written.
type Request struct {
	Method  string
	Path    string // path?query, escaped; written byte for byte
	Headers []Header
	Body    io.Reader // nil: none
	Length  int64     // exact bytes of Body, or -1: unknown. No more than Length are read
	// Credential is injected into the head; nil for none. It needs a connection of the request's own.
	Credential Credential
}

// Credential is a header line whose value is not to be kept. An adapter writes
// Line as the last line of the head, straight from the memory that it is in,
// never through another buffer of its own, calls Clear as soon as the head was
// written or is known never to be, and leaves out any other line of that name.
type Credential interface {
	// Header is the line's name.
	Header() string
	// Line is "Name: value\r\n" in memory that Clear overwrites.
	Line() ([]byte, error)
	// Clear overwrites the credential. Calls after the first do nothing.
	Clear()
}

// Header is one header or trailer line.
type Header struct{ Name, Value string }

// Response is one answer.
type Response struct {
	Status  int // 200 to 599; redirects are answers like any other
	Headers []Header
	// Body is never nil. Reading it to io.EOF means that the answer is
	// complete and gives the connection back; Close before that closes the
	// connection. Close may be called while a Read is pending.
	Body io.ReadCloser
	// Trailers are those that came with the body; call it after io.EOF.
	Trailers func() []Header
}
