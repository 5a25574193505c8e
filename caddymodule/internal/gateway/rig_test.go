package gateway

import (
	"context"
	"crypto/ed25519"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/internal/store"
	"github.com/fairway-edge/fairway/nodeclient"
	"github.com/fairway-edge/fairway/nodeclient/adapter/ollama"
	"github.com/fairway-edge/fairway/tests/fakeollama"
)

// rig is a hub, a handler behind a plain HTTP server, and nodes, in one process over real sockets.
type rig struct {
	t    testing.TB
	ca   *pki.SelfSigned
	hub  *Hub
	st   *Settings
	srv  *httptest.Server
	opts Options
	now  atomic.Pointer[http.Handler] // of the current configuration
	mu   sync.Mutex
	accs []*Account
}

const testKey = "sk-test-1"

func newRig(t testing.TB, o Options) *rig { return newRigWith(t, o, func(*Settings) {}) }

// newRigWith lets the test change the settings before they are started.
func newRigWith(t testing.TB, o Options, change func(*Settings)) *rig {
	t.Helper()
	mem, err := store.NewMemory(context.Background(), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return newRigOn(t, o, mem, change)
}

// newRigOn is newRigWith on a store of the test's.
func newRigOn(t testing.TB, o Options, mem store.Store, change func(*Settings)) *rig {
	t.Helper()
	ca, err := pki.NewSelfSigned("test.local", time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return newRigNamed(t, o, "gw1", ca, mem, false, change)
}

// newRigNamed is one gateway of several: of one CA, on one store.
func newRigNamed(t testing.TB, o Options, name string, ca *pki.SelfSigned, mem store.Store, shared bool, change func(*Settings)) *rig {
	t.Helper()
	r := &rig{t: t, ca: ca, opts: o}
	id, err := ca.Authority().NewIdentity(pki.ID{TrustDomain: "test.local", Role: pki.RoleGateway, Name: name})
	if err != nil {
		t.Fatal(err)
	}
	_, join, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	var lc net.ListenConfig
	socket, err := lc.ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.hub = NewHub(HubConfig{
		Store: mem, Gateway: name, Shared: shared,
		Listen: func(context.Context) (net.PacketConn, error) { return socket, nil },
		Keys:   func(context.Context) (a, b [32]byte, err error) { return a, b, nil },
		OnRunEnd: func(a *Account) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.accs = append(r.accs, a)
		},
	})
	r.st = &Settings{
		Gateway: name, TrustDomain: "test.local", Grace: time.Second, Keys: []Key{{"alice", HashKey(testKey)}, {"bob", HashKey("sk-bob")}},
		Identity: func() (*pki.Identity, error) { return id, nil }, Authority: ca.Authority(), JoinKey: join, Log: zap.NewNop(),
	}
	change(r.st)
	if r.st.Advertise == "itself" {
		r.st.Advertise = socket.LocalAddr().String()
	}
	if err := r.hub.Start(context.Background(), r.st); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.hub.Destruct() })
	first := r.handler(o)
	r.now.Store(&first)
	r.srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { (*r.now.Load()).ServeHTTP(w, req) }))
	t.Cleanup(r.srv.Close)
	return r
}

func (r *rig) handler(o Options) http.Handler {
	h := NewHandler(r.hub, r.st, o)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { h.Serve(w, req, NewAccount()) })
}

// identitySource is a leaf straight from the CA.
type identitySource struct{ id *pki.Identity }

func (s identitySource) Current(context.Context) (*pki.Identity, error) { return s.id, nil }
func (identitySource) Renewed(*pki.Identity) error                      { return nil }

// node joins a node that serves fake, and waits until the gateway lists it as ready.
func (r *rig) node(name string, fake *fakeollama.Server, credits int) {
	r.t.Helper()
	r.serve(name, fake.URL(), credits)
}

// serve joins a node that serves the provider at url.
func (r *rig) serve(name, url string, credits int) { r.serveLabeled(name, url, credits, nil) }

func (r *rig) serveLabeled(name, url string, credits int, labels map[string]string) {
	r.t.Helper()
	id, err := r.ca.Authority().NewIdentity(pki.ID{TrustDomain: "test.local", Role: pki.RoleNode, Name: name})
	if err != nil {
		r.t.Fatal(err)
	}
	a, err := ollama.New("ollama", url)
	if err != nil {
		r.t.Fatal(err)
	}
	c, err := nodeclient.New(nodeclient.Config{
		Identity: identitySource{id}, Gateways: []string{r.hub.listener.Addr().String()}, Targets: []nodeclient.Target{{Adapter: a, PerModel: credits}}, Labels: labels,
		Grace: -1,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(ctx)
	}()
	r.t.Cleanup(func() { cancel(); <-done })
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		for _, n := range r.hub.Fleet().Nodes() {
			if n.Name == name && n.State == "ready" && len(n.Targets) > 0 && len(n.Targets[0].Models) > 0 {
				return
			}
		}
	}
	r.t.Fatalf("node %s is not ready", name)
}

func (r *rig) do(method, path, body string, header ...string) (*http.Response, string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, r.srv.URL+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+testKey)
	for i := 0; i+1 < len(header); i += 2 {
		if header[i+1] == "" {
			req.Header.Del(header[i])
		} else {
			req.Header.Set(header[i], header[i+1])
		}
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return resp, string(b) + "[cut]"
	}
	return resp, string(b)
}

// accounts returns the closed accounts of runs so far.
func (r *rig) accounts() []*Account {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*Account
	for _, a := range r.accs {
		if a.begun {
			out = append(out, a)
		}
	}
	return out
}
