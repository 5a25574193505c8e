package caddymodule

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/fairway-edge/fairway/caddymodule/internal/gateway"
	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/lease"
)

// Profile says how a provider is used: over which protocol, under which name on its
// node, and with which credential, if any. Without any profile there is one, without
// a credential, for each target of the adapter `ollama`.
type Profile struct {
	// The profile's name: lower-case letters, digits and `. _ -`, at most 63.
	Name string `json:"name"`
	// The provider's protocol: `ollama`, `openai` or `goals`. Default: `ollama`.
	Adapter string `json:"adapter,omitempty"`
	// The target's name on its node. Default: the adapter's name.
	Target string `json:"target,omitempty"`
	// The slot whose credential goes into the request. Default: none.
	Slot string `json:"slot,omitempty"`
	// The header that the credential goes into. Default, with a slot: `Authorization`
	// with `Bearer {slot}`.
	Header *ProfileHeader `json:"header,omitempty"`
	// The labels that a node must have. Default: any node. For one adapter and target
	// the first profile whose labels a node has is used.
	Nodes map[string]string `json:"nodes,omitempty"`
}

// ProfileHeader is the header that a credential goes into, on its node.
type ProfileHeader struct {
	// The header's name. Those that frame a request or belong to one connection are
	// refused.
	Name string `json:"name"`
	// The header's value, in which `{slot}` stands once for the credential. It takes no
	// other placeholder: what is secret belongs into the slot.
	Value string `json:"value"`
}

const (
	slotMark      = "{slot}"
	bearer        = "Bearer " + slotMark
	authorization = "Authorization"

	adapterOllama = "ollama"
	adapterOpenAI = "openai"
	adapterGoals  = "goals"

	// The protocol's bounds of labels.
	maxLabels = 32
	maxLabel  = 256 // bytes, name and value together

	maxHeaderName = 128
)

// resolveProfiles reads the profiles, in the configuration's order, which counts.
func resolveProfiles(profiles []Profile, slots []gateway.Slot, repl resolver) ([]gateway.Profile, error) {
	var out []gateway.Profile
	for _, p := range profiles {
		if err := checkProfileName(p.Name); err != nil {
			return nil, fmt.Errorf("profile: %w", err)
		}
		got, err := p.resolve(slots, repl)
		if err != nil {
			return nil, fmt.Errorf("profile %s: %w", p.Name, err)
		}
		for _, before := range out {
			if before.Name == got.Name {
				return nil, fmt.Errorf("profile %s stands twice", p.Name)
			}
			if shadows(before, got) {
				return nil, fmt.Errorf("profile %s could never be used: profile %s before it takes the same target on every node that this one is for; "+
					"put the one with more labels in 'nodes' first, or take one out", got.Name, before.Name)
			}
		}
		out = append(out, got)
	}
	return out, nil
}

// shadows tells that a profile leaves nothing to one that comes after it.
func shadows(first, then gateway.Profile) bool {
	if first.Adapter != then.Adapter || first.Target != then.Target {
		return false
	}
	for k, v := range first.Nodes {
		if then.Nodes[k] != v {
			return false
		}
	}
	return true
}

func (p *Profile) resolve(slots []gateway.Slot, repl resolver) (out gateway.Profile, err error) {
	out = gateway.Profile{Name: p.Name}
	if out.Adapter, err = repl.value("adapter", p.Adapter, adapterOllama, checkAdapter); err != nil {
		return out, err
	}
	if out.Target, err = repl.value("target", p.Target, out.Adapter, checkTargetName); err != nil {
		return out, err
	}
	for _, k := range slices.Sorted(maps.Keys(p.Nodes)) {
		if err := checkLabelName(k); err != nil {
			return out, fmt.Errorf("nodes: %w", err)
		}
		if out.Nodes == nil {
			out.Nodes = map[string]string{}
		}
		if out.Nodes[k], err = repl.value("nodes: "+k, p.Nodes[k], "", nil); err != nil {
			return out, err
		}
	}
	if err := checkNodes(out.Nodes); err != nil {
		return out, fmt.Errorf("nodes: %w", err)
	}
	if out.Slot, err = repl.value("slot", p.Slot, "", nil); err != nil {
		return out, err
	}
	if out.Slot == "" {
		if p.Header != nil {
			return out, errHeaderAlone
		}
		return out, nil
	}
	i := slices.IndexFunc(slots, func(s gateway.Slot) bool { return s.Name == out.Slot })
	if i < 0 {
		names := make([]string, len(slots))
		for i, s := range slots {
			names[i] = s.Name
		}
		return out, errNoSlot(names)
	}
	out.Header, out.Value = authorization, bearer
	if p.Header != nil {
		out.Header, out.Value = p.Header.Name, p.Header.Value
	}
	if err := checkHeader(out.Header, out.Value); err != nil {
		return out, fmt.Errorf("header: %w", err)
	}
	if !fits(out.Value, slots[i].Value) {
		return out, fmt.Errorf("header: with the credential of slot %s in it the value is longer than %d characters", out.Slot, lease.MaxValue)
	}
	return out, nil
}

