package caddymodule

import (
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/dustin/go-humanize"
)

func parseDirective(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	handler := new(Handler)
	return handler, handler.UnmarshalCaddyfile(h.Dispenser)
}

// UnmarshalCaddyfile sets up the Handler from the directive. Syntax:
//
//	fairway [MATCHER] {
//		auth       none|caddy
//		cors       ORIGIN...
//		manage     PRINCIPAL...
//		max_body   SIZE
//		first_byte DURATION
//		expose_node
//	}
//
// Everything has a default, and the block may be left out. The directive is ordered
// before reverse_proxy, so a bare `respond` in the same site comes first.
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive's name
	if d.NextArg() {
		return d.Errf("fairway takes a block, not '%s'", d.Val())
	}
	return options{
		"auth":        text(&h.Auth, checkAuth),
		"cors":        texts(&h.CORS, checkOrigin),
		"manage":      texts(&h.Manage, checkManager),
		"max_body":    {parse: h.parseMaxBody},
		"first_byte":  {parse: h.parseFirstByte},
		"expose_node": {parse: h.parseExposeNode},
	}.parse(d, "fairway", 0, "route")
}

func (h *Handler) parseMaxBody(d *caddyfile.Dispenser) error {
	var value string
	if err := text(&value, nil).parse(d); err != nil {
		return err
	}
	n, err := humanize.ParseBytes(value)
	if err != nil || n > maxMaxBody || checkMaxBody(int64(n)) != nil {
		return d.Errf("max_body: '%s': want a size from 1B to 512MiB", value)
	}
	h.MaxBody = int64(n)
	return nil
}

func (h *Handler) parseFirstByte(d *caddyfile.Dispenser) error {
	var value string
	if err := text(&value, nil).parse(d); err != nil {
		return err
	}
	dur, err := caddy.ParseDuration(value)
	if err != nil || checkFirstByte(dur) != nil {
		return d.Errf("first_byte: '%s': want a duration from 1ms to 24h", value)
	}
	h.FirstByte = caddy.Duration(dur)
	return nil
}

func (h *Handler) parseExposeNode(d *caddyfile.Dispenser) error {
	if d.NextArg() {
		return d.Errf("'expose_node' takes no value, not '%s'", d.Val())
	}
	h.ExposeNode = true
	return nil
}

var _ caddyfile.Unmarshaler = (*Handler)(nil)
