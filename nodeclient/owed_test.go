package nodeclient

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/tunnel"
)

func TestOwedWords(t *testing.T) {
	t.Parallel()
	tg := &target{credits: newCredits(1, 1)}
	v := new(vault)
	v.owed.add(tg)
	now := time.Now()
	if got := v.owed.due(v, now); !got[tg] {
		t.Fatal("not said at once")
	}
	if got := v.owed.due(v, now); len(got) != 0 {
		t.Error("said twice at once")
	}
	for _, d := range repeats {
		if wait, ok := v.owed.next(now); !ok || wait != d {
			t.Fatalf("next in %s, want %s", wait, d)
		}
		if now = now.Add(d); !v.owed.due(v, now)[tg] {
			t.Errorf("not repeated after %s", d)
		}
	}
	if _, ok := v.owed.next(now); ok {
		t.Error("repeated for ever")
	}

	// Full again by the time it would be repeated: the gateway waits for the next credit.
	v.owed.add(tg)
	now = time.Now()
	v.owed.due(v, now)
	if !tg.credits.take("m") {
		t.Fatal("no credit")
	}
	if got := v.owed.due(v, now.Add(repeats[0])); len(got) != 0 {
		t.Error("a full target is called free")
	}
	if _, ok := v.owed.next(now); ok {
		t.Error("something is to be said")
	}
	if tell := tg.credits.give("m"); !slices.Contains(tell, v) {
		t.Error("the gateway does not hear of the next credit")
	}
}

// Two gateways are told of one credit. What one of them takes the other is refused, and hears of it when it is free again; the first has no need to.
func TestOverflowIsRefusedAndItsEndIsTold(t *testing.T) {
	t.Parallel()
	a := newGateway(t)
	b := newGatewayAt(t, a.ca, "gw2", "127.0.0.1:0")
	p := newProvider("tiny")
	gates := make(chan chan struct{}, 1)
	p.do = func(ctx context.Context, _ *adapter.Request) (*adapter.Response, error) {
		select {
		case <-<-gates:
			return reply(200, "{}"), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	cfg := a.config(p)
	cfg.Gateways = append(cfg.Gateways, b.addr)
	c, one, _ := a.node(cfg)
	two := b.nextReady(10 * time.Second)
	eventually(t, 5*time.Second, "both ready", func() bool { return rows(c)["gw1"] == stateReady && rows(c)["gw2"] == stateReady })
	saidOne := a.said()
	var slowest time.Duration
	const times = 20
	for range times {
		gate := make(chan struct{})
		gates <- gate
		r := open(t, one, nil)
		_ = r.EndBody()
		eventually(t, 5*time.Second, "the run", func() bool { return c.Status().Runs == 1 })
		if res := ask(t, two, nil); !res.refused.GetNoCredit() || res.refused.GetRetry() != tunnel.RetryElsewhere {
			t.Fatalf("a run beyond the credits: %v %v", res.refused, res.terminal)
		}
		time.Sleep(2 * sayGap) // what was to be said before is said
		said := b.said()
		start := time.Now()
		close(gate)
		for b.said() == said {
			if time.Since(start) > 5*time.Second {
				t.Fatal("nobody says that the credit is free")
			}
			time.Sleep(time.Millisecond)
		}
		slowest = max(slowest, time.Since(start))
		if res := collect(r); res.terminal.GetOutcome() != tunnel.Completed {
			t.Fatal(res.terminal)
		}
	}
	t.Logf("the refused gateway heard of the credit within %s", slowest)
	if slowest > time.Second {
		t.Errorf("the refused gateway heard of the credit only after %s", slowest)
	}
	if n := a.said() - saidOne; n != 0 {
		t.Errorf("the gateway that was not refused was told %d times", n)
	}
	time.Sleep(repeats[len(repeats)-1] + 200*time.Millisecond)
	said := b.said()
	if most := 1 + times*(1+len(repeats)); said > most {
		t.Errorf("the refused gateway was told %d times of %d credits", said, times)
	}
	time.Sleep(300 * time.Millisecond)
	if b.said() != said {
		t.Error("and it goes on")
	}
}
