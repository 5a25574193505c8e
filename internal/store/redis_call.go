package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// durableWait is how long a change waits for a replica to have it: 200 ms of the 300.
func (r *Redis) durableWait() time.Duration { return r.budget * 2 / 3 }

// unavailable wraps what kept the server from answering.
func unavailable(err error) error {
	if errors.Is(err, ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// do lets f ask the server, within the budget, unless the breaker is open. A refusal is an answer, and comes back bare;
// anything else that f returns is ErrUnavailable and counts against the server.
func (r *Redis) do(ctx context.Context, o op, f func(ctx context.Context, c *redis.Client) error) error {
	if err := r.breaker.allow(); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, r.budget)
	defer cancel()
	began := time.Now()
	defer func() { r.observe(string(o), time.Since(began)) }()
	c := r.client.Load()
	err := f(bounded, c)
	var no *refusal
	switch {
	case err == nil:
		r.breaker.succeeded()
		return nil
	case errors.As(err, &no):
		r.breaker.succeeded()
		return no.error
	case ctx.Err() != nil: // the caller's, which says nothing of the server
		return unavailable(ctx.Err())
	}
	err = unavailable(err)
	if r.client.Load() == c { // else it was closed under the call
		r.breaker.failed(err)
	}
	return err
}

// refusal is a script's no.
type refusal struct{ error }

// call runs a script and gives what it answers after "ok".
func (r *Redis) call(ctx context.Context, o op, args ...any) (answer []any, err error) {
	err = r.do(ctx, o, func(ctx context.Context, c *redis.Client) error {
		answer, err = r.run(ctx, c, o, args)
		return err
	})
	return answer, err
}

// run runs a script by its hash, or in full when the server does not know it: after a failover, a restart, SCRIPT FLUSH.
func (r *Redis) run(ctx context.Context, c *redis.Client, o op, args []any) ([]any, error) {
	return answered(r.scripts[o].Run(ctx, c, r.base, r.arguments(args)...))
}

func (r *Redis) arguments(args []any) []any {
	if r.now != nil {
		return append(args[:len(args):len(args)], millis(r.now()))
	}
	return args
}

// callDurably runs a script that changes something, and waits until a replica has the change as well, if there is one.
// The change holds if err is nil. What is already lagging behind is waited for only if it must be.
func (r *Redis) callDurably(ctx context.Context, must bool, o op, args ...any) (answer []any, durable bool, err error) {
	met, replicas, lagging := r.primary.replication()
	if !met {
		if err := r.do(ctx, "ping", func(ctx context.Context, c *redis.Client) error { return c.Ping(ctx).Err() }); err != nil {
			return nil, false, err
		}
		_, replicas, lagging = r.primary.replication()
	}
	if replicas == 0 || lagging && !must {
		answer, err = r.call(ctx, o, args...)
		return answer, replicas == 0 && !r.sentinel, err
	}
	var acked int64
	err = r.do(ctx, o, func(ctx context.Context, c *redis.Client) error {
		s, args := r.scripts[o], r.arguments(args)
		for _, eval := range []func(context.Context, redis.Scripter, []string, ...any) *redis.Cmd{s.EvalSha, s.Eval} {
			pipe := c.Pipeline()
			cmd := eval(ctx, pipe, r.base, args...)
			wait := pipe.Do(ctx, "wait", 1, r.durableWait().Milliseconds())
			_, _ = pipe.Exec(ctx) // each has its error
			if answer, err = answered(cmd); !redis.HasErrorPrefix(err, "NOSCRIPT") {
				acked, _ = wait.Int64() // 0 if it failed
				return err
			}
		}
		return err
	})
	if err == nil {
		r.primary.lagged(acked < 1)
	}
	return answer, acked >= 1, err
}

// pipelined is one of several scripts that go to the server together.
type pipelined struct {
	op   op
	args []any
}

// callAll runs scripts in one round trip, and INFO replication after them on the same connection.
func (r *Redis) callAll(ctx context.Context, all []pipelined) (answers [][]any, server serverInfo, err error) {
	err = r.do(ctx, all[0].op, func(ctx context.Context, c *redis.Client) error {
		for _, known := range []bool{true, false} {
			pipe := c.Pipeline()
			cmds := make([]*redis.Cmd, len(all))
			for i, p := range all {
				s := r.scripts[p.op]
				if known {
					cmds[i] = s.EvalSha(ctx, pipe, r.base, r.arguments(p.args)...)
				} else {
					cmds[i] = s.Eval(ctx, pipe, r.base, r.arguments(p.args)...)
				}
			}
			info := pipe.Info(ctx, "replication")
			_, _ = pipe.Exec(ctx) // each has its error
			answers, err = answers[:0], nil
			for _, cmd := range cmds {
				var a []any
				if a, err = answered(cmd); err != nil {
					break
				}
				answers = append(answers, a)
			}
			if redis.HasErrorPrefix(err, "NOSCRIPT") && known {
				continue
			}
			if err == nil {
				server, err = parseInfo(info.Val()), info.Err()
			}
			return err
		}
		return err
	})
	return answers, server, err
}

// answered splits what a script has answered. A code other than "ok" is a refusal. In a pipeline that has lost a later
// answer go-redis gives the error to those as well that have theirs.
func answered(cmd *redis.Cmd) ([]any, error) {
	v, err := cmd.Result()
	if v == nil && err != nil {
		return nil, err
	}
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	if len(list) > 0 {
		code, _ := list[0].(string)
		if code == "ok" {
			return list[1:], nil
		}
		if err := refusals[code]; err != nil {
			return nil, &refusal{err}
		}
	}
	if err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("a script of %s answered what it never does", cmd.Name())
}
