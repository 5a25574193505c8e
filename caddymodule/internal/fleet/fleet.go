// Package fleet is the nodes as one gateway sees them: who is here, what they hold, how much they can do, and who waits.
//
// A Fleet is a state machine under one mutex. Events come in (a session registers, is ready, changes, ends; a run asks for a place, gives it
// back, is refused) and effects go out (a waiting run gets its place). Nothing under the mutex blocks or calls out, so that pick and the queue can be tested as
// tables of events; sessions, probes and the store are called outside it.
//
// The words: a node has at most one current session with this gateway; a session offers targets; a target holds models and grants credits. A run
// that is to use a credit (or one of the few uncounted places of a node) holds a Place from Acquire until Release. Late binding: while no credit is free a run waits
// in line, and the node is chosen only when there is one.
//
// Nodes of other gateways of the fleet stand beside the own ones: each gateway tells what its nodes are (remote.go, tell.go), and a run for one of them
// goes there. A node that has a session here is used by that.
//
// Who owns what: nodes, line and the counters of every place belong to Fleet.mu. The generation of a session belongs to the store; Fence asks it.
package fleet

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/internal/store"
	"github.com/fairway-edge/fairway/tunnel"
)

const (
	// places is how many uncounted runs (show, load, unload, management) a node takes at once.
	places = 8
	// absence is how long a run waits for a node that is known to hold its model and is just not here: re-dials take far less.
	absence = 10 * time.Second
	// comingUp is how long a provider that has not answered since its node registered may still turn out to hold anything: until then an
	// unknown model is a 503 and not a 404. Machines that boot start their Ollama within that.
	comingUp = 2 * time.Minute
	// rememberGone is how long a node that went is kept, so that its models answer 503 and not 404.
	rememberGone = 24 * time.Hour
	// maxGone bounds how many such nodes are kept.
	maxGone = 4096
)

// The adapters whose models a fleet lists.
const (
	adapterOllama = "ollama"
	adapterOpenAI = "openai"
)

// Config is what a Fleet needs.
type Config struct {
	// Gateway is this gateway's name.
	Gateway string
	Store   store.Store
	// Owned says whether this gateway may send runs to its nodes without asking the store, which others use, too; nil: the store is asked for each run.
	Owned func() error
	// Log returns the current logger: a Fleet outlives the configuration that made it.
	Log func() *zap.Logger
	// Now is the clock, for tests; nil is time.Now.
	Now func() time.Time
}

// Fleet holds the nodes of one gateway. Safe for concurrent use.
type Fleet struct {
	cfg   Config
	epoch atomic.Uint64

	mu     sync.Mutex
	nodes  map[string]*node            // guarded by mu; by key
	remote map[string][]*node          // guarded by mu; those of other gateways, by name
	peers  map[Peer]int                // guarded by mu; how many nodes each of the other gateways has told of
	speaks map[string]Peer             // guarded by mu; the newest connection with each of the other gateways, of those that have told of nodes
	pieces map[Peer][]*tunnel.PeerNode // guarded by mu; of nodes that were not told to the end
	here   int                         // guarded by mu; nodes with a current session
	swept  time.Time                   // guarded by mu; when nodes that went long ago were last looked for
	young  []*seat                     // guarded by mu; every seat of which more may be heard soon, and others
	index  *index                      // guarded by mu
	line   line                        // guarded by mu
	turn   uint64                      // guarded by mu; the last turn given, for round robin
	merged mergedCache                 // guarded by mu
	shown  *Filter                     // guarded by mu

	fencedMu sync.Mutex
	fenced   map[string]uint64 // guarded by fencedMu; by reason
}

// node is one name, connected or remembered, at this gateway or at another. All fields are guarded by Fleet.mu but for registering.
type node struct {
	name        string
	peer        Peer       // nil: the node is this gateway's
	gateway     string     // the peer's name
	fleet       *Fleet     // of a peer's node
	registering sync.Mutex // one registration of a name at a time
	seat        *seat      // the current session's, or the last one's
	draining    bool
	goneAt      time.Time // zero while the seat's session is current
}

