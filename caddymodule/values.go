package caddymodule

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/fairway-edge/fairway/caddymodule/internal/gateway"
	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/internal/pki"
)

// maxName leaves room for the embedded node's prefix in a node's name of 63.
const maxName = 63 - len(gateway.EmbeddedPrefix)

// values are an App's options with defaults and without placeholders.
type values struct {
	listen      caddy.NetworkAddress
	name        string
	trustDomain string
	grace       time.Duration
	keys        []gateway.Key
	slots       []gateway.Slot
	profiles    []gateway.Profile
	audit       string
	identity    identityValues
	store       storeValues
	gates       edge.Gates
}

// resolve reads the options, naming the one that is wrong.
func (a *App) resolve() error {
	v, repl := &a.values, newResolver()
	listen, err := repl.value("listen", a.Listen, defaultListen, checkListen)
	if err != nil {
		return err
	}
	if v.listen, err = parseListen(listen); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if v.store, err = a.resolveStore(repl); err != nil {
		return err
	}
	if v.grace = time.Duration(a.Grace); v.grace == 0 {
		v.grace = defaultGrace
	}
	if err := checkGrace(v.grace); err != nil {
		return fmt.Errorf("grace: %w", err)
	}
	if v.identity, err = a.Identity.resolve(repl); err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	if err := a.resolveNames(repl); err != nil {
		return err
	}
	if v.keys, err = resolveKeys(a.Keys, repl, a.log); err != nil {
		return err
	}
	if v.audit, err = repl.value("audit", a.Audit, auditLog, checkAudit); err != nil {
		return err
	}
	if v.gates, err = a.Edge.gates(repl); err != nil {
		return fmt.Errorf("edge: %w", err)
	}
	if v.slots, err = resolveSlots(a.Slots, repl); err != nil {
		return err
	}
	v.profiles, err = resolveProfiles(a.Profiles, v.slots, repl)
	return err
}

// resolveNames settles name and trust domain. With identity files the certificate
// has them, and what the config says besides must agree.
func (a *App) resolveNames(repl resolver) error {
	v := &a.values
	name, domain := defaultName(), defaultTrustDomain
	files := v.identity.files
	if files != nil {
		id, err := files.load()
		if err != nil {
			return fmt.Errorf("identity files: %w", err)
		}
		name, domain = id.ID.Name, id.ID.TrustDomain
	}
	var err error
	if v.name, err = repl.value("name", a.Name, name, checkName); err != nil {
		return err
	}
	if v.trustDomain, err = repl.value("trust_domain", a.TrustDomain, domain, checkTrustDomain); err != nil {
		return err
	}
	if files != nil && (v.name != name || v.trustDomain != domain) {
		return fmt.Errorf("identity files: the certificate %s is for %s in trust domain %s, but name and trust_domain say %s in %s",
			files.cert, name, domain, v.name, v.trustDomain)
	}
	return nil
}

// resolver replaces placeholders. It knows {env.*}, {file.*} and Caddy's global
// ones; a value that is empty or that nobody knows is an error, never text.
type resolver struct{ repl *caddy.Replacer }

func newResolver() resolver { return resolver{caddy.NewReplacer()} }

// value resolves an option; an empty one is its default.
func (r resolver) value(option, value, byDefault string, check func(string) error) (string, error) {
	if value == "" {
		value = byDefault
	}
	var files sourceFiles
	out, err := files.replacer(r.repl).ReplaceOrErr(value, true, true)
	if err != nil {
		if files.err != nil {
			err = files.err
		}
		return "", fmt.Errorf("%s: %w", option, err)
	}
	if check != nil {
		if err := check(out); err != nil {
			return "", fmt.Errorf("%s: %w", option, err)
		}
	}
	return out, nil
}

// hasPlaceholder tells that a value is not known before the config is loaded.
func hasPlaceholder(v string) bool { return strings.Contains(v, "{") }

// checkLabelName refuses a placeholder where none is replaced: no node has a label of that name.
func checkLabelName(name string) error {
	if hasPlaceholder(name) {
		return fmt.Errorf("'%s': a placeholder may stand for a label's value, not for its name", name)
	}
	return nil
}

// defaultName is the host's name in the spelling of a gateway's.
func defaultName() string {
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	name := strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || '0' <= r && r <= '9' || strings.ContainsRune("._-", r) {
			return r
		}
		return '-'
	}, strings.ToLower(host))
	name = strings.TrimLeft(name[:min(len(name), maxName)], "._-")
	if name == "" {
		return "gateway"
	}
	return name
}

func checkName(v string) error {
	if !pki.ValidName(v) || len(v) > maxName {
		return fmt.Errorf("'%s' is not a name: want lower-case letters, digits and . _ -, beginning with a letter or digit, at most %d", v, maxName)
	}
	return nil
}

func checkTrustDomain(v string) error {
	if !pki.ValidTrustDomain(v) {
		return fmt.Errorf("'%s' is not a trust domain: want lower-case letters, digits and . _ -, beginning with a letter or digit, at most 255", v)
	}
	return nil
}

func checkGrace(d time.Duration) error {
	if d < minGrace || d > maxGrace {
		return fmt.Errorf("%s is out of range: want 1s to 24h", d)
	}
	return nil
}

// checkPrincipal takes names of callers. They stand in logs and in `manage`.
func checkPrincipal(v string) error {
	bad := strings.ContainsFunc(v, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._@-", r)
	})
	switch {
	case v == "" || len(v) > 63 || bad:
		return fmt.Errorf("'%s' is not the name of a principal: want letters, digits and . _ @ -, at most 63", v)
	case v == gateway.Anonymous:
		return fmt.Errorf("'%s' is the principal of auth none; choose another name", v)
	}
	return nil
}

// checkOrigin takes what a browser sends as Origin: scheme://host[:port].
func checkOrigin(v string) error {
	u, err := url.Parse(v)
	if v == "*" {
		return nil
	}
	if err != nil || u.Scheme == "" || u.Host == "" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("'%s' is not an origin: want scheme://host[:port] or *", v)
	}
	return nil
}

func oneOf(v string, allowed ...string) error {
	for _, a := range allowed {
		if v == a {
			return nil
		}
	}
	return fmt.Errorf("'%s' is not known: want %s", v, strings.Join(allowed, ", "))
}

// errLater refuses what this version does not have yet.
func errLater(what, instead string) error {
	if instead != "" {
		instead = "; " + instead
	}
	return fmt.Errorf("%s is not available in this version of Fairway%s", what, instead)
}

// isLoopback tells whether a host of a listener can be reached from this machine only.
func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return ip != nil && ip.IsLoopback()
}
