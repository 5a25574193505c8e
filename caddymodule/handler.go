package caddymodule

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/caddymodule/internal/gateway"
)

func init() { caddy.RegisterModule(new(Handler)) }

// Bounds of the Handler's options.
const (
	maxMaxBody   = 512 << 20 // what a gateway buffers of all bodies together
	maxFirstByte = 24 * time.Hour
)

// Handler serves the Ollama, OpenAI and Anthropic endpoints of a fleet on a site. It
// answers every request itself, with the JSON error of the path's family where
// there is nothing to serve, and never passes one on; use `handle` or `handle_path`
// to give it a part of a site.
//
// A site that listens beyond loopback must say who may call: by a `key` in the
// global block, or by `auth`.
//
// Once a request is through it sets these placeholders, for `log_append` and for
// what runs around the handler:
//
// Placeholder | Description
// ------------|---------------
// `{http.fairway.run}` | the run's id, the answer's `X-Fairway-Run`
// `{http.fairway.node}` | the node that served it, empty if none did
// `{http.fairway.route}` | the route
// `{http.fairway.model}` | the model's full name
// `{http.fairway.principal}` | who called
// `{http.fairway.outcome}` | `completed`, `failed` or `canceled`
// `{http.fairway.code}` | the error's code, empty if there was none
//
// The access log has run, node, route, model and outcome as `fairway_run` and so on. The
// log line of a request that shows a key in the path, in the query or in `X-Api-Key`
// is written by the handler, without the key.
type Handler struct {
	// How callers are identified: by an API key of the global block (default),
	// `caddy` for the user that a Caddy authentication handler before it has set, or
	// `none` for anyone. Without any key, a site on loopback serves anyone who asks for
	// a local Host (`localhost`, an IP address); `none` takes every Host.
	Auth string `json:"auth,omitempty"`

	// The origins that browsers may call from, `*` for any. Default: none.
	CORS []string `json:"cors,omitempty"`

	// The principals that may pull, push, create, copy and delete models on a node
	// that they name, `*` for any. The node's owner has to allow it too. Default: nobody.
	Manage []string `json:"manage,omitempty"`

	// The greatest body in bytes, at most 512 MiB. Default: 64 MiB.
	MaxBody int64 `json:"max_body,omitempty"`

	// How long a node may take to begin its answer; then the run is canceled and the
	// caller gets 504. Default: no limit, because loading a model is silent.
	FirstByte caddy.Duration `json:"first_byte,omitempty"`

	// Name the node in the answer's `X-Fairway-Node`. Default: false.
	ExposeNode bool `json:"expose_node,omitempty"`

	handler *gateway.Handler
	access  accessLog
}

// CaddyModule returns the Caddy module information.
func (*Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.fairway", New: func() caddy.Module { return new(Handler) }}
}

// Provision connects the handler with its config's App.
func (h *Handler) Provision(ctx caddy.Context) error {
	mod, err := ctx.App("fairway")
	if err != nil {
		return err
	}
	app := mod.(*App) //nolint:errcheck // that is its type
	srv, _ := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	opts, err := h.options(newResolver(), onLoopback(srv))
	if err != nil {
		return err
	}
	open := opts.Auth == gateway.AuthNone // as the operator says
	if opts.Auth, err = admission(opts.Auth, len(app.values.keys) > 0, srv); err != nil {
		return err
	}
	opts.LocalHost = opts.Auth == gateway.AuthNone && !open
	if open && !opts.Loopback {
		ctx.Logger().Warn("auth none: anyone who reaches this site may use the fleet", zap.Strings("listen", addresses(srv)))
	}
	h.handler = gateway.NewHandler(app.hub.Hub, app.settings, opts)
	h.access = accessLog{server: srv, log: ctx.Logger(accessLogModule{}), keys: app.values.keys}
	return nil
}

// options are the handler's, with defaults left to the gateway.
func (h *Handler) options(repl resolver, loopback bool) (o gateway.Options, err error) {
	auth, err := repl.value("auth", h.Auth, "", checkAuth)
	if err != nil {
		return o, err
	}
	o = gateway.Options{
		Auth: gateway.Auth(auth), Loopback: loopback, MaxBody: h.MaxBody, FirstByte: time.Duration(h.FirstByte), ExposeNode: h.ExposeNode,
	}
	if err := checkMaxBody(h.MaxBody); h.MaxBody != 0 && err != nil {
		return o, fmt.Errorf("max_body: %w", err)
	}
	if err := checkFirstByte(o.FirstByte); h.FirstByte != 0 && err != nil {
		return o, fmt.Errorf("first_byte: %w", err)
	}
	if o.CORS, err = repl.list("cors", h.CORS, checkOrigin); err != nil {
		return o, err
	}
	o.Manage, err = repl.list("manage", h.Manage, checkManager)
	return o, err
}

// list resolves a repeatable option.
func (r resolver) list(option string, list []string, check func(string) error) ([]string, error) {
	var out []string
	for _, v := range list {
		got, err := r.value(option, v, "", check)
		if err != nil {
			return nil, err
		}
		out = append(out, got)
	}
	return out, nil
}

// admission settles how callers are identified, and refuses to serve the world by
// an oversight.
func admission(auth gateway.Auth, keys bool, srv *caddyhttp.Server) (gateway.Auth, error) {
	switch {
	case auth != gateway.AuthKey || keys:
		return auth, nil
	case onLoopback(srv):
		return gateway.AuthNone, nil
	}
	where := "an unknown address"
	if srv != nil {
		where = fmt.Sprint(srv.Listen)
	}
	return "", fmt.Errorf("refusing to serve anyone: the site listens beyond loopback (%s) and there is no API key; "+
		"add `key NAME {file./path}` to the global fairway block (`caddy fairway key new NAME` makes one), "+
		"or write `auth none` or `auth caddy` in the site's fairway block, or bind the site to loopback (`http://:PORT` with `bind 127.0.0.1`)", where)
}

// onLoopback tells whether every listener of a server is for this machine only.
func onLoopback(srv *caddyhttp.Server) bool {
	if srv == nil || len(srv.Listen) == 0 {
		return false
	}
	for _, addr := range srv.Listen {
		na, err := caddy.ParseNetworkAddress(addr)
		if err != nil || na.IsFdNetwork() || !na.IsUnixNetwork() && !isLoopback(na.Host) {
			return false
		}
	}
	return true
}

// addresses are a server's listeners, for people.
func addresses(srv *caddyhttp.Server) []string {
	if srv == nil {
		return nil
	}
	return srv.Listen
}

// ServeHTTP answers the request. It returns no error: Caddy would log it with the
// request as it came in, keys included.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	acc := gateway.NewAccount()
	if repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok {
		acc.User, _ = repl.GetString("http.auth.user.id")
	}
	finish := h.access.begin(r, acc)
	defer func() { finish(w.Header()) }() // also when the answer is cut by a panic
	h.handler.Serve(w, r, acc)
	return nil
}

func checkAuth(v string) error {
	if v == "" {
		return nil
	}
	return oneOf(v, string(gateway.AuthNone), string(gateway.AuthCaddy))
}

func checkManager(v string) error {
	if v == "*" || v == gateway.Anonymous {
		return nil
	}
	return checkPrincipal(v)
}

func checkMaxBody(n int64) error {
	if n < 1 || n > maxMaxBody {
		return errors.New("want 1B to 512MiB")
	}
	return nil
}

func checkFirstByte(d time.Duration) error {
	if d < time.Millisecond || d > maxFirstByte {
		return errors.New("want 1ms to 24h")
	}
	return nil
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)
