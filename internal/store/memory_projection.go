package store

import (
	"context"
	"errors"
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

// next is the document with that set, at the version that number gives.
func (d *revokedDoc) next(set map[string]struct{}, minPGN uint64, number func() uint64) (*revokedDoc, error) {
	if len(set) == len(d.Subjects) && minPGN == d.MinPGN {
		return d, nil // both changes only add or only remove
	}
	if len(set) > maxRevoked && len(set) > len(d.Subjects) {
		return nil, ErrFull
	}
	to := &revokedDoc{Subjects: slices.Sorted(maps.Keys(set)), MinPGN: minPGN, version: number()}
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

// maxObjects bounds what one projection has.
const maxObjects = 10_000

// publishedDoc is the projection that was published last.
type publishedDoc struct {
	PGN     uint64            `json:"pgn"`
	Objects map[string]object `json:"objects"`
}

type object struct {
	Digest   string `json:"digest"`
	Revision uint64 `json:"revision"`
}

// same reports whether d is the projection of these objects.
func (d *publishedDoc) same(objects map[string]string) bool {
	if d.PGN == 0 || len(objects) != len(d.Objects) {
		return false
	}
	for name, digest := range objects {
		if o, ok := d.Objects[name]; !ok || o.Digest != digest {
			return false
		}
	}
	return true
}

// next is the document of the projection of these objects under a new number.
func (d *publishedDoc) next(objects map[string]string, pgn uint64) *publishedDoc {
	to := &publishedDoc{PGN: pgn, Objects: make(map[string]object, len(objects))}
	for name, digest := range objects {
		o := object{Digest: digest, Revision: pgn}
		if old, ok := d.Objects[name]; ok && old.Digest == digest {
			o.Revision = old.Revision
		}
		to.Objects[name] = o
	}
	return to
}

// Publish implements [Projections].
func (m *Memory) Publish(ctx context.Context, objects map[string]string) (Publication, error) {
	if err := checkObjects(objects); err != nil {
		return Publication{}, err
	}
	var now *publishedDoc
	err := m.published.changeFirst(ctx, func(d *publishedDoc) (*publishedDoc, error) {
		least := m.revoked.read().MinPGN
		if now = d; d.same(objects) && d.PGN >= least {
			return d, nil
		}
		pgn, err := allocate(d.PGN, m.now(), least)
		if err != nil {
			return nil, err
		}
		now = d.next(objects, pgn)
		return now, nil
	})
	if err != nil {
		err = fmt.Errorf("publish a projection: %w", err)
		if !errors.Is(err, ErrNotDurable) {
			return Publication{}, err
		}
	}
	p := Publication{PGN: now.PGN, Revisions: make(map[string]uint64, len(now.Objects))}
	for name, o := range now.Objects {
		p.Revisions[name] = o.Revision
	}
	return p, err
}

func checkObjects(objects map[string]string) error {
	if len(objects) > maxObjects {
		return fmt.Errorf("%w: %d objects, at most %d", ErrInvalid, len(objects), maxObjects)
	}
	for name, digest := range objects {
		if err := named("object", name); err != nil {
			return err
		}
		if err := named("digest", digest); err != nil {
			return err
		}
	}
	return nil
}

// Revoke implements [Projections].
func (m *Memory) Revoke(ctx context.Context, subjects []string, pgn uint64) (uint64, error) {
	if err := checkSubjects(subjects); err != nil {
		return 0, err
	}
	if pgn >= maxNumber {
		return 0, fmt.Errorf("%w: pgn %d", ErrInvalid, pgn)
	}
	m.marks.begin()
	defer m.marks.end()
	err := m.revoke(ctx, subjects, pgn)
	return m.revoked.read().MinPGN, err
}

// revoke is called within a change of marks.
func (m *Memory) revoke(ctx context.Context, subjects []string, pgn uint64) error {
	err := m.revoked.changeFirst(ctx, func(d *revokedDoc) (*revokedDoc, error) {
		set := d.set()
		for _, s := range subjects {
			set[s] = struct{}{}
		}
		return d.next(set, max(d.MinPGN, pgn), m.version)
	})
	m.endDisabled(subjects)
	if err != nil {
		return fmt.Errorf("revoke %d subjects: %w", len(subjects), err)
	}
	return nil
}

// version is the next one of the marks.
func (m *Memory) version() uint64 { return m.marks.next(m.now()) }

// Issue implements [Projections]. From the first look at the revocations to the answer is no more than a few map reads, so a revocation that was
// answered before Issue began is seen.
func (m *Memory) Issue(_ context.Context, i Issue) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if err := m.fence(i.Node, i.Gateway, i.Generation); err != nil {
		return err
	}
	d := m.revoked.read()
	if i.PGN < d.MinPGN {
		return ErrStaleProjection
	}
	for _, s := range i.Subjects {
		if _, is := slices.BinarySearch(d.Subjects, s); is {
			return ErrRevoked
		}
	}
	return nil
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
			n.floor = n.generation + 1 // not to be reasserted once the node is no longer revoked
		}
	}
}

// Unrevoke implements [Projections].
func (m *Memory) Unrevoke(ctx context.Context, subjects []string) error {
	if err := checkSubjects(subjects); err != nil {
		return err
	}
	m.marks.begin()
	defer m.marks.end()
	err := m.revoked.change(ctx, func(d *revokedDoc) (*revokedDoc, error) {
		set := d.set()
		for _, s := range subjects {
			delete(set, s)
		}
		return d.next(set, d.MinPGN, m.version)
	})
	if err != nil {
		return fmt.Errorf("unrevoke %d subjects: %w", len(subjects), err)
	}
	for _, s := range subjects {
		m.marks.restored(s, m.now())
	}
	return nil
}

// Revocations implements [Projections].
func (m *Memory) Revocations(context.Context) (Revocations, error) {
	r, d, version := m.marked()
	return Revocations{
		Subjects: slices.Clone(r.Subjects), MinPGN: r.MinPGN, Drained: slices.Sorted(maps.Keys(d.Nodes)), Version: version,
	}, nil
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
