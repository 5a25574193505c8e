package storetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/store"
)

// Operate runs the operations that data encodes, four bytes each, on an empty
// store and on a model of it, and fails t at the first answer that differs. The
// model keeps a log of what happened and answers by searching it: slow, and
// nothing like an implementation. Whether the store is shared is whether it
// passes RunShared.
func Operate(t *testing.T, s store.Store, clock *Clock, shared bool, data []byte) {
	t.Helper()
	m := &model{
		t: t, s: s, clock: clock, shared: shared, used: map[string]int{}, drained: map[string]bool{},
		epochs: map[string]uint64{}, beats: map[string]time.Time{}, floors: map[string]uint64{},
	}
	for len(data) >= 4 {
		m.step(data[0], data[1], data[2], data[3])
		data = data[4:]
	}
}

// registered is one line of the model's log.
type registered struct {
	node, gateway, instance string
	generation              uint64
	state                   store.State
	since                   time.Time
	over                    bool
}

type model struct {
	t      *testing.T
	s      store.Store
	clock  *Clock
	shared bool

	epochs map[string]uint64    // by gateway
	beats  map[string]time.Time // by gateway: last sign of life; of a shared store, from the first registration on
	floors map[string]uint64    // by node

	log      []*registered
	attempts []attempt
	minPGN   uint64
	revoked  []string
	pgn      uint64
	digest   string
	used     map[string]int
	drained  map[string]bool
}

// attempt is a registration that looked at the node's rate, and what it took.
type attempt struct {
	node string
	at   time.Time
	took time.Duration
}

func (m *model) step(op, a, b, c byte) {
	m.t.Helper()
	ctx := m.t.Context()
	node, gateway, instance := fmt.Sprint("n", a%3), fmt.Sprint("gw", b%3), fmt.Sprint("i", c%3)
	switch op % 13 {
	case 0, 1:
		m.register(node, gateway, instance, a>>4)
	case 2:
		r, want := m.pick(node, gateway, c)
		if want == nil {
			r.state = store.StateReady
		}
		m.same("ready", m.s.Ready(ctx, node, gateway, m.generation(r, c)), want)
	case 3:
		r, want := m.pick(node, gateway, c)
		if want == nil && r.state == store.StateReady {
			r.state = store.StateSuspect
		}
		if errors.Is(want, store.ErrDisabled) {
			want = store.ErrStale // its sessions are over
		}
		m.same("suspect", m.s.Suspect(ctx, node, gateway, m.generation(r, c)), want)
	case 4:
		r, want := m.pick(node, gateway, c)
		if want == nil {
			r.over = true
		}
		if errors.Is(want, store.ErrDisabled) {
			want = store.ErrStale
		}
		m.same("gone", m.s.Gone(ctx, node, gateway, m.generation(r, c)), want)
	case 5:
		m.clock.Advance(time.Duration(int8(a)) * time.Second / 4)
	case 6:
		m.publish(fmt.Sprint("d", a%3))
	case 7:
		m.revoke(node, b%2 == 0, uint64(c))
	case 8:
		jti, uses := fmt.Sprint("t", a%4), int(b%4)+1
		var want error
		if m.used[jti] >= uses {
			want = store.ErrTokenSpent
		} else {
			m.used[jti]++
		}
		m.same("redeem", m.s.RedeemToken(ctx, jti, uses, m.clock.Now().Add(24*time.Hour)), want)
	case 9:
		m.drained[node] = b%2 == 0
		m.same("drain", m.s.Drain(ctx, node, b%2 == 0), nil)
	case 10:
		m.beat(gateway, c)
	case 11:
		m.epoch(gateway)
	case 12:
		m.reassert(node, gateway, c)
	}
	m.compare(node)
}

func (m *model) register(node, gateway, instance string, ahead byte) {
	m.t.Helper()
	now := m.clock.Now()
	watermark := uint64(0)
	if ahead > 0 {
		watermark = m.clock.Millis() + uint64(ahead) - 8
	}
	last := m.last(node)
	var want error
	switch {
	case m.disabled(node):
		want = store.ErrDisabled
	case !m.allowed(node, now):
		want = store.ErrRateLimited
		m.attempts = append(m.attempts, attempt{node, now, 0})
	default:
		m.attempts = append(m.attempts, attempt{node, now, time.Second})
	}
	g, err := m.s.Register(m.t.Context(), store.Registration{
		Node: node, Gateway: gateway, Instance: instance, Watermark: watermark, Epoch: m.epochs[gateway],
	})
	m.same("register", err, want)
	if want != nil {
		return
	}
	expect := max(m.clock.Millis(), watermark+1)
	if last != nil {
		expect = max(expect, last.generation+1)
	}
	if g != expect {
		m.t.Fatalf("generation %d, want %d", g, expect)
	}
	for _, r := range m.log {
		if r.node == node && (r.gateway == gateway || r.instance != instance) {
			r.over = true
		}
	}
	if last == nil || last.instance != instance {
		m.floors[node] = g
	}
	m.alive(gateway)
	m.log = append(m.log, &registered{node: node, gateway: gateway, instance: instance, generation: g, state: store.StateRegistered, since: now})
}

