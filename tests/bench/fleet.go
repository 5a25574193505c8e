package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The ways of benchFleet: a gateway with a store of its own, two on one Redis where the node is at the gateway that is asked, or at the other one, and the first
// of these while Redis answers nothing.
const (
	alone     = "one gateway"
	local     = "two, local"
	forwarded = "two, forwarded"
	holed     = "two, local, Redis silent"

	fleetClients = 32
	fleetCPU     = "CPU µs a request, gateways and node"
)

// benchFleet measures what a fleet costs a run without a credential.
func benchFleet(ctx context.Context, b *bed, t *table) error {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return errors.New("redis-server is missing")
	}
	redis := free()
	_, port, _ := net.SplitHostPort(redis)
	server, err := b.start(nil, program, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", b.dir)
	if err != nil {
		return err
	}
	time.Sleep(300 * time.Millisecond)
	single, err := b.fleet(ctx, "alone", "")
	if err != nil {
		return err
	}
	single.name = alone
	near, far, err := b.twoGateways(ctx, redis)
	if err != nil {
		return err
	}
	measure := func(p *path) error {
		rps, p50, p99, cpu, err := requests(ctx, p, fleetClients)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		t.addFleet("requests/s", p.name, rps)
		t.addFleet("p50 µs", p.name, p50)
		t.addFleet("p99 µs", p.name, p99)
		t.addFleet(fleetCPU, p.name, cpu)
		return nil
	}
	silent := &path{name: holed, url: near.url, procs: near.procs}
	return inRandomOrder([]*path{single, near, far, silent}, func(p *path) error {
		if p != silent {
			return measure(p)
		}
		_ = server.cmd.Process.Signal(syscall.SIGSTOP)
		defer func() {
			_ = server.cmd.Process.Signal(syscall.SIGCONT)
			time.Sleep(2 * time.Second)
		}()
		time.Sleep(7 * time.Second) // by then the gateway does not know any more that its sessions are its own
		return measure(p)
	})
}

// twoGateways start two gateways on one Redis, with one node at the first.
func (b *bed) twoGateways(ctx context.Context, redis string) (near, far *path, err error) {
	var gateways []*proc
	var urls, admins, udps []string
	for _, name := range []string{"near", "far"} {
		admin, udp, addr := free(), free(), free()
		g, err := b.caddy(name, fmt.Sprintf("{\n\tadmin %s\n\tskip_install_trust\n\tstorage file_system %s\n\tlog {\n\t\toutput file %s\n\t}\n\tfairway {\n\t\tlisten %s\n\t\tname %s\n\t\tadvertise %s\n\t\tstore redis {\n\t\t\turl redis://%s\n\t\t\ton_down serve_owned\n\t\t}\n\t}\n}\n"+
			"http://%s {\n\tbind 127.0.0.1\n\tfairway {\n\t\tauth none\n\t}\n}\n", admin, filepath.Join(b.dir, "fleet", "storage"), filepath.Join(b.dir, name+".log"), udp, name, udp, redis, addr))
		if err != nil {
			return nil, nil, err
		}
		if err := answers(ctx, "http://"+addr); err != nil {
			return nil, nil, fmt.Errorf("%w\n%s", err, g.log.String())
		}
		gateways, urls, admins, udps = append(gateways, g), append(urls, "http://"+addr), append(admins, admin), append(udps, udp)
	}
	token, err := b.command("near", admins[0], "token", "--node", "n1")
	if err != nil {
		return nil, nil, err
	}
	node, err := b.start(nil, b.nodeBin, "run", "--gateway", udps[0], "--state-dir", filepath.Join(b.dir, "fleet", "node"), "--ollama", b.upstream, "--credits", "1024", "--token", pickToken(token))
	if err != nil {
		return nil, nil, err
	}
	all := append(gateways, node)
	near, far = &path{name: local, url: urls[0], procs: all}, &path{name: forwarded, url: urls[1], procs: all}
	var both sync.WaitGroup
	errs := make([]error, 2)
	for i, p := range []*path{near, far} {
		both.Go(func() { errs[i] = serves(ctx, p.url) })
	}
	both.Wait()
	return near, far, errors.Join(errs...)
}

func (t *table) addFleet(row, way string, v float64) {
	t.fleets = appendNew(t.fleets, row)
	t.sample("fleet: "+row, way, v)
}

// fleetTable is what a fleet costs, as a table of its own.
func (t *table) fleetTable(b *strings.Builder) {
	if len(t.fleets) == 0 {
		return
	}
	fmt.Fprintf(b, "\n## Several gateways\n\nSmall JSON at %d clients, without a credential; the CPU is that of both gateways and the node. Forwarding may cost 1.6 × the CPU of the local way; with Redis silent (`serve_owned`) "+
		"p50 may be 1.1 × as much.\n\n", fleetClients)
	fmt.Fprintf(b, "| measure | %s | %s | %s | forwarded/local | %s | silent/local |\n|---|---|---|---|---|---|---|\n", alone, local, forwarded, holed)
	for _, row := range t.fleets {
		one, _ := t.median("fleet: "+row, alone)
		near, _ := t.median("fleet: "+row, local)
		far, _ := t.median("fleet: "+row, forwarded)
		silent, _ := t.median("fleet: "+row, holed)
		fmt.Fprintf(b, "| %s | %s | %s | %s | %.2f | %s | %.2f |\n", row, figure(one), figure(near), figure(far), far/near, figure(silent), silent/near)
	}
}
