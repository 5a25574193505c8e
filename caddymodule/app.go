package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/caddymodule/internal/gateway"
)

func init() { caddy.RegisterModule(new(App)) }

// Defaults of the App.
const (
	defaultListen      = "127.0.0.1:4433"
	defaultPort        = 4433
	defaultTrustDomain = "fairway.internal"
	defaultGrace       = 30 * time.Second
	minGrace           = time.Second
	maxGrace           = 24 * time.Hour
)

// App is a Fairway gateway: the UDP socket on which nodes dial in, and everything
// that handlers in sites share. It needs no configuration: a `fairway` directive
// without a global block gets an App with every default.
//
// String options take placeholders, `{env.NAME}` and `{file./path}` among them.
// They are replaced when the config is loaded and never in the config that Caddy
// keeps, so keys given this way are not at the admin API's `/config/` and not in
// the autosaved config. One that is unset or empty is an error.
//
// The listen address is what a gateway is known by while Caddy runs: a reload that
// keeps it keeps every node's session and every running stream. A reload that
// changes it opens another socket; the nodes of the old one are told to go when
// their streams have ended, and dial again.
type App struct {
	// The UDP address on which nodes dial in. A host is optional, so is the port.
	// Default: `127.0.0.1:4433`.
	Listen string `json:"listen,omitempty"`

	// The gateway's name: lower-case letters, digits and `. _ -`, at most 54. It is
	// part of its identity and cannot change while the listen address stays.
	// Default: the host's name in that spelling, or what the certificate of
	// `identity files` says.
	Name string `json:"name,omitempty"`

	// The SPIFFE trust domain of gateway and nodes. Default: `fairway.internal`, or
	// what the certificate of `identity files` says.
	TrustDomain string `json:"trust_domain,omitempty"`

	// Where the gateway's identity comes from. Default: a CA of Fairway's own.
	Identity *Identity `json:"identity,omitempty"`

	// What this gateway remembers about nodes, and where. Default: memory.
	Store *Store `json:"store,omitempty"`

	// Where the other gateways of a fleet reach this one's listen address, as
	// `HOST:PORT`. Required with the store `redis`.
	Advertise string `json:"advertise,omitempty"`

	// How long running streams may go on when the gateway stops, 1s to 24h.
	// Default: `30s`.
	Grace caddy.Duration `json:"grace,omitempty"`

	// The API keys that admit callers.
	Keys []Key `json:"keys,omitempty"`

	// The credentials that providers ask for.
	Slots []Slot `json:"slots,omitempty"`

	// How providers are used. Default: every target of the adapter `ollama`, without a
	// credential.
	Profiles []Profile `json:"profiles,omitempty"`

	// Where the life of each lease is written down: `log` to Caddy's log, as the logger
	// `fairway.audit`; the absolute path of a file, a line of JSON for each step; `off`
	// nowhere. Default: `log`.
	Audit string `json:"audit,omitempty"`

	// What typed runs have to pass. Default: see there.
	Edge *Edge `json:"edge,omitempty"`

	// A node inside this process, for people with one machine. Default: none.
	EmbeddedNode *EmbeddedNode `json:"embedded_node,omitempty"`

	ctx      caddy.Context
	log      *zap.Logger
	values   values
	hub      *sharedHub
	settings *gateway.Settings
	audit    *auditFile // nil without a file
	held     bool       // a reference to the hub is ours
	started  bool       // the hub has our settings
	kept     bool       // a reference to the audit file is ours
}

// CaddyModule returns the Caddy module information.
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "fairway", New: func() caddy.Module { return new(App) }}
}

// Provision checks every option and takes the hub from the pool. It opens nothing
// and writes nothing.
func (a *App) Provision(ctx caddy.Context) error {
	a.ctx, a.log = ctx, ctx.Logger()
	if err := a.resolve(); err != nil {
		return err
	}
	a.settings = &gateway.Settings{
		Gateway:     a.values.name,
		TrustDomain: a.values.trustDomain,
		Software:    software(),
		Grace:       a.values.grace,
		Keys:        a.values.keys,
		Slots:       a.values.slots,
		Profiles:    a.values.profiles,
		Advertise:   a.values.store.advertise,
		ServeOwned:  a.values.store.onDown == serveOwned,
		Gates:       a.values.gates,
		Log:         a.log,
	}
	if err := a.provisionAudit(); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	warnUnused(a.values.slots, a.values.profiles, a.log)
	if a.EmbeddedNode != nil {
		if err := a.provisionEmbedded(); err != nil {
			return fmt.Errorf("embedded_node: %w", err)
		}
	}
	if err := registerMetrics(ctx.GetMetricsRegistry()); err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	hub, err := takeHub(ctx, a.values)
	if err != nil {
		return err
	}
	a.hub, a.held = hub, true
	return a.subscribe()
}

// subscribe listens for the event that Caddy emits before it stops anything: http's
// Stop waits for its requests, and nodes and waiting callers have to know before.
// The same event comes with every reload, which ends nothing.
func (a *App) subscribe() error {
	events, err := a.ctx.App("events")
	if err != nil {
		return fmt.Errorf("getting the events app: %w", err)
	}
	return events.(*caddyevents.App).On("stopping", &announcer{a.hub}) //nolint:errcheck // that is its type
}

// announcer tells the hub that the process goes.
type announcer struct{ hub *sharedHub }

// Handle implements caddyevents.Handler.
func (n *announcer) Handle(context.Context, caddy.Event) error {
	if caddy.Exiting() {
		n.hub.Announce()
	}
	return nil
}

// Start makes the CA and the keys if they do not exist yet, opens the audit file, and
// hands this config to the hub.
func (a *App) Start() error {
	if err := a.checkPort(); err != nil {
		return err
	}
	storage := a.ctx.Storage()
	if err := a.startIdentity(storage); err != nil {
		return err
	}
	if err := a.hub.prepare(a.ctx, a, storage); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	if a.audit != nil {
		if err := a.audit.start(); err != nil {
			return fmt.Errorf("audit: %w", err)
		}
	}
	if err := a.hub.Start(a.ctx, a.settings); err != nil {
		return fmt.Errorf("listening for nodes on %s: %w", a.values.listen, err)
	}
	a.started = true
	return nil
}

// Stop releases nothing: when the process ends, requests may still run. See Cleanup.
func (a *App) Stop() error { return nil }

// Cleanup takes this config off the hub and gives the hub back. It may follow a
// failed Provision.
func (a *App) Cleanup() error {
	if a.started {
		a.started = false
		a.hub.Stop(a.settings)
	}
	var err error
	if a.kept {
		a.kept = false
		_, err = auditFiles.Delete(a.audit.path)
	}
	if !a.held {
		return err
	}
	a.held = false
	a.hub.store.storage.drop(a)
	_, hubErr := hubs.Delete(a.hub.key)
	return errors.Join(err, hubErr)
}

// software is the program's version as nodes and people see it.
var software = sync.OnceValue(func() string {
	const path = "github.com/fairway-edge/fairway"
	version := "(devel)"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range append(info.Deps, &info.Main) {
			if m.Path == path && m.Version != "" {
				version = m.Version
			}
		}
	}
	return "fairway/" + version
})

// Interface guards
var (
	_ caddy.App          = (*App)(nil)
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)
