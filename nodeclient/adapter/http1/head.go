package http1

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
)

// appendHead appends the request's head to b, but for its last, empty line. Host
// is the server's own address, never the caller's: Ollama on loopback answers a
// foreign Host with 403 (ollama/ollama#3269). An error names no header's value.
func appendHead(b []byte, host string, r *adapter.Request, last bool) ([]byte, error) {
	if err := checkLine(r); err != nil {
		return b, err
	}
	injected := ""
	if r.Credential != nil {
		injected = r.Credential.Header()
	}
	b = append(b, r.Method...)
	b = append(b, ' ')
	b = append(b, r.Path...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, host...)
	b = append(b, "\r\n"...)
	nominated := connectionNames(r.Headers)
	for _, h := range r.Headers {
		if !isToken(h.Name) {
			return b, fmt.Errorf("bad header name %q", h.Name)
		}
		if !validValue(h.Value) {
			return b, fmt.Errorf("bad value of header %s", h.Name)
		}
		if dropRequestHeader(h.Name) || holds(nominated, h.Name) || sameHeader(h.Name, injected) {
			continue
		}
		b = append(b, h.Name...)
		b = append(b, ": "...)
		b = append(b, h.Value...)
		b = append(b, "\r\n"...)
	}
	if last {
		b = append(b, "Connection: close\r\n"...)
	}
	return appendFraming(b, r), nil
}

func checkLine(r *adapter.Request) error {
	switch {
	case !isToken(r.Method) || r.Method == http.MethodConnect:
		return fmt.Errorf("bad method %q", r.Method)
	case !strings.HasPrefix(r.Path, "/") || strings.ContainsFunc(r.Path, notInPath):
		return errors.New("bad path")
	case r.Body == nil && r.Length > 0 || r.Length < -1:
		return fmt.Errorf("bad body length %d", r.Length)
	}
	return nil
}

func notInPath(c rune) bool { return c <= ' ' || c == 0x7f }

// appendFraming writes how the body ends. A GET without a body gets neither
// line (a phantom body breaks some servers); a POST without one says so, as
// RFC 9110 section 8.6 asks.
func appendFraming(b []byte, r *adapter.Request) []byte {
	switch {
	case r.Body != nil && r.Length < 0:
		return append(b, "Transfer-Encoding: chunked\r\n"...)
	case r.Body != nil || r.Method == http.MethodPost || r.Method == http.MethodPut || r.Method == http.MethodPatch:
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, max(r.Length, 0), 10)
		return append(b, "\r\n"...)
	}
	return b
}

// connectionNames lists the headers that Connection nominates as hop-by-hop
// (RFC 9110 section 7.6.1).
func connectionNames(hs []adapter.Header) (names []string) {
	for _, h := range hs {
		if strings.EqualFold(h.Name, "Connection") {
			for n := range strings.SplitSeq(h.Value, ",") {
				names = append(names, strings.Trim(n, " \t"))
			}
		}
	}
	return names
}

func holds(names []string, name string) bool {
	for _, n := range names {
		if strings.EqualFold(n, name) {
			return true
		}
	}
	return false
}

// dropRequestHeader says which of the declared headers must not reach the
// server. The gateway has dropped them already; a gateway with a fault must not
// be able to send them either. Host and the framing are written by appendHead.
// Expect has no use: the body is sent without waiting. Origin and its kin would
// make Ollama's CORS layer refuse the request.
func dropRequestHeader(name string) bool {
	var buf [64]byte
	low := fold(buf[:0], name)
	switch string(low) {
	case "origin", "referer", "forwarded":
		return true
	}
	return frames(low) || credential(low) || hasPrefix(low, "access-control-request-") || hasPrefix(low, "sec-fetch-") ||
		hasPrefix(low, "x-fairway-") || hasPrefix(low, "x-forwarded-")
}

// dropResponseHeader says which headers of an answer stay here: the hop's own,
// and CORS, which is the gateway's to answer.
func dropResponseHeader(name string) bool {
	var buf [64]byte
	low := fold(buf[:0], name)
	return hopByHop(low) || hasPrefix(low, "access-control-")
}

// frames tells the names that say where a request goes, where it ends, and
// what is for this connection alone.
func frames(low []byte) bool {
	switch string(low) {
	case "host", "content-length", "expect":
		return true
	}
	return hopByHop(low)
}

func hopByHop(low []byte) bool {
	switch string(low) {
	case "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization",
		"te", "trailer", "transfer-encoding", "upgrade", "http2-settings":
		return true
	}
	return false
}

func hasPrefix(b []byte, p string) bool { return len(b) >= len(p) && string(b[:len(p)]) == p }

// fold appends name as a server may read it: in lower case, and with a hyphen
// for an underscore, which CGI and its heirs cannot tell apart.
func fold(b []byte, name string) []byte {
	for i := range len(name) {
		c := name[i]
		switch {
		case 'A' <= c && c <= 'Z':
			c += 'a' - 'A'
		case c == '_':
			c = '-'
		}
		b = append(b, c)
	}
	return b
}

func sameHeader(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	var x, y [64]byte
	return string(fold(x[:0], a)) == string(fold(y[:0], b))
}

// isToken is RFC 9110 section 5.6.2.
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0) {
			return false
		}
	}
	return s != ""
}

// validValue refuses CR, LF, NUL and every other control byte but the tab.
func validValue[T string | []byte](s T) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}
