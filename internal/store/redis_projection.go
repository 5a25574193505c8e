package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Publish implements [Projections].
func (r *Redis) Publish(ctx context.Context, objects map[string]string) (Publication, error) {
	if err := checkObjects(objects); err != nil {
		return Publication{}, err
	}
	names := slices.Sorted(maps.Keys(objects))
	args := make([]any, 1, 1+2*len(names))
	args[0] = len(names)
	for _, name := range names {
		args = append(args, name)
	}
	for _, name := range names {
		args = append(args, objects[name])
	}
	answer, err := r.call(ctx, opPublish, args...)
	if err != nil {
		return Publication{}, fmt.Errorf("publish a projection: %w", err)
	}
	d := decoder{rest: answer}
	p := Publication{PGN: d.number(), Revisions: make(map[string]uint64, len(names))}
	revisions := strings.Fields(d.text())
	if d.err != nil || len(revisions) != len(names) {
		return Publication{}, fmt.Errorf("publish a projection: %w", errAnswer)
	}
	for i, text := range revisions {
		if p.Revisions[names[i]], err = strconv.ParseUint(text, 10, 64); err != nil {
			return Publication{}, fmt.Errorf("publish a projection: %w", errAnswer)
		}
	}
	return p, nil
}

// Revoke implements [Projections]. With ErrNotDurable no replica has confirmed it in time: a failover may forget it, until
// the gateways tell it again.
func (r *Redis) Revoke(ctx context.Context, subjects []string, pgn uint64) (uint64, error) {
	if err := checkSubjects(subjects); err != nil {
		return 0, err
	}
	if pgn >= maxNumber {
		return 0, fmt.Errorf("%w: pgn %d", ErrInvalid, pgn)
	}
	answer, durable, err := r.callDurably(ctx, true, opRevoke, append([]any{pgn, maxRevoked}, anys(subjects)...)...)
	least, err := number(answer, err)
	if err == nil && !durable {
		err = fmt.Errorf("%w: no replica has confirmed it", ErrNotDurable)
	}
	if err != nil {
		return least, fmt.Errorf("revoke %d subjects: %w", len(subjects), err)
	}
	return least, nil
}

// Unrevoke implements [Projections].
func (r *Redis) Unrevoke(ctx context.Context, subjects []string) error {
	if err := checkSubjects(subjects); err != nil {
		return err
	}
	if _, _, err := r.callDurably(ctx, true, opUnrevoke, anys(subjects)...); err != nil {
		return fmt.Errorf("unrevoke %d subjects: %w", len(subjects), err)
	}
	return nil
}

// Revocations implements [Projections].
func (r *Redis) Revocations(ctx context.Context) (Revocations, error) {
	answer, err := r.call(ctx, opRevocations)
	if err != nil {
		return Revocations{}, fmt.Errorf("read the revocations: %w", err)
	}
	d := decoder{rest: answer}
	v := Revocations{Subjects: d.texts(), MinPGN: d.number(), Drained: d.texts(), Version: d.number()}
	slices.Sort(v.Subjects)
	slices.Sort(v.Drained)
	return v, d.err
}

// MinPGN implements [Projections].
func (r *Redis) MinPGN(ctx context.Context) (uint64, error) {
	least, err := number(r.call(ctx, opMinPGN))
	if err != nil {
		return 0, fmt.Errorf("read min_pgn: %w", err)
	}
	return least, nil
}

// Issue implements [Projections].
func (r *Redis) Issue(ctx context.Context, i Issue) error {
	if len(i.Subjects) > maxBatch {
		return fmt.Errorf("%w: %d subjects, at most %d", ErrInvalid, len(i.Subjects), maxBatch)
	}
	if err := r.primary.doubt(); err != nil {
		return err
	}
	_, err := r.call(ctx, opIssue, append([]any{i.Node, i.Gateway, decimal(i.Generation), i.PGN}, anys(i.Subjects)...)...)
	return err
}

// Drain implements [Drains].
func (r *Redis) Drain(ctx context.Context, node string, on bool) error {
	if err := named("node", node); err != nil {
		return err
	}
	what := 0
	if on {
		what = 1
	}
	if _, _, err := r.callDurably(ctx, false, opDrain, node, what, maxDrained); err != nil {
		return fmt.Errorf("drain node %s: %w", node, err)
	}
	return nil
}

// Draining implements [Drains].
func (r *Redis) Draining(ctx context.Context, node string) (bool, error) {
	record, err := r.Node(ctx, node)
	return record.Draining, err
}

func anys[T any](list []T) []any {
	out := make([]any, len(list))
	for i, v := range list {
		out[i] = v
	}
	return out
}