// seat is what one session offers and what is used of it. It is of no effect once another seat is current. Guarded by Fleet.mu, but for
// session, which never changes.
type seat struct {
	node    *node
	index   *index // the Fleet's
	session Session
	since   time.Time // when it was registered
	ready   bool
	before  map[string]adapters // what the node held under its last session, by model key, until this one is ready
	targets map[string]*target
	places  int // uncounted places taken
	runs    int // counted and uncounted
	bytes   int // of inventory
	models  int
	holds   uint64 // counts the changes to what the targets hold
	takes   uint64 // counts all other changes
	heard   uint64 // counts what another gateway has said, of a peer's node
}

// Session is what a Fleet uses of a node's session: *tunnel.Session, or a test's.
type Session interface {
	Node() string
	Instance() string
	Generation() uint64
	Labels() map[string]string
	Software() string
	RemoteAddr() net.Addr
	Since() time.Time
	Lanes() int
	Lane() *tunnel.Lane
	State() tunnel.State
	Probe(ctx context.Context) error
	Drain(reason string, leave bool) error
	Close(code tunnel.CloseCode, reason string)
}

// New returns an empty Fleet.
func New(cfg Config) *Fleet {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = zap.NewNop
	}
	return &Fleet{cfg: cfg, nodes: make(map[string]*node), remote: make(map[string][]*node), peers: make(map[Peer]int), speaks: make(map[string]Peer), pieces: make(map[Peer][]*tunnel.PeerNode), index: newIndex(), fenced: make(map[string]uint64)}
}

// SetEpoch sets this gateway process's incarnation, which the store allocated.
func (f *Fleet) SetEpoch(epoch uint64) { f.epoch.Store(epoch) }

// Epoch returns what SetEpoch was told; 0 before.
func (f *Fleet) Epoch() uint64 { return f.epoch.Load() }

// Current reports whether p's session is current and ready here, without a look at the store.
func (f *Fleet) Current(p *Place) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return p.seat.current() && p.seat.ready
}

// Fence reports whether p's session is still current, ready and this gateway's, as the store says it or, with Owned, said it a moment ago. It is the last
// check before a run's first byte.
func (f *Fleet) Fence(ctx context.Context, p *Place) error {
	if !f.Current(p) {
		return ErrStale
	}
	if f.cfg.Owned != nil {
		return f.cfg.Owned() // for a peer's node, too: that one says the rest
	}
	return f.cfg.Store.Fence(ctx, p.seat.node.name, f.cfg.Gateway, p.seat.session.Generation())
}

// Fenced counts something that was dropped because it came late or from the wrong session.
func (f *Fleet) Fenced(reason string) {
	f.fencedMu.Lock()
	defer f.fencedMu.Unlock()
	f.fenced[reason]++
}

// FencedCounts returns how often Fenced was called, by reason.
func (f *Fleet) FencedCounts() map[string]uint64 {
	f.fencedMu.Lock()
	defer f.fencedMu.Unlock()
	out := make(map[string]uint64, len(f.fenced))
	for k, v := range f.fenced {
		out[k] = v
	}
	return out
}

// live reports whether the node can take runs now. f.mu is held.
func (n *node) live() bool {
	return !n.draining && n.goneAt.IsZero() && n.seat != nil && n.seat.ready && n.seat.session.State() == tunnel.StateReady && !n.shadowed()
}

// current reports whether s is its node's seat and its session not ended. f.mu is held.
func (s *seat) current() bool { return s.node.seat == s && s.node.goneAt.IsZero() }

// returning reports whether the node may be live again soon: it registers, is suspect, drains because its process is being restarted, or went
// a moment ago. f.mu is held.
func (f *Fleet) returning(n *node) bool {
	if n.draining || n.seat == nil || n.shadowed() {
		return false
	}
	if n.goneAt.IsZero() {
		return true
	}
	return f.cfg.Now().Sub(n.goneAt) < absence
}
