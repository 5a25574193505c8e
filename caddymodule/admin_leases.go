package caddymodule

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/caddymodule/internal/fleet"
	"github.com/fairway-edge/fairway/caddymodule/internal/gateway"
	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/internal/store"
)

func leases(_ context.Context, h *sharedHub, _ *http.Request) (any, error) {
	return append([]gateway.LeaseView{}, h.Leases()...), nil
}

// revocation names what is to be revoked: one of the four.
type revocation struct {
	Slot      string `json:"slot,omitempty"`
	Node      string `json:"node,omitempty"`
	Principal string `json:"principal,omitempty"`
	Lease     string `json:"lease,omitempty"`
}

// subject returns the one thing that q names, checked, and its spelling in the store.
func (q *revocation) subject() (kind store.SubjectKind, name, subject string, err error) {
	for _, v := range []struct {
		kind  store.SubjectKind
		name  string
		check func(string) bool
		want  string
	}{
		{store.SubjectSlot, q.Slot, pki.ValidName, aName},
		{store.SubjectNode, q.Node, pki.ValidName, aName},
		{store.SubjectPrincipal, q.Principal, isPrincipal, fmt.Sprintf("1 to %d printable bytes", maxPrincipal)},
		{store.SubjectLease, q.Lease, isLease, "the 22 characters that `caddy fairway leases` shows"},
	} {
		switch {
		case v.name == "":
			continue
		case name != "":
			return "", "", "", errOneSubject
		case !v.check(v.name):
			return "", "", "", fmt.Errorf("%s %q is not one: want %s", v.kind, v.name, v.want)
		}
		kind, name = v.kind, v.name
	}
	if name == "" {
		return "", "", "", errOneSubject
	}
	return kind, name, store.Subject(kind, name), nil
}

var errOneSubject = errors.New("want one of slot, node, principal and lease")

// maxPrincipal bounds a principal's name: with `auth caddy` it is whatever that
// handler calls its user.
const maxPrincipal = 200

func isPrincipal(v string) bool {
	return len(v) <= maxPrincipal && utf8.ValidString(v) && !strings.ContainsFunc(v, func(r rune) bool { return !unicode.IsPrint(r) })
}

func isLease(v string) bool {
	id, err := base64.RawURLEncoding.Strict().DecodeString(v)
	return err == nil && len(id) == 16
}

// RevocationView is one row of `caddy fairway revocations`; its JSON names are a contract.
type RevocationView struct {
	Subject string `json:"subject"`
}

func revocations(ctx context.Context, h *sharedHub, _ *http.Request) (any, error) {
	list, err := answered(func() ([]string, error) { return h.Revocations(ctx) }, ctx.Done())
	if err != nil {
		return nil, apiError(http.StatusServiceUnavailable, err)
	}
	rows := make([]RevocationView, len(list))
	for i, s := range list {
		rows[i].Subject = s
	}
	return rows, nil
}

// RevokedView answers a revocation; its JSON names are a contract.
type RevokedView struct {
	gateway.RevokeView
	Known bool `json:"known"` // this gateway knows a thing of that name
}

// revokeTimeout leaves the hub time to say how far it came.
const revokeTimeout = adminTimeout - 100*time.Millisecond

func revoke(ctx context.Context, h *sharedHub, r *http.Request) (any, error) {
	var q revocation
	if err := readBody(r, &q); err != nil {
		return nil, err
	}
	kind, name, subject, err := q.subject()
	if err != nil {
		return nil, apiError(http.StatusBadRequest, err)
	}
	st := h.Current()
	if st == nil {
		return nil, errStopping
	}
	view := RevokedView{Known: known(h, st, kind, name)}
	undo := r.Method == http.MethodDelete
	// A caller that goes must not leave it half done.
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeTimeout)
	view.RevokeView, err = answered(func() (gateway.RevokeView, error) {
		defer cancel()
		return h.Revoke(work, subject, undo)
	}, ctx.Done())
	if err != nil && !view.Applied {
		return nil, apiError(http.StatusServiceUnavailable, err)
	}
	if err != nil {
		st.Log.Error("writing a revocation to storage", zap.String("subject", subject), zap.Error(err))
	}
	return []RevokedView{view}, nil
}

// answered waits for f, which may wait for a storage that heeds no deadline.
func answered[T any](f func() (T, error), done <-chan struct{}) (T, error) {
	type result struct {
		value T
		err   error
	}
	ready := make(chan result, 1)
	go func() {
		v, err := f()
		ready <- result{v, err}
	}()
	select {
	case r := <-ready:
		return r.value, r.err
	case <-done:
		var none T
		return none, errSlow
	}
}

var errSlow = errors.New("the storage did not answer within a second; the change may still be made")

// known tells whether there is such a thing: a misspelt revocation revokes nothing
// and looks like one that does.
func known(h *sharedHub, st *gateway.Settings, kind store.SubjectKind, name string) bool {
	switch kind {
	case store.SubjectSlot:
		return slices.ContainsFunc(st.Slots, func(s gateway.Slot) bool { return s.Name == name })
	case store.SubjectNode:
		return slices.ContainsFunc(h.Fleet().Nodes(), func(n fleet.NodeView) bool { return n.Name == name })
	case store.SubjectLease:
		return slices.ContainsFunc(h.Leases(), func(l gateway.LeaseView) bool { return l.Lease == name })
	case store.SubjectPrincipal:
		return name == gateway.Anonymous || slices.ContainsFunc(st.Keys, func(k gateway.Key) bool { return k.Principal == name })
	}
	return false
}

// RouteView is one row of `caddy fairway routes`; its JSON names are a contract.
type RouteView struct {
	Name       string        `json:"name"`
	Principals []string      `json:"principals"` // `*`: all
	Profiles   []ProfileView `json:"profiles"`
}

// ProfileView is a profile as the configuration has it, without its header.
type ProfileView struct {
	Name    string            `json:"name"`
	Adapter string            `json:"adapter"`
	Target  string            `json:"target"`
	Slot    string            `json:"slot,omitempty"`
	Nodes   map[string]string `json:"nodes,omitempty"`
}

// routes shows the one route that there is. Without any profile its profiles are
// the targets that need none.
func routes(_ context.Context, h *sharedHub, _ *http.Request) (any, error) {
	st := h.Current()
	if st == nil {
		return nil, errStopping
	}
	row := RouteView{Name: gateway.DefaultRoute, Principals: []string{"*"}, Profiles: []ProfileView{}}
	for _, p := range st.Profiles {
		row.Profiles = append(row.Profiles, ProfileView{Name: p.Name, Adapter: p.Adapter, Target: p.Target, Slot: p.Slot, Nodes: p.Nodes})
	}
	if len(st.Profiles) == 0 {
		seen := map[string]bool{}
		for _, n := range h.Fleet().Nodes() {
			for _, t := range n.Targets {
				if t.Adapter == adapterOllama && !seen[t.Name] {
					seen[t.Name] = true
					row.Profiles = append(row.Profiles, ProfileView{Name: t.Name, Adapter: t.Adapter, Target: t.Name})
				}
			}
		}
		slices.SortFunc(row.Profiles, func(a, b ProfileView) int { return strings.Compare(a.Name, b.Name) })
	}
	return []RouteView{row}, nil
}
