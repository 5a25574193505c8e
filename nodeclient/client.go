// Package nodeclient is the node: it dials gateways, offers the inference servers of its machine, and executes the runs that the gateways
// send. The command in cmd/fairway-node wraps it; a gateway may embed it for people with one machine.
//
// The life of one session, and the file that holds each step:
//
//	which gateways there are, a session with each      entry.go, seats.go
//	resolve and dial, one address after the other      dial.go, backoff.go
//	register, remember the generation                  session.go, state.go
//	probe the providers, Ready, then Status on change  ready.go, watch.go, delta.go
//	per run: allow, admit, connect, accept, stream     allow.go, admit.go, serve.go, answer.go
//	per typed run: ask and judge, too                  edgerun.go, edgeask.go
//	tell those that were refused of a free credit      owed.go
//	drain, close                                       drain.go
//	join with a token, renew the certificate           enroll.go, renew.go
//	tell `fairway-node status`                         status.go
//
// What holds always:
//
//   - A node never queues. A run finds a credit at once or is refused, and the gateway takes it elsewhere.
//   - It dials only the targets of its own configuration, and asks of them only what its own allow-list names: the gateway is not trusted
//     with the node's network.
//   - It refuses generations that are not above its watermark, which is kept for each gateway.
//   - Only what a person has to mend ends it; whatever the network does, it dials again.
//
// The package imports no Caddy, no Redis and no os/exec: the binary is small and runs no program.
package nodeclient

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/nodeclient/demo"
)

// Identity is where a node's certificate comes from. Methods may be called from several goroutines.
type Identity interface {
	// Current returns the node's identity. It may take long (joining a fleet); an error is retried with back-off, except a
	// *FinalError.
	Current(ctx context.Context) (*pki.Identity, error)
	// Renewed keeps a newer leaf; Current returns it from then on.
	Renewed(*pki.Identity) error
}

// DemoMode says when the demo provider is offered.
type DemoMode string

// The demo modes. Auto offers it while no provider of the node has answered since start, and takes it back at the first answer.
const (
	DemoOff  DemoMode = "off"
	DemoAuto DemoMode = "auto"
	DemoOn   DemoMode = "on"
)

// Target is one provider and what it is trusted with at once.
type Target struct {
	Adapter adapter.Adapter
	// PerModel is the number of inference runs at once for one model; 0 is 1.
	PerModel int
	// PerTarget is the number for all models together; 0 is three times PerModel, Ollama's default of loaded models.
	PerTarget int
}

// Config is what a node is made of.
type Config struct {
	// Identity is required.
	Identity Identity
	// Gateways are addresses, host:port. The node keeps a session with each gateway behind each of them, at most 32 in all; a gateway that is reached by
	// several has one.
	Gateways []string
	// StateDir keeps watermarks, the lock and the status socket. Empty: none of them, as for an embedded node.
	StateDir string
	// Labels are told to the gateway: at most 32, each at most 256 bytes with its name.
	Labels map[string]string
	// Software is the program's version, for people.
	Software string
	// Targets are the providers; their names differ.
	Targets []Target
	// Demo is off when empty.
	Demo DemoMode
	// LeaseIssuers pins the gateways' lease issuers by the RFC 7638 thumbprint of their keys: leases of others are refused, and so is a gateway that
	// announces others. Empty: the keys that a gateway announces on its session are believed.
	LeaseIssuers []string
	// Allow permits management endpoints, as METHOD:PATH.
	Allow []string
	// Gates are this node's own for typed runs, besides the gateway's. Without Tools it is the gateway that says which tools there are.
	Gates edge.Gates
	// Grace is how long open runs may go on once the node drains; 0 is 30 s, below 0 none.
	Grace time.Duration
	// Log may be nil.
	Log *zap.Logger
}

const (
	defaultGrace = 30 * time.Second
	maxTargets   = 64 // the protocol's bound, as are those of labels
	maxLabels    = 32
	maxLabel     = 256
	maxSoftware  = 64
)

// Client is a node. Run it once.
type Client struct {
	cfg      Config
	log      *zap.Logger
	instance []byte // of this process; never stored
	lookup   lookup
	// resolveEvery is how often names are resolved while nothing is dialled.
	resolveEvery time.Duration
	allow        allowList
	targets      []*target
	entries      []*entry
	seats        *seats
	marks        watermarks
	places       atomic.Int32 // uncounted runs that are open
	runs         atomic.Int32 // all runs that are open
	linked       atomic.Int32 // links that have not ended
	tooMany      atomic.Bool  // the warning about too many gateways was given
	name         atomic.Pointer[string]

	identity atomic.Pointer[pki.Identity] // the newest; nil until a link has got one
	renewing sync.Mutex                   // held while an expired leaf is renewed

	cut    context.Context // ended by Close
	cutNow context.CancelFunc
	clock  sync.Once // the warning about clocks
}

