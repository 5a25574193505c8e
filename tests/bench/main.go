// Command bench puts the same load on the same upstream through four paths in one run, and prints ratios:
//
//	direct     the upstream itself
//	caddy      Caddy's reverse_proxy: no tunnel, no encryption
//	quic       a bare tunnel on quic-go: byte streams that carry HTTP/1.1, kept alive, nothing else
//	fairway    the gateway and a node
//
// and, in tables of their own, what a credential costs: a gateway and a node without one, with one in every run, and with one and no audit; and what several
// gateways cost: a run that is forwarded, and one while the shared store is silent; and what a typed run costs over the raw request.
//
// Every path is processes of its own on loopback, so CPU time is read from /proc per path. Rounds visit the paths in a new random order; what is
// printed is the median over rounds. The machine's own noise is in every figure: compare inside one run only.
//
//	go run ./tests/bench [-rounds 3] [-seconds 3] [-only memory,json,lease,…] [-out tests/bench/RESULTS.md]
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"
)

var (
	rounds  = flag.Int("rounds", 3, "rounds over all paths")
	seconds = flag.Float64("seconds", 3, "how long one measurement of requests runs")
	only    = flag.String("only", "json,lease,fleet,typed,stream,bulk,memory,recover,reload", "which measurements")
	out     = flag.String("out", "", "write the table to this file as well")
	binDir  = flag.String("bin", "", "directory with caddy and fairway-node; empty: build them")
)

func main() {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		child(os.Args[1], os.Args[2:])
		return
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// child is one of this program's own processes.
func child(name string, args []string) {
	var err error
	switch name {
	case "upstream":
		err = upstream(args[0])
	case "quic-gateway":
		err = quicGateway(args[0], args[1])
	case "quic-node":
		err = quicNode(args[0], args[1])
	case "idle-nodes":
		err = idleNodes(args)
	default:
		err = fmt.Errorf("no child %q", name)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	b, err := setUp(ctx)
	if err != nil {
		return err
	}
	defer b.close()
	results := &table{started: time.Now()}
	for _, m := range []struct {
		name string
		do   func(context.Context, *bed, *table) error
	}{
		// Memory first, while the heaps are as they were made.
		{"memory", benchMemory}, {"json", benchJSON}, {"lease", benchLeases}, {"fleet", benchFleet}, {"typed", benchTyped}, {"stream", benchStreams}, {"bulk", benchBulk}, {"recover", benchRecover}, {"reload", benchReload},
	} {
		if !strings.Contains(*only, m.name) {
			continue
		}
		fmt.Fprintln(os.Stderr, "measuring", m.name)
		if err := m.do(ctx, b, results); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	text := results.markdown()
	fmt.Print(text)
	if *out != "" {
		return os.WriteFile(*out, []byte(text), 0o644) //nolint:gosec // a report
	}
	return nil
}
