package nodeclient

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/tunnel"
)

// provider is an adapter with trouble on demand.
type provider struct {
	name string

	mu      sync.Mutex
	inv     adapter.Inventory                                                  // guarded by mu
	probe   func(context.Context) error                                        // guarded by mu
	connect error                                                              // guarded by mu
	do      func(context.Context, *adapter.Request) (*adapter.Response, error) // guarded by mu
	asked   atomic.Int32
}

func newProvider(models ...string) *provider {
	p := &provider{name: "ollama"}
	p.setModels(models...)
	return p
}

func (p *provider) setModels(models ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inv = adapter.Inventory{Version: "0.32.15"}
	for _, m := range models {
		p.inv.Models = append(p.inv.Models, adapter.Model{Name: m, JSON: fmt.Appendf(nil, `{"name":%q}`, m)})
	}
}

func (p *provider) set(f func(*provider)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p)
}

func (p *provider) Target() string { return p.name }
func (p *provider) Kind() string   { return "ollama" }
func (p *provider) Origin() string { return "http://provider.test:1" }

func (p *provider) Probe(ctx context.Context) (adapter.Inventory, error) {
	p.mu.Lock()
	inv, probe := p.inv, p.probe
	p.mu.Unlock()
	if probe != nil {
		if err := probe(ctx); err != nil {
			return adapter.Inventory{}, err
		}
	}
	return inv, nil
}

func (p *provider) Connect(context.Context, bool) (adapter.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.connect != nil {
		return nil, p.connect
	}
	return &providerConn{p}, nil
}

type providerConn struct{ p *provider }

func (c *providerConn) Close() {}
func (c *providerConn) Do(ctx context.Context, r *adapter.Request) (*adapter.Response, error) {
	c.p.asked.Add(1)
	c.p.mu.Lock()
	do := c.p.do
	c.p.mu.Unlock()
	if do == nil {
		return reply(200, `{"done":true}`), nil
	}
	return do(ctx, r)
}

// reply is a whole answer with its length.
func reply(status int, body string) *adapter.Response {
	return &adapter.Response{
		Status: status, Body: io.NopCloser(strings.NewReader(body)), Trailers: func() []adapter.Header { return nil },
		Headers: []adapter.Header{{Name: "Content-Length", Value: fmt.Sprint(len(body))}, {Name: "Content-Type", Value: "application/json"}},
	}
}

// stream answers with pieces that the test writes.
func stream(ctx context.Context) (*adapter.Response, *io.PipeWriter) {
	r, w := io.Pipe()
	context.AfterFunc(ctx, func() { w.CloseWithError(context.Cause(ctx)) })
	return &adapter.Response{Status: 200, Body: r, Trailers: func() []adapter.Header { return nil }}, w
}

// result is what a run gave.
type result struct {
	accepted bool
	head     *tunnel.Head
	body     string
	frames   []string
	refused  *tunnel.Refused
	terminal *tunnel.Terminal
}

var runSeq atomic.Int64

// open opens a run; change may alter what is asked.
func open(t testing.TB, s *tunnel.Session, change func(*tunnel.RunOpen)) *tunnel.Run {
	t.Helper()
	o := &tunnel.RunOpen{
		Run: fmt.Sprint("run-", runSeq.Add(1)), Attempt: 1, Generation: s.Generation(), Kind: tunnel.KindTunnel, Adapter: "ollama", Target: "ollama",
		Method: "POST", Path: []byte("/api/chat"), Model: "tiny", Credit: true, SessionId: "corr",
	}
	if change != nil {
		change(o)
	}
	r, err := s.Lane().OpenRun(context.Background(), o, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func collect(r *tunnel.Run) (res result) {
	defer r.Close()
	frame := ""
	for {
		switch ev := r.Next(); ev.Kind {
		case tunnel.EventAccepted:
			res.accepted = true
		case tunnel.EventHead:
			res.head = ev.Head
		case tunnel.EventData:
			res.body += string(ev.Data)
			if frame += string(ev.Data); ev.FrameEnd {
				res.frames, frame = append(res.frames, frame), ""
			}
		case tunnel.EventRefused:
			res.refused = ev.Refused
			return res
		case tunnel.EventTerminal:
			res.terminal = ev.Terminal
			return res
		}
	}
}

func ask(t testing.TB, s *tunnel.Session, change func(*tunnel.RunOpen)) result {
	t.Helper()
	r := open(t, s, change)
	_ = r.EndBody()
	return collect(r)
}
