package store_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fairway-edge/fairway/internal/store"
)

const (
	// promised is the longest that a call may take, and what a busy machine adds to the budget.
	promised = 400 * time.Millisecond
	// back is how soon the store is used again after the server is there again.
	back = 2 * time.Second
)

// gateway is a store as one gateway has it, with a ready session of node n1.
type gateway struct {
	t    testing.TB
	r    *store.Redis
	name string
	e, g uint64
	pgn  uint64

	mu      sync.Mutex
	changes []bool // guarded by mu: what Changed was told
}

// open makes a gateway with the budget and the clock of production.
func open(t testing.TB, url, prefix, name string) *gateway {
	t.Helper()
	gw := &gateway{t: t, name: name}
	r, err := store.NewRedis(store.RedisOptions{URL: url, Prefix: prefix, Changed: func(up bool, err error) {
		if up != (err == nil) || err != nil && !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("changed: %v, %v", up, err)
		}
		gw.mu.Lock()
		defer gw.mu.Unlock()
		gw.changes = append(gw.changes, up)
	}})
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	gw.r = r
	return gw
}

func (gw *gateway) start() *gateway {
	gw.t.Helper()
	gw.insist(func(ctx context.Context) (err error) { gw.e, err = gw.r.Epoch(ctx, gw.name); return err })
	gw.insist(func(ctx context.Context) (err error) {
		gw.g, err = gw.r.Register(ctx, store.Registration{Node: "n1", Gateway: gw.name, Instance: "i", Epoch: gw.e})
		return err
	})
	gw.insist(func(ctx context.Context) error { return gw.r.Ready(ctx, "n1", gw.name, gw.g) })
	gw.insist(func(ctx context.Context) error {
		p, err := gw.r.Publish(ctx, map[string]string{"slot:s": "1"})
		gw.pgn = p.PGN
		return err
	})
	gw.beat(store.VerdictOK)
	return gw
}

// insist repeats a call that must succeed, as long as the machine is too busy for the budget.
func (gw *gateway) insist(call func(ctx context.Context) error) {
	gw.t.Helper()
	must(gw.t, said(call))
}

