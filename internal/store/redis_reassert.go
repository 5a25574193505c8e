package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
)

// claimChunk is how many sessions one script takes over, and how many marks: a few milliseconds.
const claimChunk = 500

// Reassert implements [Store]. It takes a round trip for every 500 sessions and every 500 marks, each within the budget.
// Every part can be told again, so that one which fails halfway does no harm.
func (r *Redis) Reassert(ctx context.Context, a Assertion) (BeatResult, error) {
	if err := a.check(); err != nil {
		return BeatResult{}, err
	}
	result, err := r.reassert(ctx, &a)
	if err != nil {
		return BeatResult{}, fmt.Errorf("reassert gateway %s: %w", a.Gateway, err)
	}
	return result, nil
}

// reassert takes over the sessions last: none of a node that is revoked.
func (r *Redis) reassert(ctx context.Context, a *Assertion) (BeatResult, error) {
	episode := r.primary.now()
	if err := r.remark(ctx, a); err != nil {
		return BeatResult{}, err
	}
	if err := r.republish(ctx, a); err != nil {
		return BeatResult{}, err
	}
	claimed, err := r.claim(ctx, a)
	if err != nil {
		return BeatResult{}, err
	}
	held := make([]Held, len(a.Sessions))
	for i, c := range a.Sessions {
		held[i] = Held{c.Node, c.Generation}
	}
	result, _, err := r.beat(ctx, a.Gateway, a.Epoch, held)
	if err != nil {
		return BeatResult{}, err
	}
	if err := r.primary.vouch(episode); err != nil { // it is another one again
		return BeatResult{}, err
	}
	for i, v := range claimed {
		if v == VerdictSuperseded { // by a claim of later data; a beat would call it missing
			result.Verdicts[i] = v
		}
	}
	return result, nil
}

func (r *Redis) remark(ctx context.Context, a *Assertion) error {
	v := &a.Revocations
	send := func(subjects, drained []string) error {
		args := append([]any{a.Gateway, a.Epoch, v.Version, v.MinPGN, len(subjects)}, anys(subjects)...)
		_, err := r.call(ctx, opRemark, append(args, anys(drained)...)...)
		return err
	}
	if err := send(nil, nil); err != nil { // min_pgn, and whether this is the gateway's process
		return err
	}
	for chunk := range slices.Chunk(v.Subjects, claimChunk) {
		if err := send(chunk, nil); err != nil {
			return err
		}
	}
	for chunk := range slices.Chunk(v.Drained, claimChunk) {
		if err := send(nil, chunk); err != nil {
			return err
		}
	}
	return nil
}

func (r *Redis) republish(ctx context.Context, a *Assertion) error {
	if a.Publication.PGN == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(a.Objects))
	args := []any{a.Publication.PGN, len(names)}
	for _, name := range names {
		args = append(args, name)
	}
	for _, name := range names {
		args = append(args, decimal(a.Publication.Revisions[name])+" "+a.Objects[name])
	}
	_, err := r.call(ctx, opRepublish, args...)
	return err
}

func (r *Redis) claim(ctx context.Context, a *Assertion) ([]Verdict, error) {
	var out []Verdict
	for chunk := range slices.Chunk(a.Sessions, claimChunk) {
		args := []any{a.Gateway, a.Epoch}
		for _, c := range chunk {
			args = append(args, c.Node, c.Instance, decimal(c.Generation), string(c.State))
		}
		answer, err := r.call(ctx, opClaim, args...)
		if err != nil {
			return nil, err
		}
		d := decoder{rest: answer}
		if out = d.verdicts(out); d.err != nil {
			return nil, d.err
		}
	}
	if len(out) != len(a.Sessions) {
		return nil, errAnswer
	}
	return out, nil
}
