package caddymodule

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/caddymodule/internal/gateway"
	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/nodeclient"
)

const (
	defaultOllama = "http://127.0.0.1:11434"
	noOllama      = "off"
	maxCredits    = 4096
)

// EmbeddedNode is a node inside the gateway's process, for people with one machine.
// It is called `embedded-NAME` after the gateway, dials the gateway's own socket and
// keeps its key in memory. Its options are those of `fairway-node run`.
type EmbeddedNode struct {
	// The Ollama of this machine, the target `ollama`; `off` for none. Without a
	// scheme it is http. Default: `http://127.0.0.1:11434`.
	Ollama string `json:"ollama,omitempty"`
	// Further providers, each `NAME=ADAPTER:URL`. The adapter is `ollama`,
	// `openai` or `goals`.
	Targets []string `json:"targets,omitempty"`
	// How many inference runs at once for one model: `N`, or `TARGET=N` for one
	// target. Default: `OLLAMA_NUM_PARALLEL`, or 1; 32 with the adapter `openai`, 16
	// with `goals`.
	Credits []string `json:"credits,omitempty"`
	// Management endpoints that this machine's owner permits, each `METHOD:PATH`.
	Allow []string `json:"allow,omitempty"`
	// What the node says of itself.
	Labels map[string]string `json:"labels,omitempty"`
	// The demo provider, which answers without a model: `on`, `off`, or `auto` to
	// offer it while this machine's Ollama has never answered. Default: `off`.
	Demo string `json:"demo,omitempty"`
}

// provisionEmbedded checks the node's options and puts it into the settings. The
// client made here is thrown away: making one is the check.
func (a *App) provisionEmbedded() error {
	if a.values.identity.files != nil {
		return errors.New("it gets its certificate from the CA of 'identity internal'; with 'identity files' run fairway-node beside Caddy")
	}
	cfg, providers, err := a.EmbeddedNode.resolve(newResolver())
	if err != nil {
		return err
	}
	if len(cfg.Targets) == 0 && cfg.Demo == nodeclient.DemoOff {
		return errors.New("no target: ollama is off, and there is no target and no demo")
	}
	cfg.Software, cfg.Grace, cfg.Gateways = software(), a.values.grace, []string{"127.0.0.1:1"}
	cfg.Identity = &embeddedIdentity{}
	if _, err := nodeclient.New(cfg); err != nil {
		return err
	}
	a.settings.Embedded = &gateway.Embedded{Key: digest(cfg, providers, a.values), Run: func(ctx context.Context, addr *net.UDPAddr) error {
		return runEmbedded(ctx, a.hub.Hub, cfg, addr)
	}}
	return nil
}

// runEmbedded serves until ctx ends. The node outlives the config that started it,
// as long as the next one describes it alike, so it takes CA and logger from the
// hub's settings of the moment.
func runEmbedded(ctx context.Context, hub *gateway.Hub, cfg nodeclient.Config, addr *net.UDPAddr) error {
	cfg.Gateways = []string{addr.String()}
	cfg.Identity = &embeddedIdentity{hub: hub}
	cfg.Log = zap.New(&currentLog{hub: hub}).Named("embedded_node")
	node, err := nodeclient.New(cfg)
	if err != nil {
		return err
	}
	return node.Run(ctx)
}

// digest tells one node's configuration from another's, placeholders replaced.
func digest(cfg nodeclient.Config, providers []string, v values) string {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%q %q %d %q %q %q %q %q", v.name, v.trustDomain, v.grace, cfg.Demo, cfg.Allow, cfg.Labels, cfg.Software, providers) // fmt sorts maps
	for _, t := range cfg.Targets {
		_, _ = fmt.Fprintf(h, "%q %d %d", t.Adapter.Target(), t.PerModel, t.PerTarget)
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// resolve makes the node's configuration, without what it gets when it runs, and
// spells the providers out.
func (e *EmbeddedNode) resolve(repl resolver) (cfg nodeclient.Config, providers []string, err error) {
	demo, err := repl.value("demo", e.Demo, string(nodeclient.DemoOff), checkDemo)
	if err != nil {
		return cfg, nil, err
	}
	cfg.Demo, cfg.Labels = nodeclient.DemoMode(demo), map[string]string{}
	if cfg.Allow, err = repl.list("allow", e.Allow, nil); err != nil {
		return cfg, nil, err
	}
	for k, v := range e.Labels {
		if err := checkLabelName(k); err != nil {
			return cfg, nil, fmt.Errorf("label: %w", err)
		}
		if cfg.Labels[k], err = repl.value("label "+k, v, "", nil); err != nil {
			return cfg, nil, err
		}
	}
	credits, err := repl.list("credits", e.Credits, checkCredits)
	if err != nil {
		return cfg, nil, err
	}
	origin, err := repl.value("ollama", e.Ollama, defaultOllama, nil)
	if err != nil {
		return cfg, nil, err
	}
	targets, err := repl.list("target", e.Targets, checkTarget)
	if err != nil {
		return cfg, nil, err
	}
	cfg.Targets, err = nodeclient.Targets(origin, targets, credits, os.Getenv)
	return cfg, append([]string{origin}, targets...), err
}

func checkDemo(v string) error { return oneOf(v, "auto", "on", "off") }

func checkOllama(v string) error {
	_, err := nodeclient.Targets(v, nil, nil, noEnvironment)
	return err
}

func checkCredits(v string) error {
	name, n, named := strings.Cut(v, "=")
	if !named {
		n = name
	}
	if i, err := strconv.Atoi(n); err != nil || i < 1 || i > maxCredits || named && name == "" {
		return fmt.Errorf("'%s': want N or TARGET=N, N from 1 to %d", v, maxCredits)
	}
	return nil
}

func checkTarget(v string) error {
	name, rest, ok := strings.Cut(v, "=")
	adapter, _, ok2 := strings.Cut(rest, ":")
	switch {
	case !ok || !ok2 || !pki.ValidName(name):
		return fmt.Errorf("'%s': want NAME=ADAPTER:URL", v)
	case checkAdapter(adapter) != nil:
		return fmt.Errorf("adapter: %w", checkAdapter(adapter))
	}
	_, err := nodeclient.Targets(noOllama, []string{v}, nil, noEnvironment)
	return err
}

// noEnvironment keeps adapting a Caddyfile pure.
func noEnvironment(string) string { return "" }

// embeddedIdentity is the node's leaf, straight from the CA. The key never leaves memory.
type embeddedIdentity struct {
	hub *gateway.Hub

	mu  sync.Mutex
	now *pki.Identity // guarded by mu
}

// Current implements nodeclient.Identity.
func (i *embeddedIdentity) Current(context.Context) (*pki.Identity, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.now != nil {
		return i.now, nil
	}
	st := i.hub.Current()
	if st == nil || st.Authority == nil {
		return nil, errors.New("the gateway issues no identities now")
	}
	id := pki.ID{TrustDomain: st.TrustDomain, Role: pki.RoleNode, Name: gateway.EmbeddedPrefix + st.Gateway}
	var err error
	i.now, err = st.Authority.NewIdentity(id)
	return i.now, err
}

// Renewed implements nodeclient.Identity.
func (i *embeddedIdentity) Renewed(next *pki.Identity) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.now = next
	return nil
}

var _ nodeclient.Identity = (*embeddedIdentity)(nil)