// said is what the store says to a call: that it cannot be reached only if it goes on saying so, for a busy machine may take a call its time.
func said(call func(ctx context.Context) error) (err error) {
	for range 100 {
		if err = call(context.Background()); err == nil || !errors.Is(err, store.ErrUnavailable) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	return err
}

// asked is what the store says to a lease.
func (gw *gateway) asked(subjects ...string) error {
	return said(func(context.Context) error { return gw.issue(subjects...) })
}

// revoked is what it says to a revocation.
func (gw *gateway) revoked(pgn uint64, subjects ...string) error {
	return said(func(ctx context.Context) error {
		_, err := gw.r.Revoke(ctx, subjects, pgn)
		return err
	})
}

// registered is what it says to a registration.
func (gw *gateway) registered(node string) (generation uint64, err error) {
	err = said(func(ctx context.Context) (err error) {
		generation, err = gw.r.Register(ctx, store.Registration{Node: node, Gateway: gw.name, Instance: "i", Epoch: gw.e})
		return err
	})
	return generation, err
}

func (gw *gateway) beat(want store.Verdict) (b store.BeatResult) {
	gw.t.Helper()
	gw.insist(func(ctx context.Context) (err error) {
		b, err = gw.r.Beat(ctx, gw.name, gw.e, []store.Held{{Node: "n1", Generation: gw.g}})
		return err
	})
	if !slices.Equal(b.Verdicts, []store.Verdict{want}) {
		gw.t.Fatalf("verdicts %v, want %v", b.Verdicts, want)
	}
	return b
}

func (gw *gateway) reassert(view store.Revocations) {
	gw.t.Helper()
	gw.insist(func(ctx context.Context) error {
		b, err := gw.r.Reassert(ctx, store.Assertion{
			Gateway: gw.name, Epoch: gw.e, Revocations: view, Objects: map[string]string{"slot:s": "1"},
			Publication: store.Publication{PGN: gw.pgn, Revisions: map[string]uint64{"slot:s": gw.pgn}},
			Sessions:    []store.SessionClaim{{Node: "n1", Instance: "i", Generation: gw.g, State: store.StateReady}},
		})
		if err == nil && !slices.Equal(b.Verdicts, []store.Verdict{store.VerdictOK}) {
			return fmt.Errorf("verdicts %v", b.Verdicts)
		}
		return err
	})
}

func (gw *gateway) issue(subjects ...string) error {
	return gw.r.Issue(context.Background(), store.Issue{Node: "n1", Gateway: gw.name, Generation: gw.g, PGN: gw.pgn, Subjects: subjects})
}

func (gw *gateway) told() []bool {
	gw.mu.Lock()
	defer gw.mu.Unlock()
	return slices.Clone(gw.changes)
}

// recovers waits until calls are answered again.
func (gw *gateway) recovers(from time.Time) {
	gw.t.Helper()
	for {
		_, err := gw.r.Node(context.Background(), "n1")
		if err == nil {
			break
		}
		if !errors.Is(err, store.ErrUnavailable) || time.Since(from) > 20*time.Second {
			gw.t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if took := time.Since(from); took > back {
		gw.t.Errorf("used again after %v, want %v", took, back)
	}
}

// everyCall is each method once, as a caller in a hurry makes it.
func (gw *gateway) everyCall() map[string]func(ctx context.Context) error {
	r := gw.r
	return map[string]func(ctx context.Context) error{
		"epoch": func(ctx context.Context) error { _, err := r.Epoch(ctx, "other"); return err },
		"register": func(ctx context.Context) error {
			_, err := r.Register(ctx, store.Registration{Node: "n2", Gateway: "other", Instance: "i", Epoch: 1 << 52})
			return err
		},
		"node":        func(ctx context.Context) error { _, err := r.Node(ctx, "n1"); return err },
		"ready":       func(ctx context.Context) error { return r.Ready(ctx, "n1", gw.name, gw.g) },
		"suspect":     func(ctx context.Context) error { return r.Suspect(ctx, "n1", gw.name, gw.g) },
		"gone":        func(ctx context.Context) error { return r.Gone(ctx, "n1", gw.name, gw.g) },
		"fence":       func(ctx context.Context) error { return r.Fence(ctx, "n1", gw.name, gw.g) },
		"beat":        func(ctx context.Context) error { _, err := r.Beat(ctx, gw.name, gw.e, nil); return err },
		"publish":     func(ctx context.Context) error { _, err := r.Publish(ctx, map[string]string{"a": "b"}); return err },
		"revoke":      func(ctx context.Context) error { _, err := r.Revoke(ctx, []string{"slot:x"}, 0); return err },
		"unrevoke":    func(ctx context.Context) error { return r.Unrevoke(ctx, []string{"slot:x"}) },
		"revocations": func(ctx context.Context) error { _, err := r.Revocations(ctx); return err },
		"min_pgn":     func(ctx context.Context) error { _, err := r.MinPGN(ctx); return err },
		"issue":       func(context.Context) error { return gw.issue("slot:s") },
		"drain":       func(ctx context.Context) error { return r.Drain(ctx, "n1", true) },
		"draining":    func(ctx context.Context) error { _, err := r.Draining(ctx, "n1"); return err },
		"redeem":      func(ctx context.Context) error { return r.RedeemToken(ctx, "t", 1, time.Now().Add(time.Hour)) },
		"reassert": func(ctx context.Context) error {
			_, err := r.Reassert(ctx, store.Assertion{Gateway: gw.name, Epoch: gw.e})
			return err
		},
	}
}

// refused calls everything until the store no longer asks the server, and then again: nothing may take longer than
// promised, then nothing may take long at all, and every error is ErrUnavailable. It reports false for a call that took
// too long, which the machine may be to blame for.
func (gw *gateway) refused() bool {
	gw.t.Helper()
	prompt := true
	var mu sync.Mutex
	for round := range 2 {
		var wg sync.WaitGroup
		for name, call := range gw.everyCall() {
			for range 3 {
				wg.Go(func() {
					begin := time.Now()
					err := call(context.Background())
					took := time.Since(begin)
					if !errors.Is(err, store.ErrUnavailable) {
						gw.t.Errorf("%s: %v, want ErrUnavailable", name, err)
					}
					mu.Lock()
					defer mu.Unlock()
					if round == 0 && took > promised || round == 1 && took > promised/4 {
						gw.t.Logf("round %d: %s took %v", round, name, took)
						prompt = false
					}
				})
			}
		}
		wg.Wait()
	}
	return prompt
}

// Whatever happens to the server: calls fail within the budget, then at once, and the store is back soon after the server.
func TestRedisFaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		begin  func(s *server, p *proxy)
		end    func(s *server, p *proxy)
		doubts bool // the server is another one, as far as the store can tell
	}{
		{name: "black hole", begin: func(_ *server, p *proxy) { p.set(swallow) }, end: func(_ *server, p *proxy) { p.set(pass) }},
		{name: "answers get lost", begin: func(_ *server, p *proxy) { p.set(silence) }, end: func(_ *server, p *proxy) { p.set(pass) }},
		{name: "slow", begin: func(_ *server, p *proxy) { p.set(slow) }, end: func(_ *server, p *proxy) { p.set(pass) }},
		{name: "refused", begin: func(_ *server, p *proxy) { p.set(refuse) }, end: func(_ *server, p *proxy) { p.set(pass) }},
		{name: "frozen", begin: func(s *server, _ *proxy) { s.freeze() }, end: func(s *server, _ *proxy) { s.thaw() }},
		{name: "loading", begin: func(_ *server, p *proxy) { p.set(loading) }, end: func(_ *server, p *proxy) { p.set(pass) }},
		{name: "writes are refused", begin: func(_ *server, p *proxy) { p.set(readonly) }, end: func(_ *server, p *proxy) { p.set(pass) }},
		{
			name:  "clients are paused",
			begin: func(s *server, _ *proxy) { s.do("client", "pause", 2000, "all") },
			end:   func(s *server, _ *proxy) { s.do("ping") }, // answered when the pause is over
		},
		{
			name:  "out of memory",
			begin: func(s *server, _ *proxy) { s.do("config", "set", "maxmemory", "1") },
			end:   func(s *server, _ *proxy) { s.do("config", "set", "maxmemory", "0") },
		},
		{
			name:   "made a replica",
			begin:  func(s *server, _ *proxy) { s.do("replicaof", "127.0.0.1", "1") },
			end:    func(s *server, _ *proxy) { s.do("replicaof", "no", "one") },
			doubts: true,
		},
		{
			name: "made a replica that does not serve old data",
			begin: func(s *server, _ *proxy) {
				s.do("config", "set", "replica-serve-stale-data", "no")
				s.do("replicaof", "127.0.0.1", "1")
			},
			end:    func(s *server, _ *proxy) { s.do("replicaof", "no", "one") },
			doubts: true,
		},
		{
			name:  "too few replicas to write",
			begin: func(s *server, _ *proxy) { s.do("config", "set", "min-replicas-to-write", "1") },
			end:   func(s *server, _ *proxy) { s.do("config", "set", "min-replicas-to-write", "0") },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := startRedis(t)
			p := startProxy(t, s.addr)
			gw := open(t, p.url(), "fw", "gw1").start()
			must(t, gw.issue("slot:s"))
			before := gw.beat(store.VerdictOK)
			prompt := false
			for range 3 { // the first time that the machine is not too busy to tell
				tt.begin(s, p)
				prompt = gw.refused()
				tt.end(s, p)
				begin := time.Now()
				gw.recovers(begin)
				if tt.doubts {
					if err := gw.issue("slot:s"); !errors.Is(err, store.ErrUnavailable) {
						t.Errorf("issue before it is known what was lost: %v", err)
					}
				}
				gw.reassert(store.Revocations{})
				gw.insist(func(context.Context) error { return gw.issue("slot:s") })
				if after := gw.beat(store.VerdictOK); (after.Incarnation != before.Incarnation) != tt.doubts {
					t.Errorf("incarnation %s, then %s", before.Incarnation, after.Incarnation)
				}
				if prompt || t.Failed() {
					break
				}
			}
			if !prompt {
				t.Error("calls took too long")
			}
			eventually(t, 10*time.Second, "connections of before are closed", func() bool { return p.open() <= 4 })
			changes := gw.told()
			for i, up := range changes {
				if up != (i%2 == 1) {
					t.Errorf("told %v", changes)
					break
				}
			}
			if len(changes) < 2 {
				t.Errorf("told %v", changes)
			}
		})
	}
}

