package caddymodule

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/fairway-edge/fairway/internal/store"
)

// Store is what a gateway remembers about nodes: who holds which session, who is
// drained or revoked, which join tokens are spent.
type Store struct {
	// `memory`: for one gateway. What a restart must not forget is written to Caddy's
	// storage. `redis`: what several gateways share, which makes them one fleet; they
	// also share Caddy's storage, where their CA is. Default: `memory`.
	Type string `json:"type,omitempty"`

	// With `redis`: where it is, `redis://[USER:PASSWORD@]HOST[:PORT][/DB]`, or
	// `redis-sentinel://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]]…/MASTER[/DB]` with
	// the Sentinels' addresses; `rediss` for TLS. One with a password has to come from
	// a file or the environment, `{file./path}` or `{env.NAME}`. Version 7 or later.
	URL string `json:"url,omitempty"`

	// With `redis`: what the keys of this fleet begin with. Default: `fairway`.
	Prefix string `json:"prefix,omitempty"`

	// With `redis`: what happens while it cannot be reached. Runs that need a
	// credential are refused in any case, and what runs goes on. `fail_closed`: after
	// five seconds other runs are refused, too. `serve_owned`: they go on to the nodes
	// that are connected here. Default: `fail_closed`.
	OnDown string `json:"on_down,omitempty"`

	// With `redis` and TLS: a PEM file with the CAs to trust instead of the system's.
	CA string `json:"ca,omitempty"`

	// With Sentinels that ask for them: their user and password, the latter as
	// `{file./path}` or `{env.NAME}`.
	SentinelUser     string `json:"sentinel_user,omitempty"`
	SentinelPassword string `json:"sentinel_password,omitempty"`
}

// What a Store may be, and do.
const (
	storeMemory = "memory"
	storeRedis  = "redis"
	failClosed  = "fail_closed"
	serveOwned  = "serve_owned"
)

// UnmarshalCaddyfile reads the argument and block of store.
func (s *Store) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	if !d.NextArg() {
		return d.Err("'store' takes one value, not 0")
	}
	s.Type = d.Val()
	if err := checked(d, "store", s.Type, checkStore); err != nil {
		return err
	}
	if d.NextArg() {
		return d.Errf("'store' takes one value, not more")
	}
	if s.Type == storeMemory {
		return nil // a block is not for it, and an error of the caller's
	}
	if err := (options{
		"url":               {hush: true, parse: secretText(&s.URL, checkURL)},
		"prefix":            text(&s.Prefix, store.CheckPrefix),
		"on_down":           text(&s.OnDown, checkOnDown),
		"ca":                text(&s.CA, nil),
		"sentinel_user":     text(&s.SentinelUser, nil),
		"sentinel_password": {hush: true, parse: secretText(&s.SentinelPassword, checkOutside)},
	}.parse(d, "store redis", d.Nesting())); err != nil {
		return err
	}
	if s.URL == "" {
		return d.Err("store redis: url is missing: want url redis://HOST[:PORT][/DB]")
	}
	return nil
}

// secretText is text for a value that no error may repeat.
func secretText(v *string, check func(string) error) func(d *caddyfile.Dispenser) error {
	return func(d *caddyfile.Dispenser) error {
		word := d.Val()
		if err := text(v, nil).parse(d); err != nil {
			return err
		}
		if err := check(*v); err != nil {
			return d.WrapErr(fmt.Errorf("%s: %w", word, err))
		}
		return nil
	}
}

// checkURL refuses a password that would stand in the configuration that Caddy keeps and shows.
func checkURL(v string) error {
	_, rest, _ := strings.Cut(v, "://")
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		if _, password, _ := strings.Cut(rest[:i], ":"); password != "" && checkOutside(password) != nil {
			return errors.New("this one has a password in it: put the URL into a file or the environment, and write {file./path} or {env.NAME}")
		}
	}
	if hasPlaceholder(v) {
		return nil
	}
	return store.CheckURL(v)
}

// checkOutside takes a secret from outside the configuration only.
func checkOutside(v string) error {
	_, err := parseSource(v)
	return err
}

func checkStore(v string) error { return oneOf(v, storeMemory, storeRedis) }

func checkOnDown(v string) error { return oneOf(v, failClosed, serveOwned) }

