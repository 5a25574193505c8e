package http1

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/tests/fakeollama"
)

func (p *pool) len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// Case C16: the server closes idle connections after 50 ms, requests come every
// 50 ms. None fails, none runs twice.
func TestIdleCloseLosesNothing(t *testing.T) {
	t.Parallel()
	for _, gap := range []time.Duration{0, 15 * time.Millisecond, 50 * time.Millisecond} {
		t.Run(gap.String(), func(t *testing.T) {
			t.Parallel()
			s := fakeollama.Start(t, fakeollama.Options{IdleClose: 50 * time.Millisecond})
			a := newServer(t, s.URL())
			for i := range 60 {
				id := fmt.Sprint(i)
				if resp, _ := ask(t, a, chat(tinyChat, adapter.Header{Name: "X-Test-Id", Value: id})); resp.Status != 200 {
					t.Errorf("request %d: status %d", i, resp.Status)
				}
				if n := s.ExecsByID(id); n != 1 {
					t.Errorf("request %d ran %d times", i, n)
				}
				time.Sleep(gap) // the case's own pace, not a wait for something
			}
		})
	}
}

func TestBurstReusesConnections(t *testing.T) {
	t.Parallel()
	s := fakeollama.Start(t, fakeollama.Options{})
	a := newServer(t, s.URL())
	used := map[int]bool{}
	for range 50 {
		ask(t, a, chat(tinyChat))
	}
	for _, r := range s.Log() {
		used[r.Conn] = true
	}
	if len(used) > 25 { // 1 on a quiet machine
		t.Errorf("50 requests used %d connections", len(used))
	}
	if err := s.WaitStats(within(t, 5*time.Second), func(st fakeollama.Stats) bool { return st.Open == 0 }); err != nil {
		t.Errorf("idle connections stay open: %+v", s.Stats())
	}
	if n := a.idle.len(); n != 0 {
		t.Errorf("%d connections in the pool after the sweep", n)
	}
}

// A connection that the server has closed is not handed out, however short the
// idle time.
func TestTakeLeavesDeadConnections(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" && runtime.GOOS != "darwin" {
		t.Skip("no look at sockets here")
	}
	s := fakeollama.Start(t, fakeollama.Options{})
	a := newServer(t, s.URL())
	ask(t, a, chat(tinyChat))
	s.Down()
	if err := s.Up(); err != nil {
		t.Fatal(err)
	}
	if resp, _ := ask(t, a, chat(tinyChat)); resp.Status != 200 {
		t.Errorf("status %d", resp.Status)
	}
}

func TestNeverPooled(t *testing.T) {
	t.Parallel()
	s := fakeollama.Start(t, fakeollama.Options{})
	a := newServer(t, s.URL())
	pooled := func(what string) {
		t.Helper()
		if n := a.idle.len(); n != 0 {
			t.Errorf("%s: %d connections in the pool", what, n)
		}
	}
	resp, err := do(t.Context(), a, chat(`{"model":"t-tick","messages":[{}],"t_ms":20}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Read(make([]byte, 10))
	resp.Body.Close()
	if _, err := resp.Body.Read(make([]byte, 10)); err == nil || err == io.EOF {
		t.Errorf("read after close: %v", err)
	}
	pooled("half-read")

	s.SetFault(fakeollama.Fault{Kind: "closeheader", Times: 1})
	ask(t, a, chat(tinyChat))
	pooled("Connection: close")

	ctx, cancel := context.WithCancel(t.Context())
	resp, err = do(ctx, a, chat(tinyChat))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	io.Copy(io.Discard, resp.Body)
	pooled("canceled")
}

func TestConnIsForOneRequest(t *testing.T) {
	t.Parallel()
	s := fakeollama.Start(t, fakeollama.Options{})
	a := newServer(t, s.URL())
	c, err := a.Connect(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(t.Context(), chat(tinyChat))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(resp.Body); err != nil {
		t.Fatal(err)
	}
	c.Close() // must not close what the pool holds by now
	resp.Body.Close()
	if n := a.idle.len(); n != 1 {
		t.Errorf("%d connections in the pool, want 1", n)
	}
	if _, err := c.Do(t.Context(), chat(tinyChat)); !errors.Is(err, adapter.ErrNotSent) {
		t.Errorf("second Do: %v", err)
	}
	if c, err = a.Connect(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if _, err := c.Do(t.Context(), chat(tinyChat)); !errors.Is(err, adapter.ErrNotSent) {
		t.Errorf("Do after Close: %v", err)
	}
}