// New checks cfg. It opens nothing.
func New(cfg Config) (*Client, error) {
	if cfg.Identity == nil {
		return nil, errors.New("no identity")
	}
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
	}
	if cfg.Grace == 0 {
		cfg.Grace = defaultGrace
	}
	cfg.Software = cfg.Software[:min(len(cfg.Software), maxSoftware)]
	c := &Client{cfg: cfg, log: cfg.Log, instance: make([]byte, 16), lookup: net.DefaultResolver.LookupNetIP, resolveEvery: resolveEvery, seats: newSeats()}
	if err := c.fill(); err != nil {
		return nil, err
	}
	_, _ = rand.Read(c.instance) // never fails (crypto/rand)
	c.cut, c.cutNow = context.WithCancel(context.Background())
	return c, nil
}

// Check says what is wrong with cfg, Identity apart, as New does: for who has no identity yet, or only validates.
func (cfg Config) Check() error { return (&Client{cfg: cfg}).fill() }

// fill makes what a client is made of from its configuration.
func (c *Client) fill() (err error) {
	if err := c.cfg.checkNames(); err != nil {
		return err
	}
	if c.allow, err = parseAllow(c.cfg.Allow); err != nil {
		return err
	}
	for _, t := range c.cfg.Targets {
		if err := c.addTarget(t, false); err != nil {
			return err
		}
	}
	if c.cfg.Demo == DemoOn || c.cfg.Demo == DemoAuto {
		if err := c.addTarget(Target{Adapter: demo.New(), PerModel: demoCredits, PerTarget: demoCredits}, c.cfg.Demo == DemoAuto); err != nil {
			return err
		}
	}
	if len(c.targets) > maxTargets {
		return fmt.Errorf("%d targets; at most %d", len(c.targets), maxTargets)
	}
	if c.log == nil {
		c.log = zap.NewNop()
	}
	for _, addr := range c.cfg.Gateways {
		c.entries = append(c.entries, newEntry(c, addr))
	}
	return nil
}

// demoCredits bounds the demo's answers at once: they cost a timer each.
const demoCredits = 64

// checkNames checks what is neither target nor permission.
func (cfg Config) checkNames() error {
	switch {
	case len(cfg.Gateways) == 0:
		return errors.New("no gateway to dial")
	case len(cfg.Labels) > maxLabels:
		return fmt.Errorf("%d labels; at most %d", len(cfg.Labels), maxLabels)
	}
	switch cfg.Demo {
	case "", DemoOff, DemoAuto, DemoOn:
	default:
		return fmt.Errorf("demo %q: want auto, on or off", cfg.Demo)
	}
	for k, v := range cfg.Labels {
		if k == "" || len(k)+len(v) > maxLabel {
			return fmt.Errorf("label %q: want a name, and at most %d bytes with its value", k, maxLabel)
		}
	}
	seen := make(map[string]bool)
	for _, addr := range cfg.Gateways {
		if err := CheckGateway(addr); err != nil {
			return err
		}
		if seen[addr] {
			return fmt.Errorf("gateway %s is given twice", addr)
		}
		seen[addr] = true
	}
	return nil
}

// CheckGateway tells whether addr is host:port with a number for a port.
func CheckGateway(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" {
		return fmt.Errorf("gateway %q: want host:port", addr)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("gateway %q: port %q is not a number from 1 to 65535", addr, port)
	}
	return nil
}

// Run keeps sessions with all gateways until ctx ends; then it drains: no new runs, open ones finish within the grace period, and it
// returns nil. It returns an error when every gateway has refused the node for good (*FinalError), or when the state directory cannot be used
// (*StateError, also within a *FinalError).
func (c *Client) Run(ctx context.Context) error {
	defer c.cutNow()
	if c.cfg.StateDir != "" {
		st, err := openState(c.cfg.StateDir)
		if err != nil {
			return err
		}
		defer st.close()
		if err := c.marks.open(st); err != nil {
			return err
		}
		stop, err := c.serveStatus(st)
		if err != nil {
			return err
		}
		defer stop()
	}
	// Providers and certificates are looked after until the last run has ended, so not by ctx.
	var helpers sync.WaitGroup
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer helpers.Wait()
	defer end()
	for _, t := range c.targets {
		helpers.Go(func() { t.watch(life) })
	}
	helpers.Go(func() { c.renewal(life) })
	return c.serveEntries(ctx)
}

// serveEntries runs every entry to its end. A gateway that refuses for good ends its own; only when all have, the node ends.
func (c *Client) serveEntries(ctx context.Context) error {
	errs := make([]error, len(c.entries))
	var wg sync.WaitGroup
	for i, e := range c.entries {
		wg.Go(func() { errs[i] = e.run(ctx) })
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil //nolint:nilerr // asked to end, and did
	}
	return errors.Join(errs...)
}

// Close cuts everything at once: open runs are canceled, Run returns. It does not wait.
func (c *Client) Close() { c.cutNow() }

// notify wakes what tells the gateways of changes.
func (c *Client) notify() {
	for _, l := range c.links() {
		poke(l.wake)
	}
}

// links returns the links of all entries.
func (c *Client) links() (out []*link) {
	for _, e := range c.entries {
		out = append(out, e.all()...)
	}
	return out
}
