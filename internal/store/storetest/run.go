// Package storetest is the meaning of store.Store as tests. Every
// implementation passes [Run], one that gateways share passes [RunShared]; what
// one of them does besides (surviving a restart, say) it tests itself. [Operate]
// runs random operations against a model, for fuzzing.
package storetest

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/store"
)

// Open makes an empty store on clock, for one test alone, and closes it when the
// test ends.
type Open = func(t *testing.T, clock *Clock) store.Store

// Run is the suite for a store of one gateway process.
func Run(t *testing.T, open Open) { run(t, open, false, tests) }

// RunShared is the suite for a store that gateways share: there, sessions of a
// gateway that no longer beats are not ready. Each call crosses a network, so the
// tests that make thousands of them make fewer.
func RunShared(t *testing.T, open Open) {
	all := maps.Clone(tests)
	maps.Copy(all, sharedTests)
	run(t, open, true, all)
}

var sharedTests = map[string]func(*fixture){
	"silent gateway":    silentGateway,
	"forgotten gateway": forgottenGateway,
}

var tests = map[string]func(*fixture){
	"epoch":                         epoch,
	"epoch ends older sessions":     epochEndsSessions,
	"generations rise":              generationsRise,
	"clock backwards":               clockBackwards,
	"watermark":                     watermark,
	"rate":                          rate,
	"rate after clock backwards":    rateClockBackwards,
	"one node from many goroutines": registerOneConcurrently,
	"many nodes concurrently":       registerManyConcurrently,
	"invalid arguments":             invalid,

	"life of a session":          life,
	"stale changes nothing":      staleChangesNothing,
	"two gateways":               twoGateways,
	"another instance":           anotherInstance,
	"same instance again":        sameInstanceAgain,
	"gone of an old generation":  goneOfOldGeneration,
	"beat":                       beat,
	"meet":                       meet,
	"beat age":                   beatAge,
	"unknown node":               unknownNode,
	"ready and gone in parallel": readyConcurrently,

	"publish":                publish,
	"publish above min_pgn":  publishAboveMinPGN,
	"publish concurrently":   publishConcurrently,
	"revocations":            revocations,
	"revisions":              revisions,
	"issue":                  issue,
	"revoke concurrently":    revokeConcurrently,
	"full records":           full,
	"disabled node":          disabledNode,
	"drain":                  drain,
	"token":                  token,
	"token concurrently":     tokenConcurrently,
	"token, clock backwards": tokenClockBackwards,

	"beat ends what it does not name": beatEndsStrays,
	"later process":                   laterProcess,
	"drained nodes":                   drainedNodes,
	"watch":                           watch,

	"reassert to an empty store":    reassertAll,
	"reassert, later instance wins": reassertInstances,
	"reassert against newer data":   reassertNewer,
	"reassert what was taken back":  reassertTakenBack,
	"reassert a disabled node":      reassertDisabled,
	"reassert, projections":         reassertProjection,
	"reassert, refused":             reassertRefused,
	"reassert from many at once":    reassertConcurrently,
}

func run(t *testing.T, open Open, shared bool, tests map[string]func(*fixture)) {
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := NewClock()
			test(&fixture{T: t, Store: open(t, clock), clock: clock, open: open, shared: shared})
		})
	}
}

// fixture is a test, its store and the store's clock.
type fixture struct {
	*testing.T
	store.Store
	clock  *Clock
	open   Open
	shared bool
}

// rounds is how much is little enough for a test of concurrency to end.
func (f *fixture) rounds() int {
	if f.shared {
		return 80
	}
	return 500
}

func (f *fixture) ctx() context.Context { return f.T.Context() }

// register expects success.
func (f *fixture) register(node, gateway, instance string) uint64 {
	f.T.Helper()
	f.clock.Advance(time.Second)
	g, err := f.Store.Register(f.ctx(), store.Registration{Node: node, Gateway: gateway, Instance: instance})
	if err != nil {
		f.T.Fatalf("register: %v", err)
	}
	return g
}

// ready registers and readies.
func (f *fixture) ready(node, gateway, instance string) uint64 {
	f.T.Helper()
	g := f.register(node, gateway, instance)
	f.want(nil, f.Store.Ready(f.ctx(), node, gateway, g))
	return g
}

func (f *fixture) node(name string) store.NodeRecord {
	f.T.Helper()
	r, err := f.Store.Node(f.ctx(), name)
	if err != nil {
		f.T.Fatalf("node %s: %v", name, err)
	}
	return r
}

func (f *fixture) want(want, got error) {
	f.T.Helper()
	if want == nil && got != nil || want != nil && !errors.Is(got, want) {
		f.T.Fatalf("error %v, want %v", got, want)
	}
}

// fence checks a session, and that the hot path's errors are bare.
func (f *fixture) fence(want error, node, gateway string, generation uint64) {
	f.T.Helper()
	if got := f.Store.Fence(f.ctx(), node, gateway, generation); got != want {
		f.T.Fatalf("fence: %v, want %v", got, want)
	}
}
