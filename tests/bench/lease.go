package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// The ways of benchLeases: the same gateway and node, without a credential, with one in every run, and with one and no audit.
const (
	unleased    = "unleased"
	leased      = "leased"
	leasedNoLog = "leased, no audit"

	leaseClients = 32
	leaseBound   = 700 // µs of CPU that a lease may cost a run
	leaseCPU     = "CPU µs a request, gateway and node"
)

// benchLeases measures what a credential costs a run: small JSON on the common upstream, through gateways and nodes that differ in nothing but
// the profile's slot and the audit.
func benchLeases(ctx context.Context, b *bed, t *table) error {
	slot := fmt.Sprintf("\t\tslot bench {\n\t\t\tvalue {file.%s}\n\t\t}\n\t\tprofile bench {\n\t\t\tslot bench\n\t\t}\n", filepath.Join(b.dir, "bench.key"))
	if err := os.WriteFile(filepath.Join(b.dir, "bench.key"), []byte(benchKey+"\n"), 0o600); err != nil {
		return err
	}
	var paths []*path
	for _, way := range []struct{ name, dir, lines string }{
		{unleased, "unleased", "\t\tprofile bench\n"},
		{leased, "leased", slot + "\t\taudit " + filepath.Join(b.dir, "audit.jsonl") + "\n"},
		{leasedNoLog, "noaudit", slot + "\t\taudit off\n"},
	} {
		p, err := b.fleet(ctx, way.dir, way.lines)
		if err != nil {
			return fmt.Errorf("%s: %w", way.name, err)
		}
		p.name = way.name
		paths = append(paths, p)
	}
	return inRandomOrder(paths, func(p *path) error {
		all0, keyed0, err := b.seen(ctx)
		if err != nil {
			return err
		}
		rps, p50, p99, cpu, err := requests(ctx, p, leaseClients)
		if err != nil {
			return err
		}
		all, keyed, err := b.seen(ctx)
		if err != nil {
			return err
		}
		if all -= all0; all == 0 || (keyed != keyed0) != (p.name != unleased) || p.name != unleased && keyed-keyed0 != all {
			return fmt.Errorf("of %d requests %d came with the key", all, keyed-keyed0)
		}
		t.addLease("requests/s", p.name, rps)
		t.addLease("p50 µs", p.name, p50)
		t.addLease("p99 µs", p.name, p99)
		t.addLease(leaseCPU, p.name, cpu)
		return nil
	})
}

// fleet starts a gateway of its own with a node before the upstream; lines stand in its fairway block.
func (b *bed) fleet(ctx context.Context, name, lines string) (*path, error) {
	admin, udp, addr := free(), free(), free()
	gateway, err := b.caddy(name, fmt.Sprintf("{\n\tadmin %s\n\tskip_install_trust\n\tstorage file_system %s\n\tlog {\n\t\toutput file %s\n\t}\n\tfairway {\n\t\tlisten %s\n\t\tname %s\n%s\t}\n}\n"+
		"http://%s {\n\tbind 127.0.0.1\n\tfairway {\n\t\tauth none\n\t}\n}\n", admin, filepath.Join(b.dir, name, "storage"), filepath.Join(b.dir, name+".log"), udp, name, lines, addr))
	if err != nil {
		return nil, err
	}
	if err := answers(ctx, "http://"+addr); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, gateway.log.String())
	}
	token, err := b.command(name, admin, "token", "--node", "n1")
	if err != nil {
		return nil, err
	}
	node, err := b.start(nil, b.nodeBin, "run", "--gateway", udp, "--state-dir", filepath.Join(b.dir, name, "node"), "--ollama", b.upstream, "--credits", "1024", "--token", pickToken(token))
	if err != nil {
		return nil, err
	}
	p := &path{url: "http://" + addr, procs: []*proc{gateway, node}}
	if err := serves(ctx, p.url); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, node.log.String())
	}
	return p, nil
}

// seen asks the upstream how many requests it has had, and how many of them with the key.
func (b *bed) seen(ctx context.Context) (all, keyed int64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.upstream+"/b/seen", nil)
	if err != nil {
		return 0, 0, err
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, 0, err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	_, err2 := fmt.Sscan(string(text), &all, &keyed)
	return all, keyed, errors.Join(err, err2)
}

func (t *table) addLease(row, way string, v float64) {
	t.leases = appendNew(t.leases, row)
	t.sample("lease: "+row, way, v)
}

// leaseTable is what a credential costs, as a table of its own.
func (t *table) leaseTable(b *strings.Builder) {
	if len(t.leases) == 0 {
		return
	}
	fmt.Fprintf(b, "\n## With a credential\n\nSmall JSON at %d clients, each run with a lease of its own on a connection of its own to the provider. A lease may cost %d µs of CPU.\n\n", leaseClients, leaseBound)
	fmt.Fprintf(b, "| measure | %s | %s | difference | ratio | %s | difference |\n|---|---|---|---|---|---|---|\n", unleased, leased, leasedNoLog)
	for _, row := range t.leases {
		without, _ := t.median("lease: "+row, unleased)
		with, _ := t.median("lease: "+row, leased)
		quiet, _ := t.median("lease: "+row, leasedNoLog)
		fmt.Fprintf(b, "| %s | %s | %s | %s | %.2f | %s | %s |\n", row, figure(without), figure(with), signed(with-without), with/without, figure(quiet), signed(quiet-without))
	}
}

func signed(v float64) string {
	if v < 0 {
		return "−" + figure(-v)
	}
	return figure(v)
}
