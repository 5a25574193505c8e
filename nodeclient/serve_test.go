package nodeclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/tunnel"
)

func TestStreamKeepsItsPieces(t *testing.T) {
	g := newGateway(t)
	p := newProvider("tiny")
	var want []string
	p.do = func(ctx context.Context, _ *adapter.Request) (*adapter.Response, error) {
		resp, w := stream(ctx)
		go func() {
			for _, piece := range want {
				_, _ = io.WriteString(w, piece)
			}
			w.Close()
		}()
		return resp, nil
	}
	for i := range 40 {
		want = append(want, fmt.Sprintf("{\"n\":%d,\"x\":%q}\n", i, strings.Repeat("x", i*400)))
	}
	_, s, _ := g.node(g.config(p))
	res := ask(t, s, nil)
	if res.terminal.GetOutcome() != tunnel.Completed || !res.head.Chunked || len(res.frames) != len(want) {
		t.Fatalf("%d frames, want %d; %v", len(res.frames), len(want), res.terminal)
	}
	for i := range want {
		if res.frames[i] != want[i] {
			t.Fatalf("frame %d differs", i)
		}
	}
}

func TestRequestReachesTheProvider(t *testing.T) {
	g := newGateway(t)
	p := newProvider("tiny")
	body := strings.Repeat("0123456789", 50_000)
	p.do = func(_ context.Context, r *adapter.Request) (*adapter.Response, error) {
		got, err := io.ReadAll(r.Body)
		if err != nil || string(got) != body || r.Method != "POST" || r.Path != "/api/generate" || r.Headers[0].Name != "X-Test" {
			return reply(500, fmt.Sprint(len(got), err, r.Path)), nil
		}
		return reply(200, fmt.Sprint(r.Length)), nil
	}
	_, s, _ := g.node(g.config(p))
	for mode, want := range map[bool]string{true: fmt.Sprint(len(body)), false: "-1"} {
		r := open(t, s, func(o *tunnel.RunOpen) {
			o.Path, o.Headers = []byte("/api/generate"), []*tunnel.Header{{Name: "X-Test", Value: []byte("1")}}
			o.Body = tunnel.BodyStream
			if mode {
				o.Body, o.BodyLength = tunnel.BodyLength, uint64(len(body))
			}
		})
		if err := r.WriteBody([]byte(body)); err != nil {
			t.Fatal(err)
		}
		_ = r.EndBody()
		if res := collect(r); res.body != want {
			t.Errorf("%q, want %q", res.body, want)
		}
	}
}

func TestEndings(t *testing.T) {
	g := newGateway(t)
	p := newProvider("tiny")
	_, s, _ := g.node(g.config(p))
	broken := errors.New("connection broke")
	cases := []struct {
		name    string
		connect error
		do      func(context.Context, *adapter.Request) (*adapter.Response, error)
		change  func(*tunnel.RunOpen)
		refused string
		never   bool
		outcome tunnel.Outcome
		code    string
	}{
		{name: "unknown kind", change: func(o *tunnel.RunOpen) { o.Kind = 7 }, refused: "unsupported_kind"},
		{name: "unknown target", change: func(o *tunnel.RunOpen) { o.Target = "other" }, refused: "unknown_target"},
		{name: "other adapter", change: func(o *tunnel.RunOpen) { o.Adapter = "openai" }, refused: "unknown_target"},
		{name: "management", change: func(o *tunnel.RunOpen) { o.Path = []byte("/api/pull") }, refused: "not_allowed", never: true},
		{name: "odd path", change: func(o *tunnel.RunOpen) { o.Path = []byte("//api/chat") }, refused: "not_allowed", never: true},
		{name: "no connection", connect: fmt.Errorf("refused: %w", adapter.ErrNotSent), refused: "provider_unreachable"},
		{name: "not sent", do: fails(fmt.Errorf("gone: %w", adapter.ErrNotSent)), refused: "provider_unreachable"},
		{name: "broke before a head", do: fails(broken), outcome: tunnel.Failed, code: "provider_unreachable"},
		{name: "bad head", do: fails(adapter.ErrBadResponse), outcome: tunnel.Failed, code: "bad_provider_response"},
		{name: "model not found", do: answers(404, `{"error":"model 'tiny' not found"}`), refused: "provider_answered"},
		{name: "queue full", do: answers(503, `{"error":"server busy"}`), refused: "provider_answered"},
		{name: "bad request", do: answers(400, `{"error":"no"}`), outcome: tunnel.Completed},
		{name: "long 404", do: answers(404, strings.Repeat("x", 40<<10)), outcome: tunnel.Completed},
		{name: "404 of an inventory path", do: answers(404, `{}`), outcome: tunnel.Completed,
			change: func(o *tunnel.RunOpen) { o.Method, o.Path, o.Credit = "GET", []byte("/api/tags"), false }},
		{name: "cut", do: func(context.Context, *adapter.Request) (*adapter.Response, error) {
			r := reply(200, "")
			r.Headers[0].Value = "100"
			r.Body = io.NopCloser(io.MultiReader(strings.NewReader("half"), badReader{}))
			return r, nil
		}, outcome: tunnel.Failed, code: "bad_provider_response"},
		{name: "cut 404", do: func(context.Context, *adapter.Request) (*adapter.Response, error) {
			r := reply(404, "")
			r.Body = io.NopCloser(io.MultiReader(strings.NewReader("half"), badReader{}))
			return r, nil
		}, outcome: tunnel.Failed, code: "bad_provider_response"},
		{name: "deadline", do: hangs, change: func(o *tunnel.RunOpen) { o.DeadlineMs = 50 }, outcome: tunnel.Failed, code: "deadline_exceeded"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			p.set(func(p *provider) { p.connect, p.do = tc.connect, tc.do })
			res := ask(t, s, tc.change)
			if res.refused.GetCode() != tc.refused || res.terminal.GetOutcome() != tc.outcome || res.terminal.GetCode() != tc.code {
				t.Fatalf("refused %v, terminal %v", res.refused, res.terminal)
			}
			if r := res.refused; r != nil && (r.Retry == tunnel.RetryNever) != tc.never {
				t.Errorf("retry %s", r.Retry)
			}
			if a := res.refused.GetAnswer(); tc.refused == "provider_answered" && (a.GetStatus() < 400 || len(a.GetBody()) == 0 || len(a.GetHeaders()) != 2) {
				t.Errorf("answer %v", a)
			}
		})
	}
}

