package nodeclient

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
)

// Times of the inventory watch.
const (
	probeGap     = 50 * time.Millisecond  // the least time between two probes
	probeSoon    = 250 * time.Millisecond // after a run has ended: what is loaded has changed
	soonFor      = 1500 * time.Millisecond
	probeTimeout = 5 * time.Second
	// probeFailures in a row make a provider unreachable. A busy one may answer nothing but its runs for long: while one goes on nothing is counted, and while
	// all are silent, as when a model is loaded, it takes hungFailures, about half a minute.
	probeFailures = 3
	hungFailures  = 6
)

// cadence is how often a provider is asked what it holds.
type cadence struct {
	every   time.Duration // when nothing happens
	down    time.Duration // after a failure; twice as long after each further one,
	downMax time.Duration // but no longer than this
	gap     time.Duration // the least time before a run's answer makes us ask again
	loads   bool          // runs change what is loaded, and the provider tells
}

// cadences are by adapter. A probe costs Ollama 1 to 2 ms a request (facts/ollama-api.md, section 5), and its models come and go. An OpenAI
// server may be a cloud: somebody else's machine, with a long list that hardly changes. A goal-job API is one, and lists nothing.
var cadences = map[string]cadence{
	"ollama":  {every: 2 * time.Second, down: time.Second, downMax: time.Second, gap: probeGap, loads: true},
	"openai":  {every: 30 * time.Second, down: time.Second, downMax: 30 * time.Second, gap: 10 * time.Second},
	kindGoals: {every: time.Minute, down: time.Second, downMax: time.Minute, gap: 10 * time.Second},
}

// snapshot is what is known of a target. It is never changed once published.
type snapshot struct {
	adapter.Inventory
	reachable bool
	locked    bool // the last answer was that it lists its models only for a credential
	withdrawn bool // not offered (now): the demo, when a real provider has answered
}

// target is one provider with what is known of it.
type target struct {
	client  *Client
	name    string
	kind    string
	adapter adapter.Adapter
	credits *credits
	cadence cadence
	standIn bool // offered only while no other target has answered since start

	now      atomic.Pointer[snapshot]
	runs     atomic.Int32
	heard    atomic.Int64           // when a run last had something of the provider, in nanoseconds of Unix
	answered atomic.Bool            // a probe has succeeded since start
	missed   atomic.Int32           // probes that failed in a row
	trouble  atomic.Pointer[string] // why the last one failed; nil if it did not
	soon     chan struct{}          // asks for a probe in a moment; nil where runs change nothing
	at       chan struct{}          // asks for one at once
	wake     chan struct{}          // the pause is to be another

	mu sync.Mutex // guards replacing now

	probing  sync.Mutex // held during a probe
	failures int        // guarded by probing; in a row, without a run that goes on
	probed   time.Time  // guarded by probing
	skipped  string     // guarded by probing; what was last said of unusable entries
}

func (c *Client) addTarget(t Target, standIn bool) error {
	name := t.Adapter.Target()
	perModel := max(t.PerModel, 1)
	perTarget := t.PerTarget
	if perTarget == 0 {
		perTarget = perModel * defaultLoaded
	}
	if name == "" || slices.ContainsFunc(c.targets, func(o *target) bool { return o.name == name }) {
		return fmt.Errorf("target %q is given twice, or has no name", name)
	}
	n := &target{
		client: c, name: name, kind: t.Adapter.Kind(), adapter: t.Adapter, credits: newCredits(perModel, max(perTarget, perModel)),
		standIn: standIn, at: make(chan struct{}, 1), wake: make(chan struct{}, 1),
	}
	var known bool
	if n.cadence, known = cadences[n.kind]; !known {
		return fmt.Errorf("target %q: unknown adapter %q", name, n.kind)
	}
	if _, ok := t.Adapter.(goalCaller); n.kind == kindGoals && !ok {
		return fmt.Errorf("target %q: its adapter runs no goals", name)
	}
	if n.cadence.loads {
		n.soon = make(chan struct{}, 1)
	}
	n.now.Store(&snapshot{})
	c.targets = append(c.targets, n)
	return nil
}

// view returns what is known now.
func (t *target) view() *snapshot { return t.now.Load() }

// goesOn notes that the provider answers a run.
func (t *target) goesOn() { t.heard.Store(time.Now().UnixNano()) }

// lastError says why the last probe failed; empty if it did not.
func (t *target) lastError() string {
	if why := t.trouble.Load(); why != nil {
		return *why
	}
	return ""
}

// update publishes a changed copy of the snapshot and tells the gateways. change reports whether it changed anything.
func (t *target) update(change func(*snapshot) bool) {
	t.mu.Lock()
	next := *t.now.Load()
	changed := change(&next)
	if changed {
		t.now.Store(&next)
	}
	t.mu.Unlock()
	if changed {
		t.client.notify()
	}
}

