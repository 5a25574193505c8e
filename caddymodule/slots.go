package caddymodule

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/caddymodule/internal/gateway"
	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/lease"
)

// Slot is a credential that the gateway keeps and lends, one run at a time, to the
// node that serves the run. It never leaves the gateway unsealed, and no
// configuration, log, metric or admin route shows it.
type Slot struct {
	// The slot's name: lower-case letters, digits and `. _ -`, at most 63.
	Name string `json:"name"`
	// Where the credential is: `{file./path}` or `{env.NAME}`, that alone. A credential
	// in clear is refused, because Caddy saves its configuration and shows it. One line
	// break at the end is taken off.
	Value string `json:"value"`
	// What happens to running runs when the slot is revoked or removed: `cancel` ends
	// them, `drain` lets them finish. Default: `cancel`.
	OnRevoke string `json:"on_revoke,omitempty"`
}

// What a Slot's OnRevoke may be.
const (
	revokeCancel = "cancel"
	revokeDrain  = "drain"
)

// resolveSlots reads the credentials. No error says anything of one.
func resolveSlots(slots []Slot, repl resolver) ([]gateway.Slot, error) {
	var out []gateway.Slot
	seen := map[string]bool{}
	for _, s := range slots {
		if err := checkSlotName(s.Name); err != nil {
			return nil, fmt.Errorf("slot: %w", err)
		}
		if seen[s.Name] {
			return nil, fmt.Errorf("slot %s stands twice", s.Name)
		}
		seen[s.Name] = true
		onRevoke, err := repl.value("on_revoke", s.OnRevoke, revokeCancel, checkOnRevoke)
		if err != nil {
			return nil, fmt.Errorf("slot %s: %w", s.Name, err)
		}
		from, err := parseSource(s.Value)
		if err != nil {
			return nil, fmt.Errorf("slot %s: value: %w", s.Name, err)
		}
		value, err := from.read()
		if err != nil {
			return nil, fmt.Errorf("slot %s: value: %w", s.Name, err)
		}
		out = append(out, gateway.Slot{Name: s.Name, Value: lease.NewValue(value), Drain: onRevoke == revokeDrain})
	}
	return out, nil
}

// warnUnused tells of slots that nothing can lend.
func warnUnused(slots []gateway.Slot, profiles []gateway.Profile, log *zap.Logger) {
	used := map[string]bool{}
	for _, p := range profiles {
		used[p.Slot] = true
	}
	for _, s := range slots {
		if !used[s.Name] {
			log.Warn("no profile uses this slot", zap.String("slot", s.Name))
		}
	}
}

// source is where a credential comes from: one of the two.
type source struct{ file, env string }

var (
	errInline = errors.New("want {file./path} or {env.NAME} alone: a credential in clear would stand in the configuration that Caddy saves and shows, " +
		"and so would one from {$NAME}")
	errNested = errors.New("want one placeholder, {file./path} or {env.NAME}: Caddy replaces none within another; " +
		"write the path of a systemd credential as /run/credentials/UNIT/NAME")
	errUnusable = errors.New("want one line of printable ASCII, at most 4096 characters, without a space at either end")
)

// parseSource reads a slot's value, which may be a secret in the wrong place: no
// error repeats it.
func parseSource(v string) (source, error) {
	inner, opens := strings.CutPrefix(v, "{")
	inner, closes := strings.CutSuffix(inner, "}")
	kind, name, _ := strings.Cut(inner, ".")
	switch {
	case !opens || !closes || name == "":
		return source{}, errInline
	case kind == "file" && strings.ContainsAny(name, "{}"):
		return source{}, errNested
	case kind == "file":
		return source{file: name}, nil
	case kind == "env" && isVariable(name):
		return source{env: name}, nil
	}
	return source{}, errInline
}

// isVariable keeps `{env.NAME:default}` out: Caddy knows no defaults, and this one
// would be a credential in the configuration.
func isVariable(name string) bool {
	return !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_'
	})
}

// read returns the credential.
func (s source) read() ([]byte, error) {
	var value []byte
	var err error
	where := "the environment variable " + s.env
	if s.env != "" {
		v, set := os.LookupEnv(s.env)
		if !set {
			return nil, fmt.Errorf("%s is not set", where)
		}
		value = []byte(v)
	} else {
		where = "the file " + s.file
		if value, err = readRegular(s.file, maxSource); err != nil {
			return nil, err
		}
	}
	if rest, ok := bytes.CutSuffix(value, []byte("\n")); ok {
		value = bytes.TrimSuffix(rest, []byte("\r"))
	}
	if len(value) == 0 {
		return nil, fmt.Errorf("%s is empty", where)
	}
	if !lease.ValidValue(value) {
		clear(value)
		return nil, fmt.Errorf("%s holds no usable credential: %w", where, errUnusable)
	}
	return value, nil
}

// checkSlotName repeats no name that is none: it may be the secret.
func checkSlotName(v string) error {
	if !pki.ValidName(v) {
		return fmt.Errorf("the name is not one: want %s", aName)
	}
	return nil
}

// aName is what slots, profiles, targets and nodes may be called.
const aName = "lower-case letters, digits and . _ -, beginning with a letter or digit, at most 63"

func checkOnRevoke(v string) error { return oneOf(v, revokeCancel, revokeDrain) }
