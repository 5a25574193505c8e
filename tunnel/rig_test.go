package tunnel

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/fairway-edge/fairway/internal/pki"
)

// rig is a listener with a Registrar that admits everyone, over real sockets on loopback.
type rig struct {
	t   testing.TB
	ca  *pki.SelfSigned
	ln  *Listener
	reg *admitAll
	gw  *pki.Identity
}

type admitAll struct {
	mu       sync.Mutex
	gen      uint64
	sessions map[string]*Session // ready ones, by node
	targets  map[string][]*Target
	fenced   map[string]int
	gone     chan *Session
	ready    chan *Session
	changed  chan State
	refuse   error // guarded by mu; of every registration

	registered func(*Session) // guarded by mu
}

func (a *admitAll) Register(_ context.Context, _ *Session, r *Register) (*Registered, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refuse != nil {
		return nil, a.refuse
	}
	a.gen = max(a.gen, r.Watermark) + 1
	return &Registered{Generation: a.gen}, nil
}

// generations tells how many registrations were admitted.
func (a *admitAll) generations() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.gen
}

func (a *admitAll) refuseWith(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refuse = err
}

func (a *admitAll) Ready(_ context.Context, s *Session, ts []*Target) error {
	a.mu.Lock()
	a.sessions[s.Node()] = s
	a.targets[s.Node()] = ts
	a.mu.Unlock()
	a.ready <- s
	return nil
}

func (a *admitAll) Status(s *Session, ts []*Target) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.targets[s.Node()] = append(a.targets[s.Node()], ts...)
	return nil
}

func (a *admitAll) Changed(s *Session) {
	select {
	case a.changed <- s.State():
	default:
	}
}
func (a *admitAll) Registered(s *Session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.registered != nil {
		a.registered(s)
	}
}

func (a *admitAll) Recipient(_ *Session, k *RecipientKey) error {
	if len(k.PublicKey) != 32 {
		return errors.New("not a key")
	}
	return nil
}
func (a *admitAll) Gone(s *Session) { a.gone <- s }
func (a *admitAll) Renew(context.Context, pki.ID, []byte) ([][]byte, error) {
	return nil, errors.New("not here")
}

func (a *admitAll) Fenced(reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fenced[reason]++
}

func (a *admitAll) fencedCount(reason string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.fenced[reason]
}

func newRig(t testing.TB) *rig {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := newRigOn(t, pc)
	t.Cleanup(func() { _ = r.ln.Close(CloseNone, "test over") })
	return r
}

// newRigOn listens on a socket that the test brings.
func newRigOn(t testing.TB, pc net.PacketConn) *rig {
	t.Helper()
	ca, err := pki.NewSelfSigned("test.local", time.Now)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, ca: ca, gw: identity(t, ca, pki.RoleGateway, "gw1"), reg: &admitAll{
		sessions: map[string]*Session{}, targets: map[string][]*Target{}, fenced: map[string]int{},
		gone: make(chan *Session, 64), ready: make(chan *Session, 64), changed: make(chan State, 64),
	}}
	var log *zap.Logger = zap.NewNop()
	if tt, ok := t.(*testing.T); ok && testing.Verbose() {
		log = zaptest.NewLogger(tt)
	}
	st := &Settings{Gateway: "gw1", Identity: func() (*pki.Identity, error) { return r.gw, nil }, Registrar: r.reg, Log: log}
	r.ln, err = Listen(pc, ListenConfig{Settings: func() *Settings { return st }})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func identity(t testing.TB, ca *pki.SelfSigned, role pki.Role, name string) *pki.Identity {
	t.Helper()
	id, err := ca.Authority().NewIdentity(pki.ID{TrustDomain: "test.local", Role: role, Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func newInstance() []byte {
	b := make([]byte, instanceBytes)
	_, _ = rand.Read(b)
	return b
}

type handlerFunc func(ctx context.Context, r *NodeRun)

func (f handlerFunc) ServeRun(ctx context.Context, r *NodeRun) { f(ctx, r) }

// node dials in and is ready, and returns both ends of its session.
func (r *rig) node(name string, h handlerFunc) (*NodeSession, *Session) {
	r.t.Helper()
	ns, err := r.dial(name, &Register{Node: name, Instance: newInstance()}, h)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := ns.Ready(ctx, []*Target{{Name: "ollama", Adapter: "ollama"}}); err != nil {
		r.t.Fatal(err)
	}
	select {
	case s := <-r.reg.ready:
		return ns, s
	case <-ctx.Done():
		r.t.Fatal("the gateway did not take in Ready")
		return nil, nil
	}
}

func (r *rig) dial(name string, reg *Register, h handlerFunc) (*NodeSession, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	ns, err := Dial(ctx, DialConfig{
		Identity: identity(r.t, r.ca, pki.RoleNode, name), Addr: r.ln.Addr().(*net.UDPAddr), Register: reg, Handler: h,
	})
	if err == nil {
		r.t.Cleanup(func() { ns.Close(CloseNone, ""); <-ns.Done() })
	}
	return ns, err
}

// open opens a run with a body and ends it.
func open(t testing.TB, s *Session, id string, body []byte) *Run {
	t.Helper()
	run, err := openReady(t.Context(), s, &RunOpen{
		Run: id, Attempt: 1, Generation: s.Generation(), Kind: KindTunnel, Method: "POST", Path: []byte("/api/chat"), Body: BodyLength, BodyLength: uint64(len(body)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := run.WriteBody(body); err == nil {
		_ = run.EndBody()
	}
	return run
}

// result is what a run gave, as a client would see it.
type result struct {
	accepted bool
	status   uint32
	body     []byte
	refused  *Refused
	terminal *Terminal
	frames   int
}

func collect(run *Run) result {
	var res result
	defer run.Close()
	for {
		ev := run.Next()
		switch ev.Kind {
		case EventAccepted:
			res.accepted = true
		case EventHead:
			res.status = ev.Head.Status
		case EventData:
			res.body = append(res.body, ev.Data...)
			if ev.FrameEnd {
				res.frames++
			}
		case EventRefused:
			res.refused = ev.Refused
			return res
		case EventTerminal:
			res.terminal = ev.Terminal
			return res
		}
	}
}

// echo answers with the request's body, one frame a read.
func echo(_ context.Context, r *NodeRun) {
	_ = r.Accept()
	_ = r.SendHead(&Head{Status: 200}, true)
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if err := r.SendData(buf[:n], true); err != nil {
				_ = r.Finish(&Terminal{Outcome: Canceled, Code: CodeCanceled})
				return
			}
		}
		if errors.Is(err, io.EOF) {
			_ = r.Finish(&Terminal{Outcome: Completed})
			return
		}
		if err != nil {
			_ = r.Finish(&Terminal{Outcome: Failed, Code: CodeClientBody})
			return
		}
	}
}

// eventually waits for a condition that another goroutine brings about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not within 10 s: %s", what)
}