// alive is the first that a shared store hears of a gateway.
func (m *model) alive(gateway string) {
	if _, known := m.beats[gateway]; !known {
		m.beats[gateway] = m.clock.Now()
	}
}

// owned says whether the session's gateway has shown that it lives.
func (m *model) owned(r *registered) bool {
	last := r.since
	if beat := m.beats[r.gateway]; beat.After(last) {
		last = beat
	}
	return m.clock.Now().Sub(last) < store.OwnerTTL
}

// beat names the gateway's sessions, or all but one, and one of any.
func (m *model) beat(gateway string, c byte) {
	m.t.Helper()
	if len(m.log) == 0 {
		return
	}
	var held []store.Held
	var want []store.Verdict
	name := func(r *registered, v store.Verdict) {
		held, want = append(held, store.Held{Node: r.node, Generation: r.generation}), append(want, v)
	}
	some, omit := m.log[int(c)%len(m.log)], c%8 == 0
	switch mine := m.live(some.node, gateway); {
	case mine != nil && some.generation == mine.generation:
		name(some, store.VerdictOK)
	case m.disabled(some.node), some.generation < m.floors[some.node], mine != nil && some.generation < mine.generation:
		name(some, store.VerdictSuperseded)
	default:
		name(some, store.VerdictMissing)
	}
	for _, r := range m.log {
		switch {
		case r.gateway != gateway || r.over || r == some:
		case omit:
			omit = false
			r.over = m.clock.Now().Sub(r.since) >= store.OwnerTTL
		default:
			name(r, store.VerdictOK)
		}
	}
	m.beats[gateway] = m.clock.Now()
	got, err := m.s.Beat(m.t.Context(), gateway, m.epochs[gateway], held)
	m.same("beat", err, nil)
	if !slices.Equal(got.Verdicts, want) {
		m.t.Fatalf("verdicts %v, want %v, of %v", got.Verdicts, want, held)
	}
}

func (m *model) epoch(gateway string) {
	m.t.Helper()
	want := max(m.epochs[gateway]+1, m.clock.Millis())
	got, err := m.s.Epoch(m.t.Context(), gateway)
	if err != nil || got != want {
		m.t.Fatalf("epoch %d, %v, want %d", got, err, want)
	}
	m.epochs[gateway], m.beats[gateway] = got, m.clock.Now()
	for _, r := range m.log {
		r.over = r.over || r.gateway == gateway
	}
}

// reassert tells of a session that there once was.
func (m *model) reassert(node, gateway string, c byte) {
	m.t.Helper()
	r, _ := m.pick(node, gateway, c)
	if r == nil {
		return
	}
	states := []store.State{store.StateRegistered, store.StateReady, store.StateSuspect}
	state, live, want := states[c%3], m.live(node, gateway), store.VerdictOK
	if m.disabled(node) || r.generation < m.floors[node] || m.last(node).instance != r.instance || live != nil && live.generation > r.generation {
		want = store.VerdictSuperseded
	} else {
		if live != nil && live != r {
			live.over = true
		}
		if r.over {
			r.since = m.clock.Now()
		}
		r.over, r.state = false, state
	}
	m.beats[gateway] = m.clock.Now()
	got, err := m.s.Reassert(m.t.Context(), store.Assertion{
		Gateway: gateway, Epoch: m.epochs[gateway],
		Sessions: []store.SessionClaim{{Node: node, Instance: r.instance, Generation: r.generation, State: state}},
	})
	m.same("reassert", err, nil)
	if !slices.Equal(got.Verdicts, []store.Verdict{want}) {
		m.t.Fatalf("verdicts %v, want %v", got.Verdicts, want)
	}
}

// live is a node's session with a gateway.
func (m *model) live(node, gateway string) *registered {
	for _, r := range m.log {
		if r.node == node && r.gateway == gateway && !r.over {
			return r
		}
	}
	return nil
}

