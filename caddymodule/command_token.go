package caddymodule

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/fairway-edge/fairway/caddymodule/internal/gateway"
	"github.com/fairway-edge/fairway/internal/pki"
)

// runToken prints the token alone on standard output, and what to do with it on
// standard error, so that scripts and people are both served.
func runToken(cmd *cobra.Command, _ []string) (int, error) {
	f := caddycmd.Flags{FlagSet: cmd.Flags()}
	q := tokenRequest{Node: f.String("node"), TTL: f.String("ttl"), Uses: f.Int("uses")}
	if q.Node == "" {
		return exitUsage, errors.New("--node NAME is missing")
	}
	if q.Uses < 1 || q.Uses > maxUses {
		return exitUsage, fmt.Errorf("--uses %d: want 1 to %d", q.Uses, maxUses)
	}
	if _, err := q.normalize(); err != nil {
		return exitUsage, err
	}
	show := func(out io.Writer, rows []TokenView) {
		for _, t := range rows {
			_, _ = fmt.Fprintln(out, t.Token)
			_, _ = fmt.Fprint(cmd.ErrOrStderr(), t.hint())
		}
	}
	if !f.Bool("offline") {
		return ask(cmd, http.MethodPost, "/fairway/tokens", q, show)
	}
	if f.String("config") == "" {
		return exitUsage, errors.New("--offline needs --config FILE, which says where the keys are stored")
	}
	view, err := offlineToken(f.String("config"), f.String("adapter"), q)
	if err != nil {
		return exitFailed, err
	}
	raw, err := json.Marshal([]TokenView{view})
	if err != nil {
		return exitFailed, err
	}
	return show1(cmd, append(raw, '\n'), show)
}

// hint tells a person what to do with the token.
func (t *TokenView) hint() string {
	host, port, _ := net.SplitHostPort(t.Listen)
	var note string
	switch {
	case isLoopback(host):
		note = "\nThe gateway listens for nodes on this machine only. For others give it another address, such as `listen :4433`.\n"
		host = net.JoinHostPort(host, port)
	case bindHost(host) == "":
		host = "HOST:" + port
	default:
		host = net.JoinHostPort(host, port)
	}
	return fmt.Sprintf("Good until %s. On the node:\n\n\tfairway-node run --gateway %s --token TOKEN\n%s\n", t.Expires.Local().Format(time.RFC3339), host, note)
}

// offlineToken signs with the key that a gateway of this configuration has stored.
func offlineToken(file, adapter string, q tokenRequest) (view TokenView, err error) {
	raw, _, _, err := caddycmd.LoadConfig(file, adapter)
	if err != nil {
		return view, err
	}
	var cfg caddy.Config
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return view, fmt.Errorf("reading %s: %w", file, err)
	}
	var app App
	if r := cfg.AppsRaw["fairway"]; r != nil {
		if err := caddy.StrictUnmarshalJSON(r, &app); err != nil {
			return view, fmt.Errorf("reading %s: %w", file, err)
		}
	}
	// The storage and nothing else of the configuration.
	ctx, err := caddy.ProvisionContext(&caddy.Config{StorageRaw: cfg.StorageRaw})
	if err != nil {
		return view, err
	}
	app.Keys, app.Slots, app.Profiles = nil, nil, nil // signing a token needs none, and the secrets may be readable to the gateway alone
	app.log = ctx.Logger()
	if err := app.resolve(); err != nil {
		return view, err
	}
	return app.signOffline(ctx, q)
}

func (a *App) signOffline(ctx caddy.Context, q tokenRequest) (view TokenView, err error) {
	ttl, err := q.normalize()
	switch {
	case err != nil:
		return view, err
	case a.values.identity.files != nil:
		return view, errors.New("this gateway does not issue identities (identity files): give the node a certificate of your PKI")
	}
	seed, err := loadSecret(ctx, ctx.Storage(), secretJoin)
	if errors.Is(err, fs.ErrNotExist) {
		return view, fmt.Errorf("no gateway has run with this storage (%s) yet, so there is no key to sign with; start it once", storageName(ctx.Storage()))
	}
	if err != nil {
		return view, err
	}
	root, err := storedCertificate(context.Background(), ctx.Storage(), "root.crt")
	if err != nil {
		return view, err
	}
	issuer := pki.ID{TrustDomain: a.values.trustDomain, Role: pki.RoleGateway, Name: a.values.name}
	token, t, err := pki.MintJoinToken(joinKey(seed), issuer, q.Node, ttl, q.Uses, pki.RootPin(root), time.Now())
	return TokenView{Token: token, Node: q.Node, Expires: t.Expires, Uses: q.Uses, Listen: a.values.listen.JoinHostPort(0)}, err
}

// keyView is a new API key; its JSON names are a contract.
type keyView struct {
	Name string `json:"name"`
	Key  string `json:"key"`
	Line string `json:"line"` // for the Caddyfile
}

// runKeyNew makes a key. It needs no running Caddy: the configuration is where keys are.
func runKeyNew(cmd *cobra.Command, args []string) (int, error) {
	if err := checkPrincipal(args[0]); err != nil {
		return exitUsage, err
	}
	random := make([]byte, 32)
	if _, err := rand.Read(random); err != nil {
		return exitFailed, err
	}
	key := "fw_" + base64.RawURLEncoding.EncodeToString(random)
	hash := gateway.HashKey(key)
	view := keyView{Name: args[0], Key: key, Line: "key " + args[0] + " " + hashPrefix + hex.EncodeToString(hash[:])}
	raw, err := json.Marshal([]keyView{view})
	if err != nil {
		return exitFailed, err
	}
	return show1(cmd, append(raw, '\n'), func(out io.Writer, rows []keyView) {
		for _, k := range rows {
			_, _ = fmt.Fprintf(out, "%s\n\nThe key is shown once. The line for the global fairway block of the Caddyfile:\n\n\t%s\n", k.Key, k.Line)
		}
	})
}
