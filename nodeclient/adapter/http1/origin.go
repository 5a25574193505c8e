package http1

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// maxHost is the longest host name that DNS knows.
const maxHost = 253

// Server is one server that speaks HTTP/1.1. Make it with New. It is safe for
// concurrent use.
type Server struct {
	target string
	origin string      // scheme://host:port
	host   string      // host:port, also the Host header
	tls    *tls.Config // nil: plain
	addrs  []string    // dialled in order until one connects
	dialer net.Dialer
	idle   pool
}

// New makes the server of one target. origin is scheme://host[:port] with
// scheme http or https and nothing behind the port; without a port it is the
// scheme's. The scheme may be left out: then it is http, and the port barePort.
func New(target, origin, barePort string) (*Server, error) {
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
	case u.Hostname() == "" || len(u.Hostname()) > maxHost || strings.ContainsFunc(u.Hostname(), notInHost):
		return nil, fmt.Errorf("origin of target %s: bad host %q", target, u.Hostname())
	case port == "" && bare:
		port = barePort
	case port == "" && u.Scheme == "http":
		port = "80"
	case port == "":
		port = "443"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return nil, fmt.Errorf("origin of target %s: bad port %q", target, port)
	}
	s := &Server{target: target, host: net.JoinHostPort(u.Hostname(), port)}
	s.origin = u.Scheme + "://" + s.host
	s.addrs = addresses(u.Hostname(), port)
	if u.Scheme == "https" {
		s.tls = &tls.Config{ServerName: u.Hostname(), NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12}
	}
	return s, nil
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
func (s *Server) Target() string { return s.target }

// Origin is the server's scheme://host:port.
func (s *Server) Origin() string { return s.origin }