// A server that comes back empty is one that has lost everything.
func TestRedisRestartsEmpty(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		lose func(s *server)
		seen bool // by the store itself: the connections are new
	}{
		{"flushed", func(s *server) { s.do("flushall") }, false},
		{"restarted", func(s *server) {
			_, port, _ := strings.Cut(s.addr, ":")
			s.kill()
			startRedisAt(s.t, port)
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := startRedis(t)
			gw := open(t, s.url(), "fw", "gw1").start()
			must(t, gw.revoked(gw.pgn, "slot:bad", "node:evil"))
			var view store.Revocations
			gw.insist(func(ctx context.Context) (err error) {
				view, err = gw.r.Revocations(ctx)
				return err
			})
			before := gw.beat(store.VerdictOK)

			tt.lose(s)
			gw.recovers(time.Now())
			want := store.ErrStale
			if tt.seen {
				want = store.ErrUnavailable
			}
			if err := gw.issue("slot:bad"); !errors.Is(err, want) {
				t.Errorf("issue: %v, want %v", err, want)
			}
			after := gw.beat(store.VerdictMissing)
			if after.Incarnation == before.Incarnation {
				t.Error("nothing says that the data is lost")
			}
			// Another gateway has told of the session and of no revocation: not enough for this one.
			other := open(t, s.url(), "fw", "gw2")
			other.e, other.g, other.pgn = 1, gw.g, gw.pgn
			other.insist(func(ctx context.Context) error {
				_, err := other.r.Reassert(ctx, store.Assertion{Gateway: "gw1", Epoch: gw.e, Sessions: []store.SessionClaim{
					{Node: "n1", Instance: "i", Generation: gw.g, State: store.StateReady},
				}})
				return err
			})
			if err := gw.issue("slot:bad"); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("issue: %v", err)
			}
			gw.reassert(view)
			if err := gw.asked("slot:bad"); !errors.Is(err, store.ErrRevoked) {
				t.Errorf("issue: %v", err)
			}
			must(t, gw.asked("slot:s"))
			if _, err := gw.registered("evil"); !errors.Is(err, store.ErrDisabled) {
				t.Errorf("register: %v", err)
			}
			next, err := gw.registered("n1")
			if err != nil || next <= gw.g {
				t.Errorf("generation %d after %d, %v", next, gw.g, err)
			}
		})
	}
}

