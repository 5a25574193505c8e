package store

import (
	"context"
	"fmt"
	"time"
)

// Reassert implements [Store]. A Memory loses nothing while its process lives, so this is for callers that need not know
// which store they have.
func (m *Memory) Reassert(ctx context.Context, a Assertion) (BeatResult, error) {
	if err := a.check(); err != nil {
		return BeatResult{}, err
	}
	result, err := m.reassert(ctx, &a)
	if err != nil {
		return BeatResult{}, fmt.Errorf("reassert gateway %s: %w", a.Gateway, err)
	}
	return result, nil
}

// reassert takes over the sessions last: none of a node that is revoked.
func (m *Memory) reassert(ctx context.Context, a *Assertion) (BeatResult, error) {
	if !m.lives(a.Gateway, a.Epoch) {
		return BeatResult{}, ErrStaleEpoch
	}
	if err := m.remark(ctx, &a.Revocations); err != nil {
		return BeatResult{}, err
	}
	if err := m.republish(ctx, a); err != nil {
		return BeatResult{}, err
	}
	return m.claimAll(a)
}

func (m *Memory) lives(gateway string, epoch uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.enter(gateway, epoch) != nil
}

func (m *Memory) claimAll(a *Assertion) (BeatResult, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	g := m.enter(a.Gateway, a.Epoch)
	if g == nil {
		return BeatResult{}, ErrStaleEpoch
	}
	g.beat = now
	_, _, version := m.marked()
	result := BeatResult{Incarnation: m.incarnation, Revocations: version, Verdicts: make([]Verdict, len(a.Sessions))}
	for i, c := range a.Sessions {
		result.Verdicts[i] = m.claim(a.Gateway, c, now)
	}
	return result, nil
}

// claim takes over a session unless it is known to be over. Generations of a node rise through all its instances: that
// tells which of two has won. Called with mu held.
func (m *Memory) claim(gateway string, c SessionClaim, now time.Time) Verdict {
	if m.disabled(c.Node) {
		return VerdictSuperseded
	}
	n := m.nodes[c.Node]
	if n == nil {
		n = &nodeState{sessions: map[string]*session{}}
		m.nodes[c.Node] = n
	}
	newer := n.instance != c.Instance && c.Generation > n.generation
	s := n.sessions[gateway]
	switch {
	case c.Generation < n.floor, n.instance != c.Instance && !newer, s != nil && s.generation > c.Generation:
		return VerdictSuperseded
	case newer && n.instance != "":
		n.floor = n.generation + 1
		clear(n.sessions)
		s = nil
	}
	n.instance, n.generation = c.Instance, max(n.generation, c.Generation)
	if s != nil && s.generation == c.Generation {
		s.state = c.State
		return VerdictOK
	}
	n.sessions[gateway] = &session{generation: c.Generation, state: c.State, since: now}
	return VerdictOK
}

// remark revokes and drains again what was not taken back since r was read.
func (m *Memory) remark(ctx context.Context, r *Revocations) error {
	m.marks.begin()
	defer m.marks.end()
	m.marks.version = max(m.marks.version, r.Version)
	var subjects []string
	for _, s := range r.Subjects {
		if !m.marks.since(s, r.Version) {
			subjects = append(subjects, s)
		}
	}
	if err := m.revoke(ctx, subjects, r.MinPGN); err != nil {
		return err
	}
	var nodes []string
	for _, n := range r.Drained {
		if !m.marks.since(drainSubject(n), r.Version) {
			nodes = append(nodes, n)
		}
	}
	return m.drain(ctx, nodes, true)
}

// republish takes over a projection that is later than the one known.
func (m *Memory) republish(ctx context.Context, a *Assertion) error {
	if a.Publication.PGN == 0 {
		return nil
	}
	return m.published.changeFirst(ctx, func(d *publishedDoc) (*publishedDoc, error) {
		if a.Publication.PGN <= d.PGN {
			return d, nil
		}
		to := &publishedDoc{PGN: a.Publication.PGN, Objects: make(map[string]object, len(a.Objects))}
		for name, digest := range a.Objects {
			to.Objects[name] = object{Digest: digest, Revision: a.Publication.Revisions[name]}
		}
		return to, nil
	})
}
