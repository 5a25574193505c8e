package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
)

// maxRevoked bounds the revoked set. It bridges the time until a projection
// without the objects is out everywhere; nodes stay in it for good.
const maxRevoked = 10_000

// revokedDoc is the revoked set.
type revokedDoc struct {
	Subjects []string `json:"subjects"` // sorted
	MinPGN   uint64   `json:"min_pgn"`

	nodes   map[string]struct{} // those of Subjects that are nodes
	version uint64              // of this process: storage does not have it
}

// index derives what is looked up on hot paths. Only before d is shared.
func (d *revokedDoc) index() {
	slices.Sort(d.Subjects)
	d.Subjects = slices.Compact(d.Subjects)
	d.nodes = map[string]struct{}{}
	for _, s := range d.Subjects {
		if node, ok := revokedNode(s); ok {
			d.nodes[node] = struct{}{}
		}
	}
}

// next is the document with that set, one version on.
func (d *revokedDoc) next(set map[string]struct{}, minPGN uint64) (*revokedDoc, error) {
	if len(set) == len(d.Subjects) && minPGN == d.MinPGN {
		return d, nil // both changes only add or only remove
	}
	if len(set) > maxRevoked && len(set) > len(d.Subjects) {
		return nil, ErrFull
	}
	to := &revokedDoc{Subjects: slices.Sorted(maps.Keys(set)), MinPGN: minPGN, version: d.version + 1}
	to.index()
	return to, nil
}

func (d *revokedDoc) set() map[string]struct{} {
	set := make(map[string]struct{}, len(d.Subjects))
	for _, s := range d.Subjects {
		set[s] = struct{}{}
	}
	return set
}

// Publish implements [Projections].
func (m *Memory) Publish(_ context.Context, digest string) (uint64, error) {
	if err := named("digest", digest); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	least := m.revoked.read().MinPGN
	if digest == m.digest && m.pgn >= least {
		return m.pgn, nil
	}
	pgn, err := allocate(m.pgn, m.now(), least)
	if err != nil {
		return 0, fmt.Errorf("publish projection %s: %w", digest, err)
	}
	m.pgn, m.digest = pgn, digest
	return pgn, nil
}

// Revoke implements [Projections].
func (m *Memory) Revoke(ctx context.Context, subjects []string, pgn uint64) (uint64, error) {
	if err := checkSubjects(subjects); err != nil {
		return 0, err
	}
	if pgn >= maxNumber {
		return 0, fmt.Errorf("%w: pgn %d", ErrInvalid, pgn)
	}
	err := m.revoked.changeFirst(ctx, func(d *revokedDoc) (*revokedDoc, error) {
		set := d.set()
		for _, s := range subjects {
			set[s] = struct{}{}
		}
		return d.next(set, max(d.MinPGN, pgn))
	})
	if err != nil {
		err = fmt.Errorf("revoke %d subjects: %w", len(subjects), err)
	}
	m.endDisabled(subjects)
	return m.revoked.read().MinPGN, err
}

// endDisabled ends the sessions of the nodes that are now revoked. From before
// that, Register, Ready and Fence refuse them, so none comes up in between.
func (m *Memory) endDisabled(subjects []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range subjects {
		node, _ := revokedNode(s)
		if n := m.nodes[node]; n != nil && m.disabled(node) {
			clear(n.sessions)
		}
	}
}

// Unrevoke implements [Projections].
func (m *Memory) Unrevoke(ctx context.Context, subjects []string) error {
	if err := checkSubjects(subjects); err != nil {
		return err
	}
	err := m.revoked.change(ctx, func(d *revokedDoc) (*revokedDoc, error) {
		set := d.set()
		for _, s := range subjects {
			delete(set, s)
		}
		return d.next(set, d.MinPGN)
	})
	if err != nil {
		return fmt.Errorf("unrevoke %d subjects: %w", len(subjects), err)
	}
	return nil
}

// Revocations implements [Projections].
func (m *Memory) Revocations(context.Context) (Revocations, error) {
	d := m.revoked.read()
	return Revocations{Subjects: slices.Clone(d.Subjects), MinPGN: d.MinPGN, Version: d.version}, nil
}

// MinPGN implements [Projections].
func (m *Memory) MinPGN(context.Context) (uint64, error) { return m.revoked.read().MinPGN, nil }

func checkSubjects(subjects []string) error {
	if len(subjects) > maxBatch {
		return fmt.Errorf("%w: %d subjects, at most %d", ErrInvalid, len(subjects), maxBatch)
	}
	for _, s := range subjects {
		if err := named("subject", s); err != nil {
			return err
		}
	}
	return nil
}
