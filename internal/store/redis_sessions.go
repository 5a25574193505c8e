package store

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// beatChunk is how many sessions one script looks at: two or three milliseconds, in which the server does nothing else.
const beatChunk = 2500

// Register implements [Sessions]. An answer that is lost costs a number: the node registers again.
func (r *Redis) Register(ctx context.Context, g Registration) (uint64, error) {
	if err := checkRegistration(g); err != nil {
		return 0, err
	}
	answer, _, err := r.callDurably(ctx, false, opRegister, g.Node, g.Gateway, g.Instance, min(g.Watermark, maxNumber), g.Epoch)
	generation, err := number(answer, err)
	if err != nil {
		return 0, fmt.Errorf("register node %s at gateway %s: %w", g.Node, g.Gateway, err)
	}
	return generation, nil
}

// Node implements [Sessions].
func (r *Redis) Node(ctx context.Context, node string) (NodeRecord, error) {
	if err := named("node", node); err != nil {
		return NodeRecord{}, err
	}
	answer, err := r.call(ctx, opNode, node)
	if err != nil {
		return NodeRecord{}, fmt.Errorf("look up node %s: %w", node, err)
	}
	d := decoder{rest: answer}
	record := NodeRecord{Node: node, Instance: d.text(), Generation: d.number(), Floor: d.number(), Disabled: d.count() == 1, Draining: d.count() == 1}
	for d.err == nil && len(d.rest) > 0 {
		record.Sessions = append(record.Sessions, Session{
			Gateway: d.text(), Generation: d.number(), State: State(d.text()), BeatAge: time.Duration(d.number()) * time.Millisecond,
		})
	}
	slices.SortFunc(record.Sessions, func(a, b Session) int { return strings.Compare(a.Gateway, b.Gateway) })
	return record, d.err
}

// Ready implements [Sessions].
func (r *Redis) Ready(ctx context.Context, node, gateway string, generation uint64) error {
	return r.turn(ctx, node, gateway, generation, "ready")
}

// Suspect implements [Sessions].
func (r *Redis) Suspect(ctx context.Context, node, gateway string, generation uint64) error {
	return r.turn(ctx, node, gateway, generation, "suspect")
}

// Gone implements [Sessions].
func (r *Redis) Gone(ctx context.Context, node, gateway string, generation uint64) error {
	return r.turn(ctx, node, gateway, generation, "gone")
}

func (r *Redis) turn(ctx context.Context, node, gateway string, generation uint64, state string) error {
	if _, err := r.call(ctx, opState, node, gateway, decimal(generation), state); err != nil {
		return fmt.Errorf("%s: node %s at gateway %s, generation %d: %w", state, node, gateway, generation, err)
	}
	return nil
}

// Fence implements [Sessions].
func (r *Redis) Fence(ctx context.Context, node, gateway string, generation uint64) error {
	if err := r.primary.doubt(); err != nil {
		return err
	}
	_, err := r.call(ctx, opFence, node, gateway, decimal(generation))
	return err
}

// Beat implements [Sessions], in one round trip.
func (r *Redis) Beat(ctx context.Context, gateway string, epoch uint64, sessions []Held) (BeatResult, error) {
	result, held, err := r.beat(ctx, gateway, epoch, sessions)
	if err != nil {
		return BeatResult{}, fmt.Errorf("beat of gateway %s, epoch %d: %w", gateway, epoch, err)
	}
	if held > count(result.Verdicts, VerdictOK) {
		r.sweep(ctx, gateway, sessions)
	}
	return result, nil
}

// beat tells also how many sessions the gateway has by the store's account.
func (r *Redis) beat(ctx context.Context, gateway string, epoch uint64, sessions []Held) (result BeatResult, held int, err error) {
	if err := checkGateway(gateway, epoch); err != nil {
		return BeatResult{}, 0, err
	}
	data := newName()
	var all []pipelined
	for chunk := range slices.Chunk(sessions, beatChunk) {
		args := make([]any, 4, 4+2*len(chunk))
		args[0], args[1], args[2], args[3] = gateway, epoch, data, len(chunk)
		for _, h := range chunk {
			args = append(args, h.Node)
		}
		for _, h := range chunk {
			args = append(args, decimal(h.Generation))
		}
		all = append(all, pipelined{opBeat, args})
	}
	if len(all) == 0 {
		all = append(all, pipelined{opBeat, []any{gateway, epoch, data, 0}})
	}
	answers, server, err := r.callAll(ctx, all)
	if err != nil {
		return BeatResult{}, 0, err
	}
	result.Verdicts = make([]Verdict, 0, len(sessions))
	for _, a := range answers {
		d := decoder{rest: a}
		data, result.Revocations, held = d.text(), d.number(), int(d.count())
		if result.Verdicts = d.verdicts(result.Verdicts); d.err != nil {
			return BeatResult{}, 0, d.err
		}
	}
	if len(result.Verdicts) != len(sessions) {
		return BeatResult{}, 0, errAnswer
	}
	result.Incarnation = r.primary.beat(data, server)
	return result, held, nil
}

func count(all []Verdict, v Verdict) (n int) {
	for _, have := range all {
		if have == v {
			n++
		}
	}
	return n
}

// sweep ends sessions that the store has and the gateway does not: their Gone was lost. What fails is done with the next
// beat.
func (r *Redis) sweep(ctx context.Context, gateway string, sessions []Held) {
	answer, err := r.call(ctx, opStrays, gateway)
	if err != nil {
		return
	}
	held := make(map[Held]struct{}, len(sessions))
	for _, h := range sessions {
		held[h] = struct{}{}
	}
	var ends []pipelined
	for d := (decoder{rest: answer}); len(d.rest) > 0; {
		h := Held{Node: d.text(), Generation: d.number()}
		if _, is := held[h]; !is && d.err == nil {
			ends = append(ends, pipelined{opState, []any{h.Node, gateway, decimal(h.Generation), "gone"}})
		}
	}
	for chunk := range slices.Chunk(ends, maxBatch) {
		if _, _, err := r.callAll(ctx, chunk); err != nil {
			return
		}
	}
}

// decimal spells a number as the scripts compare it.
func decimal(n uint64) string { return strconv.FormatUint(n, 10) }
