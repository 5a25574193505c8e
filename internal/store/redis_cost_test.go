package store_test

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/store"
)

// What the store costs is bounded: commands, the server's time, its memory. The figures of docs/adr/0005-redis-store.md
// are what this test logs. The bounds are generous: they hold on a machine that is busy with other tests.

// spent is the server's own account: how many commands clients have sent, scripts' own not among them, and its CPU time.
type spent struct {
	commands int
	cpu      time.Duration
}

func (s *server) spent() spent {
	s.t.Helper()
	var out spent
	for line := range strings.Lines(s.do("info", "commandstats")) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), ":calls=")
		switch strings.TrimPrefix(name, "cmdstat_") {
		case "evalsha", "eval", "wait", "script|load", "ping":
			n, _, _ := strings.Cut(rest, ",")
			calls, _ := strconv.Atoi(n)
			out.commands += calls
		}
	}
	for line := range strings.Lines(s.do("info", "cpu")) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ":")
		if ok && (name == "used_cpu_user" || name == "used_cpu_sys") {
			seconds, err := strconv.ParseFloat(value, 64)
			must(s.t, err)
			out.cpu += time.Duration(seconds * float64(time.Second))
		}
	}
	return out
}

func (s *server) memory() int {
	s.t.Helper()
	n, err := strconv.Atoi(s.info("memory", "used_memory"))
	must(s.t, err)
	return n
}

func processCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func TestRedisCost(t *testing.T) {
	const nodes = 10_000
	s := startRedis(t)
	r := openOptions(t, store.RedisOptions{URL: s.url(), Prefix: "fairway"}, patience, nil)
	ctx := context.Background()
	e, err := r.Epoch(ctx, "gw1")
	must(t, err)
	names := make([]string, nodes)
	for i := range names {
		names[i] = fmt.Sprintf("node-%08d", i)
	}
	held := make([]store.Held, nodes)

	// measure runs n calls and tells what each has cost.
	measure := func(what string, n int, call func(i int)) (commands float64, server time.Duration) {
		runtime.GC()
		was, mine, begin := s.spent(), processCPU(), time.Now()
		for i := range n {
			call(i)
		}
		took, here := time.Since(begin), processCPU()-mine
		now := s.spent()
		commands, server = float64(now.commands-was.commands)/float64(n), (now.cpu-was.cpu)/time.Duration(n)
		t.Logf("%-26s %5.2f commands, server %8v, gateway %8v, round trip %8v", what, commands, server, here/time.Duration(n), took/time.Duration(n))
		return commands, server
	}
	bound := func(what string, got, most float64) {
		t.Helper()
		if got > most {
			t.Errorf("%s: %.2f, at most %.2f", what, got, most)
		}
	}

	const instance = "0123456789abcdef0123456789abcdef"
	const registered = nodes / 5 // one by one; the others are told of
	empty := s.memory()
	commands, _ := measure("Register", registered, func(i int) {
		g, err := r.Register(ctx, store.Registration{Node: names[i], Gateway: "gw1", Instance: instance, Epoch: e})
		must(t, err)
		held[i] = store.Held{Node: names[i], Generation: g}
	})
	bound("commands of a registration", commands, 1.01)
	one := s.memory()
	t.Logf("%-26s %d bytes", "memory of a node", (one-empty)/registered)
	bound("bytes of a node", float64(one-empty)/registered, 700)
	measure("Ready", registered, func(i int) { must(t, r.Ready(ctx, names[i], "gw1", held[i].Generation)) })
	claims := make([]store.SessionClaim, nodes)
	for i, n := range names {
		if held[i].Generation == 0 {
			held[i] = store.Held{Node: n, Generation: held[0].Generation}
		}
		claims[i] = store.SessionClaim{Node: n, Instance: instance, Generation: held[i].Generation, State: store.StateReady}
	}
	e2, err := r.Epoch(ctx, "gw2")
	must(t, err)
	for _, a := range []store.Assertion{{Gateway: "gw1", Epoch: e, Sessions: claims}, {Gateway: "gw2", Epoch: e2, Sessions: claims}} {
		one = s.memory()
		_, err = r.Reassert(ctx, a)
		must(t, err)
	}
	t.Logf("%-26s %d bytes", "each further gateway of it", (s.memory()-one)/nodes)

	p, err := r.Publish(ctx, map[string]string{"slot:a": "1"})
	must(t, err)
	beat := func(int) {
		b, err := r.Beat(ctx, "gw1", e, held)
		must(t, err)
		for i, v := range b.Verdicts {
			if v != store.VerdictOK {
				t.Fatalf("verdict %s of %v", v, held[i])
			}
		}
	}
	beat(0)
	commands, server := measure("Beat of 10,000 sessions", 20, beat)
	bound("commands of a beat", commands, 19)
	bound("share of one core that a beat a second takes", server.Seconds(), 0.10)
	issue := store.Issue{Gateway: "gw1", PGN: p.PGN, Subjects: []string{"slot:openai", "profile:vllm", "principal:alice"}}
	commands, _ = measure("Issue", registered, func(i int) {
		now := issue
		now.Node, now.Generation = names[i], held[i].Generation
		must(t, r.Issue(ctx, now))
	})
	bound("commands of a lease", commands, 1.01)
	beat(0)
	measure("Fence", registered, func(i int) { must(t, r.Fence(ctx, names[i], "gw1", held[i].Generation)) })
	measure("Node", registered, func(i int) { _, err := r.Node(ctx, names[i]); must(t, err) })
	measure("Revoke and Unrevoke", 500, func(i int) {
		subject := []string{fmt.Sprint("lease:", i)}
		_, err := r.Revoke(ctx, subject, 0)
		must(t, err)
		must(t, r.Unrevoke(ctx, subject))
	})
	objects := map[string]string{}
	for i := range 10_000 {
		objects[fmt.Sprint("slot:", i)] = strings.Repeat("x", 43)
	}
	measure("Publish of 10,000 objects", 1, func(int) { p, err = r.Publish(ctx, objects); must(t, err) })
	measure("the same again", 5, func(int) { _, err := r.Publish(ctx, objects); must(t, err) })

	view, err := r.Revocations(ctx)
	must(t, err)
	s.do("flushall")
	_, err = r.Beat(ctx, "gw1", e, held)
	must(t, err)
	commands, _ = measure("Reassert to an empty store", 1, func(int) {
		b, err := r.Reassert(ctx, store.Assertion{Gateway: "gw1", Epoch: e, Sessions: claims, Revocations: view, Objects: objects, Publication: p})
		must(t, err)
		if len(b.Verdicts) != nodes {
			t.Fatalf("%d verdicts", len(b.Verdicts))
		}
	})
	bound("commands of a reassertion", commands, 40)
}
