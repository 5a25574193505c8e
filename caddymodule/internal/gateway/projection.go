package gateway

import (
	"context"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/caddymodule/internal/fleet"
	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/internal/store"
	"github.com/fairway-edge/fairway/lease"
	"github.com/fairway-edge/fairway/tunnel"
)

// projection is what leases are bound to of one configuration, under its published number. It is never changed.
type projection struct {
	pgn      uint64
	route    lease.Ref
	profiles map[string]*bound // those with a slot, by name

	objects   map[string]string // as they were published
	published store.Publication // and numbered
}

// bound is a profile with its slot, each at its revision.
type bound struct {
	Profile
	profile lease.Ref
	slot    lease.Ref
	version uint64      // of the credential in the slot
	value   lease.Value // what goes into the header
	drain   bool
}

// placeholder is where a profile's header takes the credential.
const placeholder = "{slot}"

// digestKey is the key under which secrets enter a digest: nobody who reads a store can try values against it.
func digestKey(reset [32]byte) []byte {
	k, err := hkdf.Key(sha256.New, reset[:], nil, "fairway projection digest v1", sha256.Size)
	if err != nil {
		panic(err) // of constants only
	}
	return k
}

// objects lists what st publishes, with a digest of each.
func (st *Settings) objects(key []byte) map[string]string {
	digest := func(v any) string {
		raw, err := json.Marshal(v)
		if err != nil {
			panic(err) // of strings and maps of them only
		}
		m := hmac.New(sha256.New, key)
		m.Write(raw)
		return hex.EncodeToString(m.Sum(nil))
	}
	out := map[string]string{}
	names := make([]string, 0, len(st.Profiles))
	for _, p := range st.Profiles {
		out["profile:"+p.Name] = digest(p)
		names = append(names, p.Name)
	}
	for _, s := range st.Slots {
		value := digest(s.Value.Bytes())
		out["credential:"+s.Name] = value
		out["slot:"+s.Name] = digest([]any{value, s.Drain})
	}
	keys := map[string][]string{}
	for _, k := range st.Keys {
		keys[k.Principal] = append(keys[k.Principal], hex.EncodeToString(k.Hash[:]))
	}
	for name, hashes := range keys {
		out["principal:"+name] = digest(hashes)
	}
	out["route:"+DefaultRoute] = digest(names)
	return out
}

// publish numbers st's projection.
func (h *Hub) publish(ctx context.Context, st *Settings) (*projection, error) {
	objects := st.objects(h.digest)
	p, err := h.cfg.Store.Publish(ctx, objects)
	if errors.Is(err, store.ErrNotDurable) {
		st.Log.Warn("the numbers of this configuration could not be written; after a restart slots may show other versions", zap.Error(err))
		err = nil
	}
	if cur := h.Current(); errors.Is(err, store.ErrUnavailable) && cur != nil && maps.Equal(cur.projection.objects, objects) {
		p, err = cur.projection.published, nil // nothing that has a number has changed: this needs no store
	}
	if err != nil {
		return nil, err
	}
	rev := func(kind, name string) lease.Ref { return lease.Ref{ID: name, Rev: p.Revisions[kind+":"+name]} }
	out := &projection{pgn: p.PGN, route: rev("route", DefaultRoute), profiles: map[string]*bound{}, objects: objects, published: p}
	slots := map[string]Slot{}
	for _, s := range st.Slots {
		slots[s.Name] = s
	}
	for _, pr := range st.Profiles {
		if pr.Slot == "" {
			continue
		}
		s, ok := slots[pr.Slot]
		if !ok {
			return nil, fmt.Errorf("profile %s: there is no slot %s", pr.Name, pr.Slot)
		}
		before, after, _ := strings.Cut(pr.Value, placeholder)
		value := append(append([]byte(before), s.Value.Bytes()...), after...)
		if !lease.ValidValue(value) {
			return nil, fmt.Errorf("profile %s: %w", pr.Name, lease.ErrValue)
		}
		out.profiles[pr.Name] = &bound{
			Profile: pr, profile: rev("profile", pr.Name), slot: rev("slot", pr.Slot), version: p.Revisions["credential:"+pr.Slot],
			value: lease.NewValue(value), drain: s.Drain,
		}
	}
	return out, nil
}

