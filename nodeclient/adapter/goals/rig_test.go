package goals

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/tests/fakegoals"
)

const testKey = "ck-canary-5f2b7c1e9d3a4860"

// purse stands for the run's lease: it gives one credential for each request, and knows whether each was cleared, and none asked for after the end.
type purse struct {
	given, cleared atomic.Int32
	shut           atomic.Bool
}

func (p *purse) credential() adapter.Credential {
	p.given.Add(1)
	return &keyLine{purse: p}
}

type keyLine struct {
	purse *purse
	line  []byte
	once  atomic.Bool
}

func (k *keyLine) Header() string { return "Authorization" }

func (k *keyLine) Line() ([]byte, error) {
	if k.purse.shut.Load() {
		return nil, errors.New("the secret was cleared")
	}
	k.line = []byte("Authorization: Bearer " + testKey + "\r\n")
	return k.line, nil
}

func (k *keyLine) Clear() {
	clear(k.line)
	if k.once.CompareAndSwap(false, true) {
		k.purse.cleared.Add(1)
	}
}

// report is what a run came to.
type report struct {
	Outcome
	delivered int
	took      time.Duration // to the result
	returned  time.Duration // to the end
	err       error
}

// drive runs a goal at an origin as a node does. It may be called from any goroutine.
func drive(ctx context.Context, t testing.TB, origin string, g Goal) (rep report) {
	t.Helper()
	g.Lent = true
	a, err := New("cloud", origin)
	if err != nil {
		t.Error(err)
		return rep
	}
	p := &purse{}
	begin := time.Now()
	first, err := a.Connect(ctx, true)
	if err != nil {
		if !errors.Is(err, adapter.ErrNotSent) {
			t.Errorf("connecting failed with %v", err)
		}
		first = nil // Run says the same
	} else {
		defer first.Close()
	}
	rep.err = Run(ctx, a.Caller(first, p.credential), g, func(o Outcome) {
		rep.Outcome, rep.took = o, time.Since(begin)
		rep.delivered++
	})
	rep.returned = time.Since(begin)
	p.shut.Store(true)
	if rep.delivered != 1 {
		t.Errorf("%d results", rep.delivered)
	}
	if p.given.Load() != p.cleared.Load() {
		t.Errorf("%d credentials were given and %d cleared", p.given.Load(), p.cleared.Load())
	}
	if rep.returned > rep.took+SettleTime+time.Second {
		t.Errorf("it took %v from the result to the end", rep.returned-rep.took)
	}
	valid(t, rep.Result)
	return rep
}

// valid holds a result to the contract of typed runs.
func valid(t testing.TB, r edge.ModelResult) {
	t.Helper()
	b, err := json.Marshal(r)
	if err != nil {
		t.Errorf("%+v is no result: %v", r, err)
		return
	}
	var again edge.ModelResult
	if err := json.Unmarshal(b, &again); err != nil {
		t.Errorf("%s is no result: %v", b, err)
	}
	if r.Status == edge.Invalid || r.Confidence != nil {
		t.Errorf("no workflow gives %s", b)
	}
}

// demo is the goal that the fakes serve.
func demo(deadline time.Duration) Goal {
	return Goal{Workflow: "uw_demo", Slots: edge.Input{{Name: "city", Text: "Bern"}}, Deadline: deadline}
}

// server is a fake that asks for the key.
func server(t testing.TB, stages ...fakegoals.Stage) *fakegoals.Server {
	t.Helper()
	return fakegoals.Start(t, fakegoals.Options{Key: testKey, Stages: stages})
}

func stage(status string, more ...any) fakegoals.Stage {
	s := fakegoals.Stage{Status: status, More: map[string]any{}}
	for i := 0; i < len(more); i += 2 {
		s.More[more[i].(string)] = more[i+1]
	}
	return s
}

var booked = stage("completed", "agentMessage", "Booked.")
