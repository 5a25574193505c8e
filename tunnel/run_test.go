package tunnel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"
)

func TestRunCarriesABodyBothWays(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, s := r.node("n1", echo)
	for _, size := range []int{0, 1, 1000, 1 << 10, 64 << 10, 64<<10 + 1, 9 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			body := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
			run, err := s.Lane().OpenRun(context.Background(), &RunOpen{Run: fmt.Sprint("r", size), Generation: s.Generation(), Body: BodyStream}, nil, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			wg.Go(func() {
				if err := run.WriteBody(body); err != nil {
					t.Error(err)
				}
				if err := run.EndBody(); err != nil {
					t.Error(err)
				}
			})
			var res result
			func() {
				defer wg.Wait()
				for {
					ev := run.Next()
					if ev.Kind == EventData {
						res.body = append(res.body, ev.Data...)
					}
					if ev.Kind == EventTerminal {
						res.terminal = ev.Terminal
						return
					}
				}
			}()
			run.Close()
			if res.terminal.Outcome != Completed || !bytes.Equal(res.body, body) {
				t.Fatalf("outcome %v, %d bytes of %d", res.terminal, len(res.body), len(body))
			}
		})
	}
}

func TestOneFrameAWriteKeepsItsEdges(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, s := r.node("n1", func(_ context.Context, nr *NodeRun) {
		_ = nr.Accept()
		_ = nr.SendHead(&Head{Status: 200}, false)
		for i := range 40 {
			_ = nr.SendData(fmt.Appendf(nil, "line %d\n", i), true)
		}
		_ = nr.Finish(&Terminal{Outcome: Completed})
	})
	res := collect(open(t, s, "r1", nil))
	if res.frames != 40 || res.terminal.Outcome != Completed {
		t.Fatalf("%d frames, %v", res.frames, res.terminal)
	}
}

func TestFenceIsLastBeforeTheFirstByte(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var served sync.WaitGroup
	_, s := r.node("n1", func(_ context.Context, nr *NodeRun) {
		t.Error("a fenced run reached the node")
		_ = nr.Refuse(&Refused{})
	})
	errStale := errors.New("stale")
	for range 20 {
		served.Go(func() {
			_, err := s.Lane().OpenRun(context.Background(), &RunOpen{Run: "x", Generation: s.Generation()}, nil, nil, func() error { return errStale })
			if !errors.Is(err, errStale) {
				t.Errorf("got %v", err)
			}
		})
	}
	served.Wait()
	if n := s.Lane().Runs(); n != 0 {
		t.Fatalf("%d runs are left", n)
	}
}

