package nodeclient

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/nodeclient/adapter/goals"
	"github.com/fairway-edge/fairway/tests/canary"
	"github.com/fairway-edge/fairway/tests/fakegoals"
	"github.com/fairway-edge/fairway/tunnel"
)

// The memory canary for goals: a node in a process of its own has jobs that succeed, time out, are canceled and panic, and afterwards no copy of the key is in its memory.
// That the scan finds what is there is shown by TestMemoryOfANode.
func TestMemoryOfAGoal(t *testing.T) {
	t.Parallel()
	key := canary.New(t)
	l := newLender(t)
	f := fakegoals.Start(t, fakegoals.Options{Key: key, Stages: stages("Said.", "ready", "completed")})
	l.value, l.origin = "Bearer "+key, f.URL()
	c := startChild(t, "MEMORY_GATEWAY="+l.addr, "MEMORY_TOKEN="+l.token("n1"), "MEMORY_PROVIDER="+f.URL())
	s := l.nextReady(20 * time.Second)
	l.announce(s)
	more := published(pgn + 1)
	more.Profiles[0].Adapter, more.Profiles[0].Target = kindGoals, "cloud"
	if err := s.AnnounceProjection(more); err != nil {
		t.Fatal(err)
	}
	settle(t, s)
	run := func(body string) result { return collect(l.lend(s, goalLease("Authorization", body))) }
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for range 2 {
				if m := resultOf(t, run(goalRequest())); m.Status != edge.Success {
					t.Errorf("%+v", m)
				}
			}
			if m := resultOf(t, run(goalRequest(`"deadline_ms":200`))); m.DegradeReason != edge.DeadlineExceeded {
				t.Errorf("%+v", m)
			}
			if m := resultOf(t, run(strings.Replace(goalRequest(), "Bern", "panic", 1))); !strings.HasPrefix(m.DegradeDetail, "internal") {
				t.Errorf("%+v", m)
			}
			r := l.lend(s, goalLease("Authorization", goalRequest()))
			for r.Next().Kind != tunnel.EventAccepted {
			}
			r.Cancel(tunnel.CodeCanceled)
			_ = collect(r)
		})
	}
	wg.Wait()
	f.Await(t, "no job is alive", func() bool { return f.Alive() == 0 })
	eventually(t, goals.SettleTime+5*time.Second, "no copy of the key is left", func() bool {
		copies, _ := canary.InMemory(t, c.Process.Pid, []byte(key[:16]))
		return len(copies) == 0
	})
	if n := len(f.Jobs()); n < 6 {
		t.Errorf("only %d jobs", n)
	}
}

// breaking is the adapter goals, and panics with the credential in hand where a submission asks for it.
type breaking struct{ *goals.Adapter }

func (b *breaking) Caller(first adapter.Conn, credential func() adapter.Credential) goals.Doer {
	return &breakingDoer{b.Adapter.Caller(first, credential), credential}
}

type breakingDoer struct {
	goals.Doer
	credential func() adapter.Credential
}

func (d *breakingDoer) Do(ctx context.Context, r *adapter.Request) (*adapter.Response, error) {
	if r.Body == nil {
		return d.Doer.Do(ctx, r)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	r.Body = bytes.NewReader(body)
	if strings.Contains(string(body), "panic") {
		_, _ = d.credential().Line()
		panic("injected")
	}
	return d.Doer.Do(ctx, r)
}
