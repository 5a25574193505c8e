package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// nodeState is a node and its sessions, by gateway. Sessions that another
// instance has superseded are not kept: a generation below floor is none.
type nodeState struct {
	instance   string
	generation uint64
	floor      uint64
	rate       rate
	sessions   map[string]*session
}

type session struct {
	generation uint64
	state      State
	since      time.Time
}

type gatewayState struct {
	epoch uint64
	beat  time.Time
	about About
	met   time.Time // zero: never
}

// Epoch implements [Sessions].
func (m *Memory) Epoch(_ context.Context, gateway string) (uint64, error) {
	if err := named("gateway", gateway); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	g := m.gateway(gateway)
	epoch, err := allocate(g.epoch, now, 0)
	if err != nil {
		return 0, fmt.Errorf("begin epoch of gateway %s: %w", gateway, err)
	}
	m.enter(gateway, epoch).beat = now
	return epoch, nil
}

// enter is the gateway's record if epoch is its current process, or a later one, which ends the sessions of those
// before; else nil. Called with mu held for writing.
func (m *Memory) enter(gateway string, epoch uint64) *gatewayState {
	g := m.gateway(gateway)
	if epoch < g.epoch {
		return nil
	}
	if epoch > g.epoch {
		g.epoch = epoch
		for _, n := range m.nodes {
			delete(n.sessions, gateway)
		}
	}
	return g
}

// Register implements [Sessions].
func (m *Memory) Register(_ context.Context, r Registration) (uint64, error) {
	if err := checkRegistration(r); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	generation, err := m.register(r, m.now())
	if err != nil {
		return 0, fmt.Errorf("register node %s at gateway %s: %w", r.Node, r.Gateway, err)
	}
	return generation, nil
}

// register is called with mu held.
func (m *Memory) register(r Registration, now time.Time) (uint64, error) {
	if m.disabled(r.Node) {
		return 0, ErrDisabled
	}
	n := m.nodes[r.Node]
	if n == nil {
		n = &nodeState{sessions: map[string]*session{}}
		m.nodes[r.Node] = n
	}
	if !n.rate.take(now) {
		return 0, ErrRateLimited
	}
	if !plausible(r.Watermark, n.generation, now) {
		return 0, ErrWatermarkImplausible
	}
	if g := m.gateways[r.Gateway]; g != nil && r.Epoch < g.epoch {
		return 0, ErrStaleEpoch
	}
	generation, err := allocate(n.generation, now, r.Watermark+1)
	if err != nil {
		return 0, err
	}
	m.enter(r.Gateway, r.Epoch)
	n.generation = generation
	if n.instance != r.Instance {
		n.instance, n.floor = r.Instance, generation
		clear(n.sessions)
	}
	n.sessions[r.Gateway] = &session{generation: generation, state: StateRegistered, since: now}
	return generation, nil
}