type badReader struct{}

func (badReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func fails(err error) func(context.Context, *adapter.Request) (*adapter.Response, error) {
	return func(context.Context, *adapter.Request) (*adapter.Response, error) { return nil, err }
}

func answers(status int, body string) func(context.Context, *adapter.Request) (*adapter.Response, error) {
	return func(context.Context, *adapter.Request) (*adapter.Response, error) { return reply(status, body), nil }
}

func hangs(ctx context.Context, _ *adapter.Request) (*adapter.Response, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

func TestCancelStopsTheProvider(t *testing.T) {
	g := newGateway(t)
	p := newProvider("tiny")
	stopped := make(chan time.Time, 1)
	for name, do := range map[string]func(context.Context, *adapter.Request) (*adapter.Response, error){
		"before the head": func(ctx context.Context, _ *adapter.Request) (*adapter.Response, error) {
			<-ctx.Done()
			stopped <- time.Now()
			return nil, ctx.Err()
		},
		"in the stream": func(ctx context.Context, _ *adapter.Request) (*adapter.Response, error) {
			context.AfterFunc(ctx, func() { stopped <- time.Now() })
			resp, _ := stream(ctx)
			return resp, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			p.set(func(p *provider) { p.do = do })
			c, s, stop := g.node(g.config(p))
			r := open(t, s, nil)
			_ = r.EndBody()
			if ev := r.Next(); ev.Kind != tunnel.EventAccepted {
				t.Fatalf("%+v", ev)
			}
			eventually(t, 5*time.Second, "the provider asked", func() bool { return c.Status().Runs == 1 && p.asked.Load() > 0 })
			start := time.Now()
			r.Cancel(tunnel.CodeCanceled)
			if d := (<-stopped).Sub(start); d > 500*time.Millisecond {
				t.Errorf("the provider worked on for %s", d)
			}
			_ = collect(r)
			eventually(t, 5*time.Second, "no run", func() bool { return c.Status().Runs == 0 })
			if free := c.Status().Targets[0].Credits; free.Free != free.Granted {
				t.Errorf("a credit was lost: %+v", free)
			}
			_ = stop()
		})
	}
}

// A deadline must reach the gateway even while the adapter waits for a body that never comes.
func TestDeadlineWhileTheBodyHangs(t *testing.T) {
	g := newGateway(t)
	p := newProvider("tiny")
	p.do = func(_ context.Context, r *adapter.Request) (*adapter.Response, error) {
		_, err := io.ReadAll(r.Body)
		return nil, err
	}
	_, s, _ := g.node(g.config(p))
	r := open(t, s, func(o *tunnel.RunOpen) { o.Body, o.DeadlineMs = tunnel.BodyStream, 100 })
	if res := collect(r); res.terminal.GetCode() != tunnel.CodeDeadlineExceeded {
		t.Errorf("%+v", res.terminal)
	}
}

func TestShortAnswerTakesFewWrites(t *testing.T) {
	g := newGateway(t)
	p := newProvider("tiny")
	p.do = func(ctx context.Context, _ *adapter.Request) (*adapter.Response, error) {
		resp, w := stream(ctx)
		resp.Headers = []adapter.Header{{Name: "Content-Length", Value: "6"}}
		go func() {
			_, _ = io.WriteString(w, "abc")
			time.Sleep(200 * time.Millisecond)
			_, _ = io.WriteString(w, "def")
			w.Close()
		}()
		return resp, nil
	}
	_, s, _ := g.node(g.config(p))
	r := open(t, s, nil)
	_ = r.EndBody()
	r.Next()
	start := time.Now()
	if ev := r.Next(); ev.Kind != tunnel.EventHead || time.Since(start) < 100*time.Millisecond {
		t.Errorf("the head of a short answer came alone, after %s", time.Since(start))
	}
	if res := collect(r); res.body != "abcdef" || res.terminal.GetBytes() != 6 {
		t.Errorf("%+v", res)
	}
}
