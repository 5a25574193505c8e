package caddymodule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/caddymodule/internal/fleet"
	"github.com/fairway-edge/fairway/caddymodule/internal/gateway"
	"github.com/fairway-edge/fairway/internal/pki"
)

func init() { caddy.RegisterModule(new(Admin)) }

// adminTimeout bounds every admin route: one that hung would hang reloads.
const adminTimeout = time.Second

// Defaults and bounds of a join token.
const (
	defaultTTL  = time.Hour
	defaultUses = 1
	maxUses     = 1000 // the greatest that a token can say
)

// Admin serves Fairway's part of Caddy's admin API, which the `caddy fairway` commands
// use. Whoever reaches the admin listener may use it.
//
// Method and path | Does
// ----------------|-----
// `GET /fairway/status` | the gateway at a glance
// `GET /fairway/nodes` | the nodes, connected or remembered
// `GET /fairway/runs` | the runs in flight and the last 1,000 that ended
// `POST /fairway/tokens` | `{"node", "ttl", "uses"}` → a join token, shown once; ttl as Caddy writes durations, default `1h`
// `POST /fairway/drain/{node}` | takes a node out, also when it dials again
// `DELETE /fairway/drain/{node}` | takes it back
// `GET /fairway/routes` | what callers may ask for
// `GET /fairway/leases` | the leases whose runs are open
// `GET /fairway/revocations` | what is revoked
// `POST /fairway/revocations` | `{"slot"}`, `{"node"}`, `{"principal"}` or `{"lease"}` → revokes it now, everywhere
// `DELETE /fairway/revocations` | likewise, takes that back
// `GET /fairway/workflows` | the workflows of one's own in a cloud, asked through a node; `profile`, `visibility`, `limit`, `cursor`
// `GET /fairway/workflows/{id}` | one of them
// `DELETE /fairway/workflows/{id}` | deletes it
// `GET /fairway/workflows/{id}/{call}` | its `runs`, `export` or `contract`
//
// It has no configuration. After a failed reload the routes of the failed config stay
// live, so it holds no app and asks the hubs of the process each time.
type Admin struct{}

// CaddyModule returns the Caddy module information.
func (*Admin) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "admin.api.fairway", New: func() caddy.Module { return new(Admin) }}
}

// Routes implements caddy.AdminRouter.
func (*Admin) Routes() []caddy.AdminRoute {
	get := func(f adminAction) caddy.AdminHandlerFunc { return methods{http.MethodGet: f}.serve }
	return []caddy.AdminRoute{
		{Pattern: "/fairway/status", Handler: get(status)},
		{Pattern: "/fairway/nodes", Handler: get(nodes)},
		{Pattern: "/fairway/runs", Handler: get(runs)},
		{Pattern: "/fairway/routes", Handler: get(routes)},
		{Pattern: "/fairway/leases", Handler: get(leases)},
		{Pattern: "/fairway/tokens", Handler: caddy.AdminHandlerFunc(methods{http.MethodPost: tokens}.serve)},
		{Pattern: "/fairway/drain/{node}", Handler: caddy.AdminHandlerFunc(methods{http.MethodPost: drain, http.MethodDelete: drain}.serve)},
		{Pattern: "/fairway/revocations", Handler: caddy.AdminHandlerFunc(methods{
			http.MethodGet: revocations, http.MethodPost: revoke, http.MethodDelete: revoke,
		}.serve)},
		{Pattern: "/fairway/workflows", Handler: get(listWorkflows)},
		{Pattern: "/fairway/workflows/{id}", Handler: caddy.AdminHandlerFunc(methods{http.MethodGet: oneWorkflow, http.MethodDelete: oneWorkflow}.serve)},
		{Pattern: "/fairway/workflows/{id}/{call}", Handler: get(oneWorkflow)},
	}
}

// adminAction is what a route does; its answer goes out as JSON.
type adminAction func(ctx context.Context, h *sharedHub, r *http.Request) (any, error)

// methods are the methods that a route has.
type methods map[string]adminAction

func (m methods) serve(w http.ResponseWriter, r *http.Request) error {
	f, ok := m[r.Method]
	if !ok {
		want := strings.Join(slices.Sorted(maps.Keys(m)), ", ")
		return apiError(http.StatusMethodNotAllowed, fmt.Errorf("method %s is not allowed: want %s", r.Method, want))
	}
	live := liveHubs()
	if len(live) == 0 {
		return apiError(http.StatusServiceUnavailable, errors.New("no fairway gateway is running in this Caddy"))
	}
	ctx, cancel := context.WithTimeout(r.Context(), adminTimeout)
	defer cancel()
	answer, err := f(ctx, live[len(live)-1], r)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	return json.NewEncoder(w).Encode(answer)
}

func apiError(status int, err error) error { return caddy.APIError{HTTPStatus: status, Err: err} }

// StatusView is one row of `caddy fairway status`; its JSON names are a contract.
type StatusView struct {
	Gateway     string         `json:"gateway"`
	TrustDomain string         `json:"trust_domain"`
	Listen      string         `json:"listen"`
	Version     string         `json:"version"`
	Nodes       map[string]int `json:"nodes"` // by state
	Sessions    int            `json:"sessions"`
	Lanes       int            `json:"lanes"`
	InFlight    int            `json:"runs_in_flight"`
	Waiting     int            `json:"waiting"`
	Issuers     []string       `json:"lease_issuers"` // thumbprints, the newest last
	Epoch       uint64         `json:"epoch"`         // this process's incarnation
	Superseded  bool           `json:"superseded"`    // another process has this gateway's name: no node is served here
	Store       StoreView      `json:"store"`
	// Gateways of the fleet, this one included; empty without a shared store.
	Gateways []gateway.PeerView `json:"gateways"`
}