var errHeaderAlone = fmt.Errorf("header needs a slot, whose credential %s stands for", slotMark)

// errNoSlot does not repeat what there is no slot for: it may be a secret in the wrong
// place.
func errNoSlot(known []string) error {
	if len(known) == 0 {
		return errors.New("slot: there is no slot of that name, nor any other")
	}
	return fmt.Errorf("slot: there is no slot of that name: want %s", strings.Join(known, ", "))
}

// fits tells whether the filled template is a header value that a lease can carry.
func fits(template string, value lease.Value) bool {
	before, after, _ := strings.Cut(template, slotMark)
	filled := make([]byte, 0, len(before)+len(value.Bytes())+len(after))
	filled = append(append(append(filled, before...), value.Bytes()...), after...)
	defer clear(filled)
	return lease.ValidValue(filled)
}

// checkHeader judges a header's name and template. A template may be a secret in the
// wrong place: no error repeats it.
func checkHeader(name, template string) error {
	if err := checkHeaderName(name); err != nil {
		return err
	}
	before, after, has := strings.Cut(template, slotMark)
	switch {
	case !has:
		return fmt.Errorf("the value must hold %s, where the credential goes, as in \"%s\"", slotMark, bearer)
	case strings.ContainsAny(before+after, "{}"):
		return fmt.Errorf("the value takes %s once and no other placeholder", slotMark)
	case !lease.ValidValue([]byte(template)):
		return fmt.Errorf("the value: %w", lease.ErrValue)
	}
	return nil
}

// refusedHeaders would change what a request is, or end at the next hop, whatever
// their value.
var refusedHeaders = map[string]bool{
	"host": true, "expect": true, "connection": true, "keep-alive": true, "proxy-authenticate": true, "proxy-authorization": true,
	"proxy-connection": true, "te": true, "trailer": true, "transfer-encoding": true, "upgrade": true, "http2-settings": true,
}

func checkHeaderName(name string) error {
	low := strings.ReplaceAll(strings.ToLower(name), "_", "-") // some servers take the one for the other
	switch {
	case !httpguts.ValidHeaderFieldName(name) || len(name) > maxHeaderName:
		return fmt.Errorf("the name is not one of a header: want letters, digits and -, at most %d", maxHeaderName)
	case refusedHeaders[low] || strings.HasPrefix(low, "content-") || strings.HasPrefix(low, "x-fairway"):
		return fmt.Errorf("'%s' cannot hold a credential: want a header such as %s or X-Api-Key", name, authorization)
	}
	return nil
}

func checkProfileName(v string) error {
	if !pki.ValidName(v) {
		return fmt.Errorf("'%s' is not a name: want %s", v, aName)
	}
	return nil
}

func checkTargetName(v string) error { return checkProfileName(v) }

func checkAdapter(v string) error {
	return oneOf(v, adapterOllama, adapterOpenAI, adapterGoals)
}

// checkNodes refuses labels that no node can have.
func checkNodes(labels map[string]string) error {
	if len(labels) > maxLabels {
		return fmt.Errorf("%d labels: no node has more than %d", len(labels), maxLabels)
	}
	for k, v := range labels {
		if k == "" || len(k)+len(v) > maxLabel {
			return fmt.Errorf("label '%s': want a name, and at most %d bytes with its value", k, maxLabel)
		}
	}
	return nil
}
