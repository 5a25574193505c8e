package caddymodule

import (
	"fmt"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// UnmarshalCaddyfile sets up the App from the global option. Syntax:
//
//	fairway {
//		listen       [udp/][HOST]:PORT
//		name         NAME
//		trust_domain DOMAIN
//		identity     internal
//		identity     files {
//			cert FILE
//			key  FILE
//			ca   FILE
//		}
//		store memory
//		grace DURATION
//		key   PRINCIPAL {file./PATH}|{env.NAME}|sha256:HEX
//		embedded_node {
//			ollama  URL|off
//			target  NAME=ADAPTER:URL
//			credits N|TARGET=N
//			allow   METHOD:PATH
//			label   NAME=VALUE
//			demo    auto|on|off
//		}
//	}
//
// Everything has a default. `key`, `target`, `credits`, `allow` and `label` may stand more
// than once, everything else once. The block may be left out.
func (a *App) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the option's name
	if d.NextArg() {
		return d.Errf("fairway takes a block, not '%s'", d.Val())
	}
	return options{
		"listen":       text(&a.Listen, checkListen),
		"name":         text(&a.Name, checkName),
		"trust_domain": text(&a.TrustDomain, checkTrustDomain),
		"identity": {parse: func(d *caddyfile.Dispenser) error {
			a.Identity = new(Identity)
			return a.Identity.UnmarshalCaddyfile(d)
		}},
		"store": {parse: func(d *caddyfile.Dispenser) error { a.Store = new(Store); return a.Store.UnmarshalCaddyfile(d) }},
		"grace": {parse: func(d *caddyfile.Dispenser) error { return parseGrace(d, &a.Grace) }},
		"key":   {repeat: true, parse: a.parseKey},
		"embedded_node": {parse: func(d *caddyfile.Dispenser) error {
			a.EmbeddedNode = new(EmbeddedNode)
			return a.EmbeddedNode.UnmarshalCaddyfile(d)
		}},
	}.parse(d, "fairway", 0, "advertise", "audit", "edge", "jwt", "limits", "policy", "profile", "route", "slot")
}

func (a *App) parseKey(d *caddyfile.Dispenser) error {
	var k Key
	switch args := d.RemainingArgs(); len(args) {
	case 2:
		k = Key{Name: args[0], Value: args[1]}
	default:
		return d.Errf("'key' takes the name of a principal and a value, {file./path}, {env.NAME} or sha256:HEX")
	}
	if err := checked(d, "key", k.Name, checkPrincipal); err != nil {
		return err
	}
	for _, other := range a.Keys {
		if other == k {
			return d.Errf("'key': this key of %s stands twice", k.Name)
		}
	}
	a.Keys = append(a.Keys, k)
	return checked(d, "key "+k.Name, k.Value, func(v string) error { _, err := hashOf(v); return err })
}

func parseGrace(d *caddyfile.Dispenser, grace *caddy.Duration) error {
	var value string
	if err := text(&value, nil).parse(d); err != nil {
		return err
	}
	dur, err := caddy.ParseDuration(value)
	if err == nil {
		err = checkGrace(dur)
	}
	if err != nil {
		return d.Errf("grace: '%s': want a duration from 1s to 24h", value)
	}
	*grace = caddy.Duration(dur)
	return nil
}

// UnmarshalCaddyfile reads `identity internal` and `identity files { … }`.
func (i *Identity) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	if err := text(&i.Source, func(v string) error { return oneOf(v, identityInternal, identityFiles) }).parse(d); err != nil {
		return err
	}
	if i.Source != identityFiles {
		return nil
	}
	files := options{"cert": text(&i.Cert, nil), "key": text(&i.Key, nil), "ca": text(&i.CA, nil)}
	if err := files.parse(d, "identity files", d.Nesting()); err != nil {
		return err
	}
	if i.Cert == "" || i.Key == "" || i.CA == "" {
		return d.Err("identity files: want a block with three lines: cert, key and ca")
	}
	return nil
}

// UnmarshalCaddyfile reads `store memory`.
func (s *Store) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	return text(&s.Type, checkStore).parse(d)
}

// UnmarshalCaddyfile reads the block of embedded_node.
func (e *EmbeddedNode) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	if d.NextArg() {
		return d.Errf("embedded_node takes a block, not '%s'", d.Val())
	}
	return options{
		"ollama":  text(&e.Ollama, checkOllama),
		"target":  texts(&e.Targets, checkTarget),
		"credits": texts(&e.Credits, checkCredits),
		"allow":   texts(&e.Allow, checkAllow),
		"label":   {repeat: true, parse: e.parseLabel},
		"demo":    text(&e.Demo, checkDemo),
	}.parse(d, "embedded_node", d.Nesting())
}

func (e *EmbeddedNode) parseLabel(d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	if len(args) == 0 {
		return d.Err("'label' takes one NAME=VALUE or more")
	}
	if e.Labels == nil {
		e.Labels = map[string]string{}
	}
	for _, a := range args {
		name, value, ok := strings.Cut(a, "=")
		if _, twice := e.Labels[name]; !ok || name == "" || value == "" || twice {
			return d.Errf("label: '%s': want NAME=VALUE, each name once", a)
		}
		e.Labels[name] = value
	}
	return nil
}

// checkAllow judges the spelling; whether there is such an endpoint the node says
// when the config is loaded.
func checkAllow(v string) error {
	method, path, ok := strings.Cut(v, ":")
	if !ok || method == "" || !strings.HasPrefix(path, "/") {
		return fmt.Errorf("'%s': want METHOD:PATH", v)
	}
	return nil
}

// Interface guards
var (
	_ caddyfile.Unmarshaler = (*App)(nil)
	_ caddyfile.Unmarshaler = (*Identity)(nil)
	_ caddyfile.Unmarshaler = (*Store)(nil)
	_ caddyfile.Unmarshaler = (*EmbeddedNode)(nil)
)
