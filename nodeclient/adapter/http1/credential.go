package http1

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
)

// maxRecord is less than what crypto/tls puts into one of a connection's first records.
const maxRecord = 1 << 10

// inject writes a head whose empty line is missing, the credential's line, and
// what follows it: the empty line and a small body. The line goes out of the
// memory that it is in; over plain TCP the three are one writev. It returns how
// many bytes were written.
//
// TLS 1.3 encrypts in place, in a buffer from a pool; but one that has to grow
// leaves its former self behind, with what was copied into it. So the line
// goes in pieces that fit into the buffer of the head, which was used last.
func (x *exchange) inject(head, tail []byte, cred adapter.Credential) (n int64, err error) {
	defer cred.Clear()
	line, err := lineOf(cred)
	if err != nil {
		return 0, err
	}
	x.c.secret = true
	if x.s.tls == nil {
		all := net.Buffers{head, line, tail}
		return all.WriteTo(x.c.raw)
	}
	write := func(b []byte) {
		if err == nil {
			var m int
			m, err = x.c.Write(b)
			n += int64(m)
		}
	}
	write(head)
	for piece := range slices.Chunk(line, min(len(head), maxRecord)) {
		write(piece)
	}
	cred.Clear() // the body may have to wait
	write(tail)
	return n, err
}

var errBadLine = errors.New("the credential cannot stand in a header")

// lineOf asks a credential for its line, and takes nothing but one line of the
// name that it gave. The value comes from afar: it must not be able to begin
// another header, and its name must not be one that frames the request.
func lineOf(cred adapter.Credential) ([]byte, error) {
	name := cred.Header()
	var buf [64]byte
	if !isToken(name) || frames(fold(buf[:0], name)) {
		return nil, fmt.Errorf("%w: bad name %q", errBadLine, name)
	}
	line, err := cred.Line()
	if err != nil {
		return nil, err
	}
	value := len(name) + len(": ")
	end := len(line) - len("\r\n")
	if end <= value || string(line[:value]) != name+": " || string(line[end:]) != "\r\n" || !validValue(line[value:end]) {
		return nil, errBadLine
	}
	return line, nil
}

// credential tells the headers, in lower case, that say who asks and on whose
// account. None ever passes from a caller: it would reach a provider that it was
// not meant for, stand beside the one that is injected, or travel on to
// ollama.com when a model turns out to be remote. The gateway has the same list
// (notForwarded).
func credential(low []byte) bool {
	switch string(low) {
	case "authorization", "proxy-authorization", "x-authorization",
		"api-key", "apikey", "x-api-key", "x-api-token", "x-goog-api-key", "x-goog-user-project", "ocp-apim-subscription-key",
		"x-auth-token", "x-auth-key", "x-auth-email", "x-access-token", "x-amz-security-token", "x-functions-key",
		"cf-aig-authorization", "cf-access-client-id", "cf-access-client-secret", "cf-access-token",
		"x-vault-token", "private-token", "cookie", "cookie2",
		"openai-organization", "openai-project":
		return true
	}
	return false
}