// watch keeps the snapshot fresh until ctx ends.
func (t *target) watch(ctx context.Context) {
	eager := time.Time{}
	for {
		timer := time.NewTimer(t.pause(eager))
		gap := probeGap
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-t.wake:
			timer.Stop()
			continue
		case <-t.soon:
			eager = time.Now().Add(soonFor)
			timer.Stop()
			if !sleep(ctx, probeSoon) {
				return
			}
		case <-t.at:
			timer.Stop()
			gap = t.cadence.gap
		case <-timer.C:
		}
		t.probe(ctx, gap)
	}
}

// pause is how long to wait for the next probe.
func (t *target) pause(eager time.Time) time.Duration {
	missed := t.missed.Load()
	switch {
	case time.Now().Before(eager):
		return probeSoon
	case missed > 0 || !t.view().reachable:
		return min(t.cadence.down<<min(max(missed-1, 0), 10), t.cadence.downMax)
	}
	return t.cadence.every
}

// poke puts a word into a channel that holds one.
func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// probe asks the provider what it holds, unless that was done within fresh.
func (t *target) probe(ctx context.Context, fresh time.Duration) {
	t.probing.Lock()
	defer t.probing.Unlock()
	if fresh > 0 && time.Since(t.probed) < fresh {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	inv, err := t.adapter.Probe(ctx)
	if errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	t.probed = time.Now()
	locked := errors.Is(err, adapter.ErrUnauthorized)
	if err != nil && !locked {
		t.missed.Add(1)
		why := err.Error()
		t.trouble.Store(&why)
		t.probeFailed(err)
		return
	}
	if locked {
		inv = adapter.Inventory{}
	}
	t.missed.Store(0)
	t.trouble.Store(nil)
	t.failures = 0
	t.noteSkipped(inv.Skipped)
	t.arrived(inv, locked)
}

// arrived takes what a provider has answered. One that is locked has told nothing but that it is there.
func (t *target) arrived(inv adapter.Inventory, locked bool) {
	withdrawn := t.standIn && t.client.anyAnswered()
	was := t.view()
	t.update(func(s *snapshot) bool {
		if s.reachable && s.locked == locked && s.withdrawn == withdrawn && sameInventory(&s.Inventory, &inv) {
			return false
		}
		s.Inventory, s.reachable, s.locked, s.withdrawn = inv, true, locked, withdrawn
		return true
	})
	switch {
	case withdrawn || was.reachable && was.locked == locked:
	case locked:
		t.client.log.Info("target asks for a credential", zap.String("target", t.name), zap.String("origin", t.adapter.Origin()))
	default:
		t.client.log.Info("target is reachable", zap.String("target", t.name), zap.String("version", inv.Version), zap.Int("models", len(inv.Models)))
	}
	if !t.answered.Swap(true) && !t.standIn {
		t.client.withdrawStandIns()
	}
}

// probeFailed decides whether a failed probe means that the provider is gone.
func (t *target) probeFailed(err error) {
	if !refusedConnect(err) {
		enough := probeFailures
		if t.runs.Load() > 0 {
			if time.Now().UnixNano()-t.heard.Load() < int64(probeTimeout) {
				return
			}
			enough = hungFailures
		}
		if t.failures++; t.failures < enough {
			return
		}
	}
	t.down(err)
}

// refusedConnect tells a provider that is not there from one that is slow.
func refusedConnect(err error) bool {
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	return errors.Is(err, adapter.ErrNotSent) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET)
}

// down marks the provider as unreachable.
func (t *target) down(err error) {
	t.update(func(s *snapshot) bool {
		if !s.reachable {
			return false
		}
		s.reachable = false
		t.client.log.Warn("target is unreachable", zap.String("target", t.name), zap.String("origin", t.adapter.Origin()), zap.Error(err))
		return true
	})
	poke(t.wake)
}

// noteSkipped logs unusable entries of an inventory, once.
func (t *target) noteSkipped(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != t.skipped && text != "" {
		t.client.log.Warn("some models cannot be offered", zap.String("target", t.name), zap.Error(err))
	}
	t.skipped = text
}

// anyAnswered tells whether a provider other than a stand-in has answered since start.
func (c *Client) anyAnswered() bool {
	return slices.ContainsFunc(c.targets, func(t *target) bool { return !t.standIn && t.answered.Load() })
}

func (c *Client) withdrawStandIns() {
	for _, t := range c.targets {
		if t.standIn {
			t.update(func(s *snapshot) bool { old := s.withdrawn; s.withdrawn = true; return !old })
		}
	}
}

func sameInventory(a, b *adapter.Inventory) bool {
	return a.Version == b.Version &&
		slices.EqualFunc(a.Models, b.Models, func(x, y adapter.Model) bool { return x.Name == y.Name && bytes.Equal(x.JSON, y.JSON) }) &&
		sameLoaded(a.Loaded, b.Loaded)
}

func sameLoaded(a, b []adapter.Loaded) bool {
	return slices.EqualFunc(a, b, func(x, y adapter.Loaded) bool { return x.Name == y.Name && bytes.Equal(x.JSON, y.JSON) })
}
