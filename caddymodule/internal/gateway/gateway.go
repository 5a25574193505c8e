// Package gateway is the request pipeline, free of Caddy:
//
//	classify → identify → resolve → admit → dispatch → copy → account
//
// Each step takes what the one before made; its file has its name. A Hub outlives configurations: it owns the socket on which nodes dial in,
// the fleet, the runs in flight and the stack of loaded Settings. A Handler belongs to one configuration and goes on serving its requests
// after the next one is loaded.
//
// A request that reaches a node is a run. It has one id, one or more attempts (a further one only after the node has said that nothing
// ran), and one end, which the goroutine that serves the request gives it. Client bytes are written by that goroutine alone.
package gateway

import (
	"net/http"
	"time"

	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/tunnel"
)

// Options are what the handler directive of one site says.
type Options struct {
	// Route is the name of the route; "default" until others exist.
	Route string
	// Auth says who may call: AuthKey, AuthNone or AuthCaddy.
	Auth Auth
	// Loopback: every listener of the site is bound to loopback.
	Loopback bool
	// LocalHost: only requests for a local Host are served, as an Ollama on loopback does. For sites without a key that nobody has declared open: a
	// page whose name was rebound to loopback could read them.
	LocalHost bool
	// CORS lists the origins that browsers may call from; "*" for any.
	CORS []string
	// Manage lists the principals that may use management endpoints; "*" for any.
	Manage []string
	// MaxBody bounds a request's body in bytes.
	MaxBody int64
	// FirstByte bounds the wait for a provider's head; 0 for none.
	FirstByte time.Duration
	// ExposeNode adds X-Fairway-Node to answers.
	ExposeNode bool
	// Queue bounds the waiting for a credit.
	QueueDepth int
	QueueWait  time.Duration
}

// Auth is how callers are identified.
type Auth string

// The ways.
const (
	AuthKey   Auth = ""      // an API key of the configuration
	AuthNone  Auth = "none"  // anyone
	AuthCaddy Auth = "caddy" // the user that a Caddy authentication handler set
)

// Defaults of Options.
const (
	DefaultMaxBody    = 64 << 20
	DefaultQueueDepth = 512
	DefaultQueueWait  = 60 * time.Second
	DefaultRoute      = "default"
)

// Handler serves one site's requests.
type Handler struct {
	hub      *Hub
	settings *Settings
	opts     Options
	cors     corsPolicy
}

// NewHandler returns a Handler for a configuration.
func NewHandler(hub *Hub, settings *Settings, opts Options) *Handler {
	if opts.MaxBody == 0 {
		opts.MaxBody = DefaultMaxBody
	}
	if opts.QueueDepth == 0 {
		opts.QueueDepth = DefaultQueueDepth
	}
	if opts.QueueWait == 0 {
		opts.QueueWait = DefaultQueueWait
	}
	if opts.Route == "" {
		opts.Route = DefaultRoute
	}
	return &Handler{hub: hub, settings: settings, opts: opts, cors: newCORSPolicy(opts)}
}

// Serve answers r and fills in acc, which the caller made with NewAccount. It may panic with http.ErrAbortHandler: an answer was cut, and
// the client must see that.
func (h *Handler) Serve(w http.ResponseWriter, r *http.Request, acc *Account) {
	x := &exchange{h: h, w: w, r: r, rc: http.NewResponseController(w), acc: acc}
	w.Header().Set(headerRun, acc.Run)
	acc.Route = h.opts.Route
	if s := r.Header.Get(headerSession); s != "" && validSession(s) {
		acc.Session = s
		w.Header().Set(headerSession, s)
	}
	defer func() {
		acc.end(tunnel.Failed, "internal", http.StatusInternalServerError) // of no effect but after a fault of ours
		if !acc.handed {
			h.hub.account(acc)
		}
	}()
	if err := x.serve(); err != nil {
		x.fail(err)
	}
}

// exchange is one request on its way through the pipeline.
type exchange struct {
	h   *Handler
	w   http.ResponseWriter
	r   *http.Request
	rc  *http.ResponseController
	acc *Account

	match     ollama.Match
	principal string
	node      string // pinned by header or path prefix
	request   ollama.Request
	bodyRead  bool // the request's body was read to its end
	started   bool // the head of the answer is out
}

func (x *exchange) serve() error {
	if err := x.classify(); err != nil {
		return err
	}
	if done, err := x.checkOrigin(); done || err != nil {
		return err
	}
	if x.match.Status != http.StatusOK {
		return x.unknown()
	}
	if err := x.identify(); err != nil {
		return err
	}
	switch x.match.Endpoint.Action {
	case ollama.Self:
		return x.self()
	case ollama.Aggregate:
		return x.inventory()
	case ollama.Route:
		return x.route()
	case ollama.Pin:
		return x.pin()
	case ollama.Typed:
		return x.typed()
	}
	return fail(codeForbidden, "%s is not served by this gateway", x.match.Path)
}
