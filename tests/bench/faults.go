package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quic-go/quic-go/http3"
	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/nodeclient"
	"github.com/fairway-edge/fairway/nodeclient/demo"
)

const idleCount = 200

// benchMemory measures what idle nodes and idle streams cost.
func benchMemory(ctx context.Context, b *bed, t *table) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args := []string{"idle-nodes", b.udp, b.dir}
	for i := range idleCount {
		out, err := b.fairway("token", "--node", fmt.Sprintf("idle%d", i))
		if err != nil {
			return err
		}
		args = append(args, pickToken(out))
	}
	base := b.gateway.rss()
	nodes, err := b.start(nil, self, args...)
	if err != nil {
		return err
	}
	if err := until(ctx, time.Minute, func() bool { return b.ready("idle") == idleCount }); err != nil {
		return fmt.Errorf("%d of %d idle nodes: %w\n%s", b.ready("idle"), idleCount, err, nodes.log.String())
	}
	time.Sleep(6 * time.Second)
	t.add("memory: gateway KiB an idle node", "fairway", (b.gateway.rss()-base)/idleCount)
	_ = nodes.cmd.Process.Signal(syscall.SIGTERM)
	_ = nodes.cmd.Wait()

	for _, p := range b.paths {
		if len(p.procs) == 0 {
			continue
		}
		before := p.rss()
		ctx, cancel := context.WithCancel(ctx)
		c := client(500)
		var wg sync.WaitGroup
		for range 500 {
			r, err := post(ctx, c, p.url, strings.NewReader(`{"model":"bench","b_tokens":1000,"b_ms":100000,"messages":[{"role":"user","content":"hi"}]}`))
			if err != nil {
				cancel()
				return err
			}
			wg.Go(func() { _, _ = io.Copy(io.Discard, r.Body); r.Body.Close() })
		}
		time.Sleep(2 * time.Second)
		t.add("memory: KiB an idle stream", p.name, (p.rss()-before)/500)
		cancel()
		wg.Wait()
		c.CloseIdleConnections()
	}
	return nil
}

func (p *path) rss() (sum float64) {
	for _, pr := range p.procs {
		sum += pr.rss()
	}
	return sum
}

// ready counts the ready nodes whose names begin with prefix.
func (b *bed) ready(prefix string) int {
	r, err := http.Get("http://" + b.admin + "/fairway/nodes") //nolint:noctx // loopback
	if err != nil {
		return 0
	}
	defer r.Body.Close()
	var rows []struct{ Name, State string }
	_ = json.NewDecoder(r.Body).Decode(&rows)
	n := 0
	for _, row := range rows {
		if strings.HasPrefix(row.Name, prefix) && row.State == "ready" {
			n++
		}
	}
	return n
}

// idleNodes is a child that holds one session a token.
func idleNodes(args []string) error {
	addr, dir, tokens := args[0], args[1], args[2:]
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	errs := make(chan error, len(tokens))
	for i, token := range tokens {
		id, err := nodeclient.NewStateIdentity(fmt.Sprintf("%s/idle%d", dir, i), token, []string{addr}, zap.NewNop())
		if err != nil {
			return err
		}
		c, err := nodeclient.New(nodeclient.Config{Identity: id, Gateways: []string{addr}, Targets: []nodeclient.Target{{Adapter: demo.New()}}})
		if err != nil {
			return err
		}
		go func() { errs <- c.Run(ctx) }()
		time.Sleep(10 * time.Millisecond)
	}
	return <-errs
}

// benchRecover measures how soon a node is ready after a killed gateway is back, and how soon a frozen one is noticed.
func benchRecover(ctx context.Context, b *bed, t *table) error {
	for range max(*rounds, 5) {
		b.gateway.kill()
		time.Sleep(300 * time.Millisecond)
		g, err := b.caddy("fairway", b.gatewayFile)
		if err != nil {
			return err
		}
		*b.gateway = proc{cmd: g.cmd}
		if err := until(ctx, 20*time.Second, func() bool { return bound(b.udp) }); err != nil {
			return err
		}
		start := time.Now()
		if err := until(ctx, 60*time.Second, func() bool { return b.ready("n1") == 1 }); err != nil {
			return err
		}
		t.add("ready after a killed gateway has bound its port: s", "fairway", time.Since(start).Seconds())
		time.Sleep(1500 * time.Millisecond)
	}
	_ = b.node.cmd.Process.Signal(syscall.SIGSTOP)
	start := time.Now()
	err := until(ctx, 30*time.Second, func() bool { return b.ready("n1") == 0 })
	t.add("a frozen node gets no more runs: s", "fairway", time.Since(start).Seconds())
	_ = b.node.cmd.Process.Signal(syscall.SIGCONT)
	if err != nil {
		return err
	}
	return until(ctx, 30*time.Second, func() bool { return b.ready("n1") == 1 })
}

// bound reports whether the UDP port is taken.
func bound(addr string) bool {
	c, err := net.ListenPacket("udp", addr) //nolint:noctx // loopback
	if err != nil {
		return true
	}
	c.Close()
	return false
}

// benchReload counts the requests that fail on kept connections of each protocol while the gateway reloads 100 times.
func benchReload(ctx context.Context, b *bed, t *table) error {
	conf := &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"} //nolint:gosec // a CA of the run's own
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, b.tlsAddr)
	}
	_, port, _ := net.SplitHostPort(b.tlsAddr)
	clients := map[string]struct {
		c   *http.Client
		url string
	}{
		"h1": {client(4), b.path("fairway").url},
		// What stock Caddy does to POSTs on kept HTTP/1.1 connections while it reloads: its old server closes them between two requests.
		"h1 of a plain respond site": {client(4), "http://" + b.plain},
		"h2":                         {&http.Client{Transport: &http.Transport{TLSClientConfig: conf, ForceAttemptHTTP2: true, DialContext: dial}}, "https://localhost:" + port},
		"h3":                         {&http.Client{Transport: &http3.Transport{TLSClientConfig: conf.Clone()}}, "https://localhost:" + port},
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	counts := map[string]*[3]atomic.Int64{} // requests, failed on a connection that was in use before, failed on a fresh one
	for name, cl := range clients {
		n := &[3]atomic.Int64{}
		counts[name] = n
		for range 2 {
			wg.Go(func() {
				for !stop.Load() {
					kept := name == "h3" // whose client does not trace; it keeps its connection
					traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { kept = i.Reused }})
					r, err := post(traced, cl.c, cl.url, strings.NewReader(smallBody))
					n[0].Add(1)
					if err != nil {
						at := 2
						if kept {
							at = 1
						}
						n[at].Add(1)
						fmt.Fprintln(os.Stderr, "reload:", name, "kept", kept, err)
						continue
					}
					_, _ = io.Copy(io.Discard, r.Body)
					r.Body.Close()
				}
			})
		}
	}
	var err error
	for range 100 {
		if err = b.reload(); err != nil {
			break
		}
	}
	stop.Store(true)
	wg.Wait()
	for name, n := range counts {
		t.add("100 reloads under load: requests on "+name, "fairway", float64(n[0].Load()))
		t.add("100 reloads under load: failed on kept connections of "+name, "fairway", float64(n[1].Load()))
		t.add("100 reloads under load: failed on fresh connections of "+name, "fairway", float64(n[2].Load()))
	}
	return err
}