// StoreView is what a status says of the store; its JSON names are a contract.
type StoreView struct {
	Type   string `json:"type"`
	Up     bool   `json:"up"`
	Where  string `json:"where"`  // without credentials
	LagMS  int64  `json:"lag_ms"` // since a shared store answered this gateway's beat; 0 otherwise
	Policy string `json:"on_down,omitempty"`
}

func status(_ context.Context, h *sharedHub, _ *http.Request) (any, error) {
	st := h.Current()
	if st == nil {
		return nil, errStopping
	}
	c := takeCensus([]*sharedHub{h})
	up, shared := h.storeUp()
	at := StoreView{Type: storeMemory, Up: true, Where: h.store.where}
	if shared {
		at.Type, at.Up, at.LagMS, at.Policy = storeRedis, up, h.StoreLag().Milliseconds(), failClosed
		if st.ServeOwned {
			at.Policy = serveOwned
		}
	}
	return []StatusView{{
		Gateway: st.Gateway, TrustDomain: st.TrustDomain, Listen: h.listen, Version: st.Software,
		Nodes: c.States, Sessions: c.Sessions, Lanes: c.Lanes, InFlight: c.InFlight, Waiting: c.Waiting, Issuers: h.LeaseIssuers(),
		Epoch: h.Fleet().Epoch(), Superseded: h.Superseded(), Store: at, Gateways: append([]gateway.PeerView{}, h.Peers()...),
	}}, nil
}

var errStopping = apiError(http.StatusServiceUnavailable, errors.New("the gateway is stopping"))

func nodes(_ context.Context, h *sharedHub, _ *http.Request) (any, error) {
	return append([]fleet.NodeView{}, h.Fleet().Nodes()...), nil
}

func runs(_ context.Context, h *sharedHub, _ *http.Request) (any, error) {
	return append([]gateway.RunView{}, h.Runs()...), nil
}

// tokenRequest asks for a join token.
type tokenRequest struct {
	Node string `json:"node"`
	TTL  string `json:"ttl,omitempty"`
	Uses int    `json:"uses,omitempty"`
}

// TokenView is a join token; its JSON names are a contract.
type TokenView struct {
	Token   string    `json:"token"`
	Node    string    `json:"node"`
	Expires time.Time `json:"expires"`
	Uses    int       `json:"uses"`
	Listen  string    `json:"listen"` // where nodes dial in
}

// maxRequest bounds a request's body.
const maxRequest = 4 << 10

// readBody reads a request's JSON, strictly.
func readBody(r *http.Request, into any) error {
	dec := json.NewDecoder(io.LimitReader(r.Body, maxRequest))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return apiError(http.StatusBadRequest, fmt.Errorf("reading the request: %w", err))
	}
	return nil
}

func tokens(_ context.Context, h *sharedHub, r *http.Request) (any, error) {
	var q tokenRequest
	if err := readBody(r, &q); err != nil {
		return nil, err
	}
	ttl, err := q.normalize()
	if err != nil {
		return nil, apiError(http.StatusBadRequest, err)
	}
	st := h.Current()
	if st == nil {
		return nil, errStopping
	}
	token, expires, err := h.Token(st, q.Node, ttl, q.Uses)
	if err != nil {
		return nil, apiError(http.StatusBadRequest, err)
	}
	st.Log.Info("made a join token", zap.String("node", q.Node), zap.Time("expires", expires), zap.Int("uses", q.Uses))
	return []TokenView{{Token: token, Node: q.Node, Expires: expires, Uses: q.Uses, Listen: h.listen}}, nil
}

// normalize fills in defaults and checks what pki does not say as plainly.
func (q *tokenRequest) normalize() (ttl time.Duration, err error) {
	if err := checkNode(q.Node); err != nil {
		return 0, err
	}
	if strings.HasPrefix(q.Node, gateway.EmbeddedPrefix) {
		return 0, fmt.Errorf("names that begin with %s are the gateway's own", gateway.EmbeddedPrefix)
	}
	if ttl = defaultTTL; q.TTL != "" {
		if ttl, err = caddy.ParseDuration(q.TTL); err != nil {
			return 0, fmt.Errorf("ttl '%s': want a duration such as 30m, 1h or 7d", q.TTL)
		}
	}
	if ttl < pki.MinTTL || ttl > pki.MaxTTL {
		return 0, fmt.Errorf("ttl '%s': want %s to 30d", q.TTL, pki.MinTTL)
	}
	if q.Uses == 0 {
		q.Uses = defaultUses
	}
	return ttl, nil
}

func checkNode(v string) error {
	if !pki.ValidName(v) {
		return fmt.Errorf("node '%s' is not a name: want %s", v, aName)
	}
	return nil
}

// DrainView answers a drain; its JSON names are a contract.
type DrainView struct {
	Node      string `json:"node"`
	Draining  bool   `json:"draining"`
	Connected bool   `json:"connected"`
	Known     bool   `json:"known"` // this gateway knows a node of that name
}

func drain(ctx context.Context, h *sharedHub, r *http.Request) (any, error) {
	node, on := r.PathValue("node"), r.Method == http.MethodPost
	if err := checkNode(node); err != nil {
		return nil, apiError(http.StatusBadRequest, err)
	}
	known, err := answered(func() (bool, error) { return h.Fleet().Drain(ctx, node, on) }, ctx.Done())
	if err != nil {
		return nil, apiError(http.StatusServiceUnavailable, err)
	}
	return []DrainView{{Node: node, Draining: on, Connected: h.Fleet().Has(node), Known: known}}, nil
}

// Interface guards
var _ caddy.AdminRouter = (*Admin)(nil)