// Node implements [Sessions].
func (m *Memory) Node(_ context.Context, node string) (NodeRecord, error) {
	if err := named("node", node); err != nil {
		return NodeRecord{}, err
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	record := NodeRecord{Node: node, Disabled: m.disabled(node), Draining: m.drained.read().has(node)}
	n := m.nodes[node]
	if n == nil {
		return record, nil
	}
	record.Instance, record.Generation, record.Floor = n.instance, n.generation, n.floor
	now := m.now()
	for gateway, s := range n.sessions {
		last := s.since
		if g := m.gateways[gateway]; g != nil && g.beat.After(last) {
			last = g.beat
		}
		record.Sessions = append(record.Sessions, Session{
			Gateway: gateway, Generation: s.generation, State: s.state, BeatAge: max(now.Sub(last), 0),
		})
	}
	slices.SortFunc(record.Sessions, func(a, b Session) int { return strings.Compare(a.Gateway, b.Gateway) })
	return record, nil
}

// Ready implements [Sessions].
func (m *Memory) Ready(_ context.Context, node, gateway string, generation uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.current(node, gateway, generation)
	switch {
	case m.disabled(node):
		return fmt.Errorf("ready node %s: %w", node, ErrDisabled)
	case s == nil:
		return fmt.Errorf("ready node %s at gateway %s, generation %d: %w", node, gateway, generation, ErrStale)
	}
	s.state = StateReady
	return nil
}

// Suspect implements [Sessions].
func (m *Memory) Suspect(_ context.Context, node, gateway string, generation uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.current(node, gateway, generation)
	if s == nil {
		return fmt.Errorf("suspect node %s at gateway %s, generation %d: %w", node, gateway, generation, ErrStale)
	}
	if s.state == StateReady {
		s.state = StateSuspect
	}
	return nil
}

// Gone implements [Sessions].
func (m *Memory) Gone(_ context.Context, node, gateway string, generation uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.current(node, gateway, generation) == nil {
		return fmt.Errorf("end node %s at gateway %s, generation %d: %w", node, gateway, generation, ErrStale)
	}
	delete(m.nodes[node].sessions, gateway)
	return nil
}

// Fence implements [Sessions]. It reads two maps under a shared lock and
// allocates nothing.
func (m *Memory) Fence(_ context.Context, node, gateway string, generation uint64) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.fence(node, gateway, generation)
}

// fence is called with mu held.
func (m *Memory) fence(node, gateway string, generation uint64) error {
	s := m.current(node, gateway, generation)
	switch {
	case m.disabled(node):
		return ErrDisabled
	case s == nil:
		return ErrStale
	case s.state != StateReady:
		return ErrNotReady
	}
	return nil
}

// Beat implements [Sessions].
func (m *Memory) Beat(_ context.Context, gateway string, epoch uint64, sessions []Held) (BeatResult, error) {
	if err := checkGateway(gateway, epoch); err != nil {
		return BeatResult{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	g := m.enter(gateway, epoch)
	if g == nil {
		return BeatResult{}, fmt.Errorf("beat of gateway %s, epoch %d: %w", gateway, epoch, ErrStaleEpoch)
	}
	g.beat = now
	_, _, version := m.marked()
	result := BeatResult{Incarnation: m.incarnation, Revocations: version, Verdicts: make([]Verdict, len(sessions))}
	held := make(map[Held]struct{}, len(sessions))
	for i, h := range sessions {
		result.Verdicts[i] = m.verdict(gateway, h)
		held[h] = struct{}{}
	}
	for name, n := range m.nodes {
		s := n.sessions[gateway]
		if s == nil || now.Sub(s.since) < OwnerTTL {
			continue
		}
		if _, is := held[Held{name, s.generation}]; !is {
			delete(n.sessions, gateway)
		}
	}
	return result, nil
}

// verdict is called with mu held.
func (m *Memory) verdict(gateway string, h Held) Verdict {
	if m.disabled(h.Node) {
		return VerdictSuperseded
	}
	n := m.nodes[h.Node]
	if n == nil {
		return VerdictMissing
	}
	s := n.sessions[gateway]
	switch {
	case s != nil && s.generation == h.Generation:
		return VerdictOK
	case h.Generation < n.floor, s != nil && h.Generation < s.generation:
		return VerdictSuperseded
	default:
		return VerdictMissing
	}
}

// current is the session of that very generation, or nil. Called with mu held.
func (m *Memory) current(node, gateway string, generation uint64) *session {
	n := m.nodes[node]
	if n == nil {
		return nil
	}
	if s := n.sessions[gateway]; s != nil && s.generation == generation {
		return s
	}
	return nil
}

// gateway is called with mu held for writing.
func (m *Memory) gateway(name string) *gatewayState {
	g := m.gateways[name]
	if g == nil {
		g = &gatewayState{}
		m.gateways[name] = g
	}
	return g
}

func (m *Memory) disabled(node string) bool {
	_, is := m.revoked.read().nodes[node]
	return is
}
