package caddymodule

import (
	"fmt"
	"slices"
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
//		store redis {
//			url               URL|{file./PATH}|{env.NAME}
//			prefix            PREFIX
//			on_down           fail_closed|serve_owned
//			ca                FILE
//			sentinel_user     NAME
//			sentinel_password {file./PATH}|{env.NAME}
//		}
//		advertise HOST:PORT
//		grace DURATION
//		key   PRINCIPAL {file./PATH}|{env.NAME}|sha256:HEX
//		slot  NAME {
//			value     {file./PATH}|{env.NAME}
//			on_revoke cancel|drain
//		}
//		profile NAME {
//			adapter ollama|openai|goals
//			target  NAME
//			slot    NAME
//			header  NAME "TEMPLATE WITH {slot}"
//			nodes   LABEL=VALUE
//		}
//		audit off|log|FILE
//		edge {
//			redact  REGEX...
//			budget  TOKENS
//			tools   NAME...
//			approve R0|R1
//		}
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
// Everything has a default but a slot's value. `key`, `slot`, `profile`, `nodes` and the
// `target`, `credits`, `allow` and `label` of a node may stand more than once, everything
// else once. The block may be left out.
func (a *App) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the option's name
	if d.NextArg() {
		return d.Errf("fairway takes a block, not '%s'", d.Val())
	}
	var uses []slotUse
	err := options{
		"listen":       text(&a.Listen, checkListen),
		"name":         text(&a.Name, checkName),
		"trust_domain": text(&a.TrustDomain, checkTrustDomain),
		"identity": {parse: func(d *caddyfile.Dispenser) error {
			a.Identity = new(Identity)
			return a.Identity.UnmarshalCaddyfile(d)
		}},
		"store":     {parse: func(d *caddyfile.Dispenser) error { a.Store = new(Store); return a.Store.UnmarshalCaddyfile(d) }},
		"advertise": text(&a.Advertise, checkAdvertise),
		"grace":     {parse: func(d *caddyfile.Dispenser) error { return parseGrace(d, &a.Grace) }},
		"key":       {repeat: true, parse: a.parseKey},
		"slot":      {repeat: true, parse: a.parseSlot},
		"profile": {repeat: true, parse: func(d *caddyfile.Dispenser) error {
			use, err := a.parseProfile(d)
			uses = append(uses, use)
			return err
		}},
		"audit": text(&a.Audit, checkAudit),
		"edge":  {parse: func(d *caddyfile.Dispenser) error { a.Edge = new(Edge); return a.Edge.UnmarshalCaddyfile(d) }},
		"embedded_node": {parse: func(d *caddyfile.Dispenser) error {
			a.EmbeddedNode = new(EmbeddedNode)
			return a.EmbeddedNode.UnmarshalCaddyfile(d)
		}},
	}.parse(d, "fairway", 0, "jwt", "limits", "policy", "route")
	if err != nil {
		return err
	}
	return a.checkUses(uses)
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

func (a *App) parseSlot(d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	if len(args) != 1 {
		return d.Err("'slot' takes a name and a block")
	}
	s := Slot{Name: args[0]}
	if err := checkSlotName(s.Name); err != nil {
		return d.WrapErr(fmt.Errorf("slot: %w", err))
	}
	if slices.ContainsFunc(a.Slots, func(other Slot) bool { return other.Name == s.Name }) {
		return d.Errf("slot %s stands twice", s.Name)
	}
	err := options{
		"value":     {hush: true, parse: s.parseValue},
		"on_revoke": text(&s.OnRevoke, checkOnRevoke),
	}.parse(d, "slot", d.Nesting())
	if err != nil {
		return err
	}
	if s.Value == "" {
		return d.Errf("slot %s: value is missing: want value {file./path} or value {env.NAME}", s.Name)
	}
	a.Slots = append(a.Slots, s)
	return nil
}

// parseValue refuses a credential in clear before anything else sees it.
func (s *Slot) parseValue(d *caddyfile.Dispenser) error {
	if err := text(&s.Value, nil).parse(d); err != nil {
		return err
	}
	if _, err := parseSource(s.Value); err != nil {
		return d.WrapErr(fmt.Errorf("value: %w", err))
	}
	return nil
}

// slotUse is where in a Caddyfile a profile names its slot, which may stand further on.
type slotUse struct {
	name string              // "": there is nothing to check
	at   caddyfile.Dispenser // a copy, for the place
}

func (a *App) parseProfile(d *caddyfile.Dispenser) (use slotUse, err error) {
	args := d.RemainingArgs()
	if len(args) != 1 {
		return use, d.Err("'profile' takes a name and a block")
	}
	p := Profile{Name: args[0]}
	if err := checkProfileName(p.Name); err != nil {
		return use, d.WrapErr(fmt.Errorf("profile: %w", err))
	}
	if slices.ContainsFunc(a.Profiles, func(other Profile) bool { return other.Name == p.Name }) {
		return use, d.Errf("profile %s stands twice", p.Name)
	}
	head := *d
	err = options{
		"adapter": text(&p.Adapter, checkAdapter),
		"target":  text(&p.Target, checkTargetName),
		"slot": {parse: func(d *caddyfile.Dispenser) error {
			use.at = *d
			return text(&p.Slot, nil).parse(d)
		}},
		"header": {parse: p.parseHeader},
		"nodes":  {repeat: true, parse: pairs(&p.Nodes)},
	}.parse(d, "profile", d.Nesting())
	if err != nil {
		return use, err
	}
	if p.Header != nil && p.Slot == "" {
		return use, head.WrapErr(fmt.Errorf("profile %s: %w", p.Name, errHeaderAlone))
	}
	if !hasPlaceholder(p.Slot) {
		use.name = p.Slot
	}
	a.Profiles = append(a.Profiles, p)
	return use, nil
}

func (p *Profile) parseHeader(d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	if len(args) != 2 {
		return d.Errf("'header' takes a name and a value, such as header X-Api-Key %s", slotMark)
	}
	p.Header = &ProfileHeader{Name: args[0], Value: args[1]}
	if err := checkHeader(args[0], args[1]); err != nil {
		return d.WrapErr(fmt.Errorf("header: %w", err))
	}
	return nil
}

// checkUses sees that the slots exist that profiles name.
func (a *App) checkUses(uses []slotUse) error {
	names := make([]string, len(a.Slots))
	for i, s := range a.Slots {
		names[i] = s.Name
	}
	for _, u := range uses {
		if u.name != "" && !slices.Contains(names, u.name) {
			return u.at.WrapErr(errNoSlot(names))
		}
	}
	return nil
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
		"label":   {repeat: true, parse: pairs(&e.Labels)},
		"demo":    text(&e.Demo, checkDemo),
	}.parse(d, "embedded_node", d.Nesting())
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
