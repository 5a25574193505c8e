package gateway

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/fairway-edge/fairway/internal/ollama"
)

// classify finds the endpoint, and takes off the path prefixes /k/TOKEN and /n/NODE by which clients that cannot send headers say
// who they are and which node they mean.
func (x *exchange) classify() error {
	path, token, node, err := splitPrefixes(x.r.URL.EscapedPath())
	if err != nil {
		x.match = ollama.Lookup(x.r.Method, "/")
		return err
	}
	x.match = ollama.Lookup(x.r.Method, path)
	if e := x.match.Endpoint; e != nil && e.Foreign && !x.h.hub.fleet.Offers("openai") {
		x.match = x.match.Unknown() // as it is to Ollama
	}
	if x.match.Endpoint != nil {
		x.acc.Endpoint = x.match.Endpoint.Name
	}
	x.acc.token = token
	x.node = x.r.Header.Get(headerNode)
	if node != "" {
		if x.node != "" && x.node != node {
			return fail(codeBadRequest, "the path and %s name different nodes", headerNode)
		}
		x.node = node
	}
	// Replayable early data must not start anything (RFC 8470).
	early := x.r.TLS != nil && !x.r.TLS.HandshakeComplete || x.r.Header.Get("Early-Data") == "1" // here, or at a proxy in front
	if early && x.r.Method != http.MethodGet && x.r.Method != http.MethodHead {
		return fail(codeTooEarly, "this request may not be sent as early data")
	}
	return nil
}

// splitPrefixes takes /k/TOKEN and /n/NODE, in either order and each at most once, off an escaped path.
func splitPrefixes(path string) (rest, token, node string, err error) {
	for {
		for strings.HasPrefix(path, "//") {
			path = path[1:] // as Lookup folds them
		}
		var into *string
		switch {
		case strings.HasPrefix(path, "/k/") && token == "":
			into = &token
		case strings.HasPrefix(path, "/n/") && node == "":
			into = &node
		default:
			return path, token, node, nil
		}
		segment, rest, _ := strings.Cut(path[len("/k/"):], "/")
		value, err := url.PathUnescape(segment)
		if err != nil || value == "" {
			return "/", "", "", fail(codeBadRequest, "malformed path prefix")
		}
		*into = value
		path = "/" + rest
	}
}

// unknown answers a path or method that is not in the catalogue. Nothing of it ever travels.
func (x *exchange) unknown() error {
	if x.match.Status == http.StatusMethodNotAllowed {
		x.w.Header().Set("Allow", x.match.Allow)
		if x.match.Family == ollama.Edge { // Fairway's own, and not an imitation
			x.respond(http.StatusMethodNotAllowed, ollama.ContentTypeJSON, ollama.Edge.ErrorBody(http.StatusMethodNotAllowed, "", "405 method not allowed"))
			return nil
		}
		x.respond(http.StatusMethodNotAllowed, ollama.ContentTypeText, []byte(ollama.MethodNotAllowedText))
		return nil
	}
	path := x.match.Path // without the prefixes: one of them is a key
	if plain, err := url.PathUnescape(path); err == nil {
		path = plain
	}
	ctype, body := ollama.UnknownPath(x.match, path)
	x.respond(http.StatusNotFound, ctype, body)
	return nil
}