// wire is the projection as nodes are told it.
func (p *projection) wire() *tunnel.Projection {
	m := &tunnel.Projection{Pgn: p.pgn, Routes: []*tunnel.Route{{Id: p.route.ID, Revision: p.route.Rev}}}
	for _, b := range p.profiles {
		m.Profiles = append(m.Profiles, &tunnel.Profile{
			Id: b.profile.ID, Revision: b.profile.Rev, Adapter: b.Adapter, Target: b.Target, Header: b.Header,
			Slot: b.slot.ID, SlotRevision: b.slot.Rev, SlotVersion: b.version,
		})
	}
	return m
}

// nodeLabel is the label of a profile's selector that stands for the node's name, which its certificate proves. Every other label is the node's own word.
const nodeLabel = "node"

// serves reports whether the profile is for a target: by its adapter and name, and its node's name and labels.
func (p *Profile) serves(c fleet.Candidate) bool {
	if p.Adapter != c.Adapter || p.Target != c.Target {
		return false
	}
	for k, v := range p.Nodes {
		if k == nodeLabel && c.Node != v || k != nodeLabel && c.Labels[k] != v {
			return false
		}
	}
	return true
}

// profileFor finds the profile under which a target is used, the first in the configuration's order; without any profile a target with adapter
// ollama is used under none.
func (st *Settings) profileFor(c fleet.Candidate) (p *Profile, ok bool) {
	if len(st.Profiles) == 0 {
		return nil, c.Adapter == "ollama"
	}
	for i := range st.Profiles {
		if st.Profiles[i].serves(c) {
			return &st.Profiles[i], true
		}
	}
	return nil, false
}

// filters say which targets a configuration uses. The first two are nil without profiles: then it is those with adapter ollama.
type filters struct {
	native  *fleet.Filter            // for Ollama's own endpoints
	all     *fleet.Filter            // for those that every provider may have
	foreign *fleet.Filter            // for those that Ollama does not have
	typed   *fleet.Filter            // for typed runs on a node
	cloud   map[string]*fleet.Filter // for those in the cloud, by profile; under "" for any
}

// filters returns the same filters each time: runs with the same filter wait in one line.
func (st *Settings) filters() filters {
	st.filterOnce.Do(func() {
		st.made.foreign = &fleet.Filter{Serves: func(c fleet.Candidate) bool {
			_, ok := st.profileFor(c)
			return ok && c.Adapter == "openai"
		}}
		st.made.cloud = map[string]*fleet.Filter{}
		for _, p := range append([]Profile{{}}, st.Profiles...) {
			st.made.cloud[p.Name] = &fleet.Filter{Serves: func(c fleet.Candidate) bool {
				used, ok := st.profileFor(c)
				return ok && used != nil && c.Adapter == "goals" && (p.Name == "" || used.Name == p.Name)
			}}
		}
		if len(st.Profiles) == 0 {
			return
		}
		st.made.typed = &fleet.Filter{Serves: func(c fleet.Candidate) bool {
			_, ok := st.profileFor(c)
			return ok && (c.Adapter == "ollama" || c.Adapter == "openai")
		}}
		st.made.native = &fleet.Filter{Serves: func(c fleet.Candidate) bool {
			_, ok := st.profileFor(c)
			return ok && c.Adapter == "ollama"
		}}
		st.made.all = &fleet.Filter{Serves: func(c fleet.Candidate) bool {
			_, ok := st.profileFor(c)
			return ok
		}}
	})
	return st.made
}

// cloud returns the filter of the targets that run workflows under a profile, or under any.
func (st *Settings) cloud(profile string) *fleet.Filter {
	if f := st.filters().cloud[profile]; f != nil {
		return f
	}
	return noTarget
}

var noTarget = &fleet.Filter{Serves: func(fleet.Candidate) bool { return false }}

// filter returns the one for an endpoint.
func (st *Settings) filter(e *ollama.Endpoint) *fleet.Filter {
	switch {
	case e.Foreign:
		return st.filters().foreign
	case e.ServedBy("openai"):
		return st.filters().all
	}
	return st.filters().native
}

// removed lists the subjects that were in p and are not in next: slots, profiles.
func (p *projection) removed(next *projection) (slots, profiles map[string]bool) {
	slots, profiles = map[string]bool{}, map[string]bool{}
	for name, b := range p.profiles {
		slots[b.slot.ID] = true
		if _, ok := next.profiles[name]; !ok {
			profiles[name] = true
		}
	}
	for _, b := range next.profiles {
		delete(slots, b.slot.ID)
	}
	maps.DeleteFunc(slots, func(_ string, v bool) bool { return !v })
	return slots, profiles
}
