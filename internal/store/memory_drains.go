package store

import (
	"context"
	"fmt"
	"maps"
	"time"
)

// maxDrained bounds the drained set.
const maxDrained = 10_000

// drainedDoc is the set of drained nodes, with when that was, for people.
type drainedDoc struct {
	Nodes map[string]time.Time `json:"nodes"`

	version uint64 // of this process, as revokedDoc's
}

// Drain implements [Drains].
func (m *Memory) Drain(ctx context.Context, node string, on bool) error {
	if err := named("node", node); err != nil {
		return err
	}
	m.marks.begin()
	defer m.marks.end()
	if err := m.drain(ctx, []string{node}, on); err != nil {
		return fmt.Errorf("drain node %s: %w", node, err)
	}
	if !on {
		m.marks.restored(drainSubject(node), m.now())
	}
	return nil
}

// drain is called within a change of marks.
func (m *Memory) drain(ctx context.Context, nodes []string, on bool) error {
	return m.drained.change(ctx, func(d *drainedDoc) (*drainedDoc, error) {
		next := &drainedDoc{Nodes: maps.Clone(d.Nodes)}
		if next.Nodes == nil {
			next.Nodes = map[string]time.Time{}
		}
		for _, node := range nodes {
			if !on {
				delete(next.Nodes, node)
			} else if !next.has(node) {
				next.Nodes[node] = m.now().UTC()
			}
		}
		switch {
		case len(next.Nodes) == len(d.Nodes): // changes only add, or only remove
			return d, nil
		case len(next.Nodes) > maxDrained && on:
			return nil, ErrFull
		}
		next.version = m.version()
		return next, nil
	})
}

// Draining implements [Drains].
func (m *Memory) Draining(_ context.Context, node string) (bool, error) {
	return m.drained.read().has(node), nil
}

func (d *drainedDoc) has(node string) bool {
	_, is := d.Nodes[node]
	return is
}