// Scripts that the server has forgotten are sent again, alone and among others.
func TestRedisForgetsScripts(t *testing.T) {
	t.Parallel()
	primary := startRedis(t, "--repl-diskless-sync-delay", "0")
	host, port, _ := strings.Cut(primary.addr, ":")
	startRedis(t, "--replicaof", host+" "+port)
	eventually(t, 20*time.Second, "a replica follows", func() bool {
		return primary.info("replication", "slave0") != "" && strings.Contains(primary.info("replication", "slave0"), "online")
	})
	gw := open(t, primary.url(), "fw", "gw1").start()
	for name, call := range gw.everyCall() {
		primary.do("script", "flush", "sync")
		err := call(t.Context())
		if errors.Is(err, store.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) { // a slow machine's
			t.Errorf("%s: %v", name, err)
		}
	}
	primary.do("script", "flush", "sync")
	var held []store.Held
	for i := range 6000 {
		held = append(held, store.Held{Node: fmt.Sprint("x", i), Generation: 1})
	}
	gw.insist(func(ctx context.Context) error {
		b, err := gw.r.Beat(ctx, "gw1", gw.e, held)
		if err == nil && len(b.Verdicts) != len(held) {
			t.Errorf("%d verdicts", len(b.Verdicts))
		}
		return err
	})
}