func TestCloseFencesLaterRuns(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, s := r.node("n1", echo)
	s.Close(CloseReplaced, "test")
	_, err := s.Lane().OpenRun(context.Background(), &RunOpen{Run: "x", Generation: s.Generation()}, nil, nil, nil)
	if !errors.Is(err, ErrGone) {
		t.Fatalf("got %v, want ErrGone", err)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ns, s := r.node("n1", func(_ context.Context, nr *NodeRun) {
		if string(nr.Open.Path) == "/late" {
			_ = nr.Accept()
		}
		_ = nr.Refuse(&Refused{Code: CodeNodeBusy, Retry: RetryElsewhere, NoCredit: true, Answer: &Answer{Status: 503, Body: []byte("busy")}})
	})
	for _, path := range []string{"/early", "/late"} {
		run, err := s.Lane().OpenRun(context.Background(), &RunOpen{Run: "r" + path, Generation: s.Generation(), Path: []byte(path)}, nil, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = run.EndBody()
		res := collect(run)
		if res.refused == nil || res.refused.Retry != RetryElsewhere || string(res.refused.Answer.Body) != "busy" || res.accepted != (path == "/late") {
			t.Fatalf("%s: %+v", path, res)
		}
	}
	t.Run("another generation", func(t *testing.T) {
		run, err := s.Lane().OpenRun(context.Background(), &RunOpen{Run: "old", Generation: s.Generation() + 1}, nil, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if res := collect(run); res.refused == nil || res.refused.Code != CodeStaleGeneration {
			t.Fatalf("%+v", res)
		}
	})
	t.Run("draining", func(t *testing.T) {
		if err := ns.Drain("test", time.Second); err != nil {
			t.Fatal(err)
		}
		eventually(t, "draining", func() bool { return s.State() == StateDraining })
		if _, err := s.Lane().OpenRun(context.Background(), &RunOpen{Run: "d", Generation: s.Generation()}, nil, nil, nil); !errors.Is(err, ErrGone) {
			t.Fatalf("got %v", err)
		}
	})
}

func TestCancelReachesTheHandler(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	seen := make(chan time.Time, 1)
	_, s := r.node("n1", func(ctx context.Context, nr *NodeRun) {
		_ = nr.Accept()
		<-ctx.Done()
		seen <- time.Now()
	})
	for _, how := range []string{"stream", "control"} {
		run := open(t, s, how, nil)
		if ev := run.Next(); ev.Kind != EventAccepted {
			t.Fatalf("%+v", ev)
		}
		start := time.Now()
		if how == "stream" {
			run.Cancel(CodeCanceled)
		} else if err := s.CancelRun(how); err != nil {
			t.Fatal(err)
		}
		if d := (<-seen).Sub(start); d > 100*time.Millisecond {
			t.Errorf("%s: the handler saw the cancel after %v", how, d)
		}
		if res := collect(run); res.terminal.Outcome != Canceled || res.terminal.Code != CodeCanceled {
			t.Errorf("%s: %v", how, res.terminal)
		}
	}
}

// openReady opens a run, and waits while the session is suspect: on a busy machine beats are late.
func openReady(ctx context.Context, s *Session, o *RunOpen) (*Run, error) {
	for {
		run, err := s.Lane().OpenRun(ctx, o, nil, nil, nil)
		if err == nil || !errors.Is(err, ErrGone) || s.State() == StateGone || ctx.Err() != nil {
			return run, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Invariant 3: however a run ends, the gateway sees exactly one end, and nothing is left.
func TestEveryEndingLeavesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ns, s := r.node("n1", func(ctx context.Context, nr *NodeRun) {
		switch string(nr.Open.Path) {
		case "/refuse":
			_ = nr.Refuse(&Refused{Code: CodeNodeBusy})
		case "/left":
			_ = nr.Accept()
		case "/early": // answers without reading the body
			_ = nr.Accept()
			_ = nr.SendHead(&Head{Status: 413}, true)
			_ = nr.Finish(&Terminal{Outcome: Completed})
		case "/hang":
			_ = nr.Accept()
			<-ctx.Done()
		default:
			echo(ctx, nr)
		}
	})
	want := map[string]string{"/refuse": "node_busy", "/left": "bad_run", "/early": "", "/hang": "canceled", "/echo": ""}
	var wg sync.WaitGroup
	// Twice as many as there are streams: all wait for one, and none as long as OpenRun waits on a slow machine.
	at := make(chan struct{}, 2*nodeStreams)
	for i := range 4 * nodeStreams {
		for path, code := range want {
			if i%(nodeStreams/8) != 0 && path == "/hang" {
				continue
			}
			at <- struct{}{}
			wg.Go(func() {
				defer func() { <-at }()
				ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
				defer cancel()
				run, err := openReady(ctx, s, &RunOpen{Run: fmt.Sprint(path, i), Generation: s.Generation(), Path: []byte(path)})
				if err != nil {
					t.Error(err)
					return
				}
				if err := run.WriteBody(make([]byte, 3000)); err == nil {
					_ = run.EndBody()
				}
				if path == "/hang" {
					run.Next()
					run.Cancel(CodeCanceled)
				}
				res := collect(run)
				got := res.terminal.GetCode() + res.refused.GetCode()
				if got != code {
					t.Errorf("%s: %q, want %q (%v %v)", path, got, code, res.terminal, res.refused)
				}
			})
		}
	}
	wg.Wait()
	eventually(t, "no runs on either side", func() bool { return s.Lane().Runs() == 0 && ns.Runs() == 0 })
	// Stream credit is back: as many again can be open at once.
	runs := make([]*Run, nodeStreams)
	for i := range runs {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		run, err := openReady(ctx, s, &RunOpen{Run: fmt.Sprint("again", i), Generation: s.Generation(), Path: []byte("/hang")})
		cancel()
		if err != nil {
			t.Fatalf("stream %d: %v", i, err)
		}
		runs[i] = run
	}
	for _, run := range runs {
		run.Close()
	}
}

func TestSessionEndEndsItsRuns(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		code string
		end  func(ns *NodeSession, s *Session)
	}{
		{"the node closes", CodeNodeLost, func(ns *NodeSession, _ *Session) { ns.Close(CloseNone, "bye") }},
		{"a newer session took over", CodeNodeReplaced, func(_ *NodeSession, s *Session) { s.Close(CloseReplaced, "") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			handled := make(chan struct{})
			ns, s := r.node("n1", func(ctx context.Context, nr *NodeRun) {
				_ = nr.Accept()
				<-ctx.Done()
				close(handled)
			})
			run := open(t, s, "r1", nil)
			run.Next()
			tt.end(ns, s)
			res := collect(run)
			if res.terminal.Outcome != Failed || res.terminal.Code != tt.code {
				t.Fatalf("%v", res.terminal)
			}
			<-handled
			if got := <-r.reg.gone; got != s {
				t.Fatal("Gone was told another session")
			}
		})
	}
}