// checkAdvertise takes an address that others can dial.
func checkAdvertise(v string) error {
	host, port, err := net.SplitHostPort(v)
	n, portErr := strconv.ParseUint(port, 10, 16)
	if err != nil || portErr != nil || n == 0 || host == "" || len(host) > 255 || strings.ContainsAny(host, " /@") {
		return fmt.Errorf("'%s' is not an address that others can dial: want HOST:PORT", v)
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("'%s' is not an address that others can dial: want the host's own", v)
	}
	return nil
}

// storeValues is a resolved Store.
type storeValues struct {
	redis     *store.RedisOptions // nil: memory
	advertise string
	onDown    string
}

// where tells one store from another, as far as a gateway must not move between them while it runs.
func (v storeValues) where() string {
	if v.redis == nil {
		return storeMemory
	}
	return v.redis.String() + " prefix " + v.redis.Prefix
}

// resolveStore reads store and advertise.
func (a *App) resolveStore(repl resolver) (v storeValues, err error) {
	s := a.Store
	if s == nil {
		s = new(Store)
	}
	kind, err := repl.value("store", s.Type, storeMemory, checkStore)
	if err != nil {
		return v, err
	}
	if kind == storeMemory {
		switch {
		case *s != Store{Type: s.Type}:
			return v, errors.New("store memory: url, prefix, on_down, ca and those for Sentinels belong to store redis")
		case a.Advertise != "":
			return v, errors.New("advertise: it belongs to store redis, which makes several gateways one fleet")
		}
		return v, nil
	}
	if a.Advertise == "" {
		return v, errors.New("advertise is missing: with store redis the other gateways have to reach this one; want advertise HOST:PORT")
	}
	if v.advertise, err = repl.value("advertise", a.Advertise, "", checkAdvertise); err != nil {
		return v, err
	}
	if v.onDown, err = repl.value("store redis: on_down", s.OnDown, failClosed, checkOnDown); err != nil {
		return v, err
	}
	o := &store.RedisOptions{}
	if o.Prefix, err = repl.value("store redis: prefix", s.Prefix, "fairway", store.CheckPrefix); err != nil {
		return v, err
	}
	if err := checkURL(s.URL); err != nil {
		return v, fmt.Errorf("store redis: url: %w", err)
	}
	if o.URL, err = repl.value("store redis: url", s.URL, "", func(v string) error { return store.CheckURL(strings.TrimSpace(v)) }); err != nil {
		return v, err
	}
	o.URL = strings.TrimSpace(o.URL)
	if s.SentinelUser != "" {
		if o.SentinelUsername, err = repl.value("store redis: sentinel_user", s.SentinelUser, "", nil); err != nil {
			return v, err
		}
	}
	if s.SentinelPassword != "" {
		if err := checkOutside(s.SentinelPassword); err != nil {
			return v, fmt.Errorf("store redis: sentinel_password: %w", err)
		}
		if o.SentinelPassword, err = repl.value("store redis: sentinel_password", s.SentinelPassword, "", nil); err != nil {
			return v, err
		}
		o.SentinelPassword = strings.TrimRight(o.SentinelPassword, "\r\n")
	}
	if s.CA != "" {
		if o.TLS, err = trust(repl, s.CA, o.URL); err != nil {
			return v, fmt.Errorf("store redis: ca: %w", err)
		}
	}
	v.redis = o
	return v, nil
}

// maxCAs bounds a file of CAs; a system's own bundle has a fifth of it.
const maxCAs = 1 << 20

// trust reads the CAs that a TLS connection goes by.
func trust(repl resolver, option, url string) (*tls.Config, error) {
	if !strings.HasPrefix(url, "rediss") {
		return nil, errors.New("it is for TLS, and the url does not say rediss")
	}
	file, err := repl.value("file", option, "", nil)
	if err != nil {
		return nil, err
	}
	pem, err := readRegular(file, maxCAs+1)
	if err != nil {
		return nil, err
	}
	if len(pem) > maxCAs {
		return nil, fmt.Errorf("%s is longer than %d bytes", file, maxCAs)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate in PEM", file)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}, nil
}

// Interface guard
var _ caddyfile.Unmarshaler = (*Store)(nil)