// A script that never ends is another client's; the server says that it is busy.
func TestRedisBusy(t *testing.T) {
	t.Parallel()
	s := startRedis(t, "--busy-reply-threshold", "20")
	gw := open(t, s.url(), "fw", "gw1").start()
	c := redis.NewClient(&redis.Options{Addr: s.addr, MaxRetries: -1, ReadTimeout: time.Minute})
	defer c.Close()
	done := make(chan error, 1)
	go func() { done <- c.Eval(context.Background(), "while true do end", nil).Err() }()
	eventually(t, 10*time.Second, "the server is busy", func() bool {
		_, err := gw.r.Node(t.Context(), "n1")
		return redis.HasErrorPrefix(err, "BUSY")
	})
	gw.refused()
	s.do("script", "kill")
	begin := time.Now()
	if err := <-done; err == nil {
		t.Error("the script has ended")
	}
	gw.recovers(begin)
}

// The use of a call whose answer was lost goes to the next one.
func TestRedisTokenAnswerLost(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	p := startProxy(t, s.addr)
	gw := open(t, p.url(), "fw", "gw1").start()
	end := time.Now().Add(time.Hour)
	gw.insist(func(ctx context.Context) error { return gw.r.RedeemToken(ctx, "another", 1, end) }) // the server knows the script
	for uses := range 3 {
		uses++
		jti := fmt.Sprint("t", uses)
		p.set(silence)
		for range 2 { // not enough to open the breaker
			if err := gw.r.RedeemToken(t.Context(), jti, uses, end); !errors.Is(err, store.ErrUnavailable) {
				t.Fatalf("redeem: %v", err)
			}
		}
		p.set(pass)
		given := 0
		for {
			var err error
			gw.insist(func(ctx context.Context) error {
				if err = gw.r.RedeemToken(ctx, jti, uses, end); errors.Is(err, store.ErrTokenSpent) {
					return nil
				}
				return err
			})
			if err != nil {
				break
			}
			given++
		}
		if given != uses {
			t.Fatalf("%d uses given, want %d", given, uses)
		}
	}
}

// What a lost answer costs is a number.
func TestRedisRegisterAnswerLost(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	p := startProxy(t, s.addr)
	gw := open(t, p.url(), "fw", "gw1").start()
	p.set(silence)
	if _, err := gw.r.Register(t.Context(), store.Registration{Node: "n1", Gateway: "gw1", Instance: "i", Epoch: gw.e}); !errors.Is(err, store.ErrUnavailable) {
		t.Fatalf("register: %v", err)
	}
	p.set(pass)
	if b := gw.beat(store.VerdictSuperseded); b.Incarnation == "" {
		t.Error("no incarnation")
	}
	gw.insist(func(ctx context.Context) error {
		next, err := gw.r.Register(ctx, store.Registration{Node: "n1", Gateway: "gw1", Instance: "i", Epoch: gw.e})
		if err == nil && next <= gw.g+1 {
			t.Errorf("generation %d after %d and a lost one", next, gw.g)
		}
		return err
	})
}

// A caller that does not wait says nothing of the server.
func TestRedisCallerGivesUp(t *testing.T) {
	t.Parallel()
	gw := open(t, startRedis(t).url(), "fw", "gw1").start()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 10 {
		if _, err := gw.r.Node(ctx, "n1"); !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, context.Canceled) {
			t.Fatalf("node: %v", err)
		}
	}
	if told := gw.told(); len(told) != 0 {
		t.Fatalf("told %v", told)
	}
	must(t, gw.issue())
}

// What a call has sent and given up must not arrive later, when the network is whole again.
func TestRedisGivesUpForGood(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	ended := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			ended <- err
			return
		}
		defer c.Close()
		for buf := make([]byte, 1024); ; {
			if _, err := c.Read(buf); err != nil {
				ended <- err
				return
			}
		}
	}()
	r, err := store.NewRedis(store.RedisOptions{URL: "redis://" + l.Addr().String()})
	must(t, err)
	defer r.Close()
	if _, err := r.Epoch(t.Context(), "gw1"); !errors.Is(err, store.ErrUnavailable) {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("the connection has ended by %v: the system sends on what is not sent yet", err)
	}
}
