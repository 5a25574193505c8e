// Package ollama is the adapter for an Ollama server: HTTP/1.1 over
// connections of its own.
//
// It does not use http.Client, for three reasons. Heads are written by hand
// from the request's own fields, because http.Header keeps copies of a
// credential in memory long after the request. Connecting and sending are two
// steps, because only a failed connect proves that nothing ran. And
// the pool must never put a request on a connection that the provider is just
// closing, because a POST cannot be retried. Answers are parsed by
// net/http.ReadResponse: parsing what a peer sends is not worth owning.
//
//	ollama.go    the adapter: origin, dialling
//	pool.go      idle connections, and why they live for 20 ms
//	exchange.go  one request on one connection
//	head.go      the request's head, and what may stand in it
//	answer.go    the response's head and body
//	probe.go     inventory
//
// No proxy of the environment is used, no redirect followed, nothing
// decompressed. There is no limit on how long an answer may take to begin: a
// model's load and the wait behind other requests pass in silence at Ollama.
// The run's context is the only clock.
package ollama

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
)

// connectTimeout bounds dialling, all addresses and TLS together.
const connectTimeout = 5 * time.Second

// Adapter is one Ollama server. Make it with New.
type Adapter struct {
	target string
	origin string      // scheme://host:port
	host   string      // host:port, also the Host header
	tls    *tls.Config // nil: plain
	addrs  []string    // dialled in order until one connects
	dialer net.Dialer
	idle   pool
}

// defaultPort is Ollama's own, for origins that say as little as its OLLAMA_HOST.
const defaultPort = "11434"

// New makes the adapter of one target. origin is scheme://host[:port] with
// scheme http or https and nothing behind the port; without a port it is the
// scheme's. As in OLLAMA_HOST the scheme may be left out: then it is http, and
// the port 11434.
func New(target, origin string) (*Adapter, error) {
	bare := origin != "" && !strings.Contains(origin, "://")
	if bare {
		origin = "http://" + origin
	}
	u, err := url.Parse(origin)
	if err != nil {
		return nil, fmt.Errorf("parsing origin of target %s: %w", target, err)
	}
	port := u.Port()
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("origin of target %s: scheme must be http or https, got %q", target, u.Scheme)
	case u.User != nil || u.Opaque != "" || u.RawQuery != "" || u.Fragment != "" || u.Path != "" && u.Path != "/":
		return nil, fmt.Errorf("origin of target %s: want scheme://host:port and nothing else", target)
	case u.Hostname() == "" || strings.ContainsFunc(u.Hostname(), notInHost):
		return nil, fmt.Errorf("origin of target %s: bad host %q", target, u.Hostname())
	case port == "" && bare:
		port = defaultPort
	case port == "" && u.Scheme == "http":
		port = "80"
	case port == "":
		port = "443"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return nil, fmt.Errorf("origin of target %s: bad port %q", target, port)
	}
	a := &Adapter{target: target, host: net.JoinHostPort(u.Hostname(), port)}
	a.origin = u.Scheme + "://" + a.host
	a.addrs = addresses(u.Hostname(), port)
	if u.Scheme == "https" {
		a.tls = &tls.Config{ServerName: u.Hostname(), NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12}
	}
	return a, nil
}

// notInHost refuses what would break the Host line, and IPv6 zones, which
// have no place in it.
func notInHost(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`/\?#@%"<>`, r) }

// addresses lists what to dial. localhost is loopback in both families
// whatever the resolver knows (RFC 6761): a hosts file with only one of them is
// common, and so is a server that listens on only one. Any other name is left
// to net.Dialer, which races the families (RFC 6555) and tries every address.
func addresses(host, port string) []string {
	if strings.EqualFold(host, "localhost") {
		return []string{net.JoinHostPort("127.0.0.1", port), net.JoinHostPort("::1", port)}
	}
	return []string{net.JoinHostPort(host, port)}
}

// Target is the name given to New.
func (a *Adapter) Target() string { return a.target }

// Kind is "ollama".
func (a *Adapter) Kind() string { return "ollama" }

// Origin is the server's scheme://host:port.
func (a *Adapter) Origin() string { return a.origin }

// Connect takes an idle connection or dials, for at most 5 s.
func (a *Adapter) Connect(ctx context.Context, own bool) (adapter.Conn, error) {
	if !own {
		if c := a.idle.take(); c != nil {
			return &exchange{a: a, c: c, pooled: true}, nil
		}
	}
	c, err := a.dial(ctx)
	if err != nil {
		return nil, err
	}
	return &exchange{a: a, c: c, pooled: !own}, nil
}

func (a *Adapter) dial(ctx context.Context) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	var errs []error
	for _, addr := range a.addrs {
		nc, err := a.dialer.DialContext(ctx, "tcp", addr)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if a.tls == nil {
			return newConn(nc, nc), nil
		}
		tc := tls.Client(nc, a.tls)
		if err := tc.HandshakeContext(ctx); err != nil {
			nc.Close()
			errs = append(errs, err)
			continue
		}
		return newConn(tc, nc), nil
	}
	return nil, fmt.Errorf("connecting to %s: %w: %w", a.origin, adapter.ErrNotSent, errors.Join(errs...))
}

var _ adapter.Adapter = (*Adapter)(nil)