// allowed replays the node's registrations through a bucket that counts in
// tokens and fills by the second; a clock set back fills nothing.
func (m *model) allowed(node string, now time.Time) bool {
	tokens, last := 5*time.Second, time.Time{}
	tick := func(t time.Time) {
		if !last.IsZero() && t.After(last) {
			tokens = min(tokens+t.Sub(last), 5*time.Second)
		}
		last = t
	}
	for _, a := range m.attempts {
		if a.node == node {
			tick(a.at)
			tokens -= a.took
		}
	}
	tick(now)
	return tokens >= time.Second
}

func (m *model) publish(digest string) {
	m.t.Helper()
	want := m.pgn
	if digest != m.digest || m.pgn < m.minPGN {
		want = max(m.pgn+1, m.minPGN, m.clock.Millis())
	}
	m.pgn, m.digest = want, digest
	got, err := m.s.Publish(m.t.Context(), map[string]string{"all": digest})
	if err != nil || got.PGN != want {
		m.t.Fatalf("publish: %d, %v, want %d", got.PGN, err, want)
	}
}

func (m *model) revoke(node string, on bool, pgn uint64) {
	m.t.Helper()
	subject := store.Subject(store.SubjectNode, node)
	if !on {
		m.revoked = slices.DeleteFunc(m.revoked, func(s string) bool { return s == subject })
		m.same("unrevoke", m.s.Unrevoke(m.t.Context(), []string{subject}), nil)
		return
	}
	if !m.disabled(node) {
		m.revoked = append(m.revoked, subject)
	}
	if last := m.last(node); last != nil {
		m.floors[node] = last.generation + 1
	}
	for _, r := range m.log {
		r.over = r.over || r.node == node
	}
	m.minPGN = max(m.minPGN, pgn)
	got, err := m.s.Revoke(m.t.Context(), []string{subject}, pgn)
	if err != nil || got != m.minPGN {
		m.t.Fatalf("revoke: min_pgn %d, %v, want %d", got, err, m.minPGN)
	}
}

// compare asks everything that can be asked of a node.
func (m *model) compare(node string) {
	m.t.Helper()
	ctx := m.t.Context()
	rec, err := m.s.Node(ctx, node)
	m.same("node", err, nil)
	live := 0
	for _, r := range m.log {
		if r.node != node {
			continue
		}
		want := store.ErrStale
		switch {
		case m.disabled(node):
			want = store.ErrDisabled
		case r.over:
		case r.state != store.StateReady, m.shared && !m.owned(r):
			want = store.ErrNotReady
		default:
			want = nil
		}
		m.same("fence", m.s.Fence(ctx, node, r.gateway, r.generation), want)
		if !r.over {
			live++
			if !slices.ContainsFunc(rec.Sessions, func(s store.Session) bool {
				return s.Gateway == r.gateway && s.Generation == r.generation && s.State == r.state
			}) {
				m.t.Fatalf("record %+v lacks %+v", rec, r)
			}
		}
	}
	last := m.last(node)
	if len(rec.Sessions) != live || rec.Disabled != m.disabled(node) || rec.Draining != m.drained[node] ||
		last != nil && (rec.Generation != last.generation || rec.Instance != last.instance) {
		m.t.Fatalf("record %+v, want %d sessions", rec, live)
	}
}

// pick is the session that a call is about, current or not, and its answer.
func (m *model) pick(node, gateway string, c byte) (*registered, error) {
	var mine []*registered
	for _, r := range m.log {
		if r.node == node && r.gateway == gateway {
			mine = append(mine, r)
		}
	}
	var r *registered
	if len(mine) > 0 {
		r = mine[len(mine)-1-int(c)%min(len(mine), 3)]
	}
	switch {
	case m.disabled(node):
		return r, store.ErrDisabled
	case r == nil || r.over:
		return r, store.ErrStale
	}
	return r, nil
}

func (m *model) generation(r *registered, c byte) uint64 {
	if r == nil {
		return uint64(c)
	}
	return r.generation
}

func (m *model) last(node string) *registered {
	for _, r := range slices.Backward(m.log) {
		if r.node == node {
			return r
		}
	}
	return nil
}

func (m *model) disabled(node string) bool {
	return slices.Contains(m.revoked, store.Subject(store.SubjectNode, node))
}

func (m *model) same(what string, got, want error) {
	m.t.Helper()
	if want == nil && got != nil || want != nil && !errors.Is(got, want) {
		m.t.Fatalf("%s: %v, want %v", what, got, want)
	}
}
