package http1

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/tests/fakeollama"
)

// goneWithin is how soon the provider must notice that a run was canceled.
const goneWithin = 100 * time.Millisecond

func waitGone(t *testing.T, s *fakeollama.Server, since time.Time) {
	t.Helper()
	_, err := s.Wait(within(t, 10*time.Second), func(r fakeollama.Record) bool { return r.ClientGone > 0 })
	if took := time.Since(since); err != nil || took > goneWithin {
		t.Errorf("provider noticed after %v (%v)", took, err)
	}
	if err := s.WaitStats(within(t, 10*time.Second), func(st fakeollama.Stats) bool { return st.Inflight == 0 && st.Open == 0 }); err != nil {
		t.Errorf("provider still busy: %+v", s.Stats())
	}
}

// Case B11: the end of the context, while Read waits, closes the connection.
func TestCancelStream(t *testing.T) {
	s := fakeollama.Start(t, fakeollama.Options{})
	ctx, cancel := context.WithCancelCause(t.Context())
	resp, err := do(ctx, newServer(t, s.URL()), chat(`{"model":"t-tick","messages":[{}],"t_ms":2000}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Read(make([]byte, 1000))
	cause := errors.New("client gone")
	at := time.Now()
	cancel(cause)
	if _, err := resp.Body.Read(make([]byte, 1000)); !errors.Is(err, cause) {
		t.Errorf("read: %v", err)
	}
	waitGone(t, s, at)
}

// Case B10 and stream:false: the same while nothing has come yet.
func TestCancelBeforeTheFirstByte(t *testing.T) {
	for name, body := range map[string]string{
		"no stream": `{"model":"t-tick","messages":[{}],"stream":false,"t_ms":2000}`,
		"loading":   `{"model":"t-slowload","messages":[{}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			s := fakeollama.Start(t, fakeollama.Options{})
			ctx, cancel := context.WithCancel(t.Context())
			failed := make(chan error, 1)
			go func() {
				_, err := do(ctx, newServer(t, s.URL()), chat(body))
				failed <- err
			}()
			if _, err := s.Wait(within(t, 5*time.Second), func(r fakeollama.Record) bool { return r.Executed }); err != nil {
				t.Fatal(err)
			}
			at := time.Now()
			cancel()
			if err := <-failed; !errors.Is(err, context.Canceled) || errors.Is(err, adapter.ErrNotSent) {
				t.Errorf("error %v", err)
			}
			waitGone(t, s, at)
		})
	}
}

func TestCloseHangsUp(t *testing.T) {
	s := fakeollama.Start(t, fakeollama.Options{})
	resp, err := do(t.Context(), newServer(t, s.URL()), chat(`{"model":"t-tick","messages":[{}],"t_ms":2000}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Read(make([]byte, 1000))
	pending := make(chan error, 1)
	go func() {
		_, err := resp.Body.Read(make([]byte, 1000))
		pending <- err
	}()
	at := time.Now()
	resp.Body.Close()
	if err := <-pending; err == nil || err == io.EOF {
		t.Errorf("pending read: %v", err)
	}
	waitGone(t, s, at)
}

// While a large body is being sent, ctx ends the sending too.
func TestCancelWhileSending(t *testing.T) {
	s := fakeollama.Start(t, fakeollama.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	body, w := io.Pipe()
	context.AfterFunc(ctx, func() { w.CloseWithError(ctx.Err()) }) // as the run's stream does
	failed := make(chan error, 1)
	go func() {
		_, err := do(ctx, newServer(t, s.URL()), &adapter.Request{Method: "POST", Path: "/api/blobs/x", Body: body, Length: -1})
		failed <- err
	}()
	w.Write(make([]byte, 100))
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if _, err := s.Wait(within(t, 5*time.Second), func(r fakeollama.Record) bool { return r.ClientGone > 0 && !r.BodyComplete }); err != nil {
		t.Error(err)
	}
}

func TestEndedContextSendsNothing(t *testing.T) {
	s := fakeollama.Start(t, fakeollama.Options{})
	c, err := newServer(t, s.URL()).Connect(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Do(ctx, chat(tinyChat)); !errors.Is(err, adapter.ErrNotSent) || !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if n := len(s.Log()); n != 0 {
		t.Errorf("provider saw %d requests", n)
	}
}

// Ollama takes a half-closed connection for a disconnect, so the sending half
// must stay open until the answer's end: an idle model waits long.
func TestNoHalfClose(t *testing.T) {
	s := fakeollama.Start(t, fakeollama.Options{})
	a := newServer(t, s.URL())
	body := []byte(`{"model":"t-slowload","messages":[{"content":"` + strings.Repeat("x", maxInline) + `"}],"t_s":0.3}`)
	for _, length := range []int64{-1, int64(len(body))} {
		resp, text := ask(t, a, &adapter.Request{Method: "POST", Path: "/api/chat", Body: bytes.NewReader(body), Length: length})
		if resp.Status != 200 || !strings.Contains(text, `"done":true`) {
			t.Errorf("length %d: status %d, %q", length, resp.Status, text)
		}
	}
	for _, r := range s.Log() {
		if r.ClientGone > 0 {
			t.Error("provider took us for gone")
		}
	}
}

// Runs that are canceled leave no goroutine behind.
func TestNoGoroutineStays(t *testing.T) {
	s := fakeollama.Start(t, fakeollama.Options{})
	a := newServer(t, s.URL())
	before := runtime.NumGoroutine()
	for range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		resp, err := do(ctx, a, chat(`{"model":"t-tick","messages":[{}],"t_ms":1000}`))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Read(make([]byte, 10))
		cancel()
		resp.Body.Close()
	}
	if err := s.WaitStats(within(t, 10*time.Second), func(st fakeollama.Stats) bool { return st.Open == 0 }); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before+3; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}
