// Package openai is the adapter for any server that speaks OpenAI's API: vLLM,
// llama.cpp's server, LM Studio, a cloud. Requests under /v1/ pass through as
// they are (package http1); what is added is where /v1 is, and the inventory.
//
//	openai.go   the adapter: base URL
//	probe.go    inventory
//	version.go  what the server says that it is
package openai

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/nodeclient/adapter/http1"
)

const (
	prefix  = "/v1"
	maxBase = 256 // bytes of a base path
)

// Adapter is one server. Make it with New.
type Adapter struct {
	*http1.Server
	base     string      // what stands in the place of /v1
	nameless atomic.Bool // the server has no version that it tells
}

// New makes the adapter of one target. url is what OpenAI's own clients take
// as their base URL: scheme://host[:port]/path, where the path stands in the
// place of /v1 and is /v1 when there is none. https://openrouter.ai/api/v1
// turns a request for /v1/models into one for /api/v1/models. Without a scheme
// it is http; without a port it is the scheme's. The path is no part of the
// origin, and cannot be changed by a request.
func New(target, url string) (*Adapter, error) {
	origin, base := split(url)
	s, err := http1.New(target, origin, "80")
	if err != nil {
		return nil, err
	}
	if err := checkBase(base); err != nil {
		return nil, fmt.Errorf("URL of target %s: %w", target, err)
	}
	return &Adapter{Server: s, base: base}, nil
}

// split takes the path off an URL.
func split(url string) (origin, base string) {
	start := strings.Index(url, "://") + len("://")
	if start < len("://") {
		start = 0
	}
	slash := strings.IndexByte(url[start:], '/')
	if slash < 0 {
		return url, prefix
	}
	if base = strings.TrimSuffix(url[start+slash:], "/"); base == "" {
		base = prefix
	}
	return url[:start+slash], base
}

// checkBase takes paths that every server reads in one way.
func checkBase(base string) error {
	if len(base) > maxBase {
		return fmt.Errorf("a path of more than %d bytes", maxBase)
	}
	for segment := range strings.SplitSeq(base[1:], "/") {
		if segment == "" || strings.Trim(segment, ".") == "" || strings.ContainsFunc(segment, notInBase) {
			return fmt.Errorf("bad path %q; want scheme://host:port/path as an OpenAI client takes it, such as https://openrouter.ai/api/v1, "+
				"of letters, digits and -._~ alone", base)
		}
	}
	return nil
}

func notInBase(c rune) bool {
	return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.ContainsRune("-._~", c))
}

// Kind is "openai".
func (a *Adapter) Kind() string { return "openai" }

// Connect implements adapter.Adapter, as http1's does.
func (a *Adapter) Connect(ctx context.Context, own bool) (adapter.Conn, error) {
	c, err := a.Server.Connect(ctx, own)
	if err != nil {
		return nil, err
	}
	return conn{c, a.base}, nil
}

// conn sends requests to the base.
type conn struct {
	adapter.Conn
	base string
}

// errOutside is a fault of the gateway.
var errOutside = errors.New("only paths under /v1/ are sent to an OpenAI server")

// Do implements adapter.Conn. Paths outside /v1/ are not sent: some of these
// servers have an API of their own there, which nobody has allowed.
func (c conn) Do(ctx context.Context, r *adapter.Request) (*adapter.Response, error) {
	rest, ok := strings.CutPrefix(r.Path, prefix+"/")
	if !ok {
		c.Close()
		if r.Credential != nil {
			r.Credential.Clear()
		}
		return nil, fmt.Errorf("%w: %w", adapter.ErrNotSent, errOutside)
	}
	moved := *r
	moved.Path = c.base + "/" + rest
	return c.Conn.Do(ctx, &moved)
}

var _ adapter.Adapter = (*Adapter)(nil)
