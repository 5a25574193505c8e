package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// table gathers samples and prints medians, with ratios to Caddy and to the bare tunnel.
type table struct {
	started time.Time
	rows    []string
	leases  []string // rows of leaseTable
	fleets  []string // rows of fleetTable
	typed   []string // rows of typedTable
	samples map[[2]string][]float64
}

func (t *table) add(row, path string, v float64) {
	t.rows = appendNew(t.rows, row)
	t.sample(row, path, v)
}

func (t *table) sample(row, path string, v float64) {
	if t.samples == nil {
		t.samples = make(map[[2]string][]float64)
	}
	t.samples[[2]string{row, path}] = append(t.samples[[2]string{row, path}], v)
}

func appendNew(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

func (t *table) median(row, path string) (float64, bool) {
	s := slices.Clone(t.samples[[2]string{row, path}])
	if len(s) == 0 {
		return 0, false
	}
	slices.Sort(s)
	return s[len(s)/2], true
}

func (t *table) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Benchmark\n\nMade by `go run ./tests/bench -rounds %d -seconds %g`; medians over the rounds of one run. ", *rounds, *seconds)
	fmt.Fprintf(&b, "\"added\" is the figure less the direct one.\n\n%s\n\n", machine())
	if len(t.rows) > 0 {
		b.WriteString("| measure | direct | caddy | quic | fairway | × caddy | × quic |\n|---|---|---|---|---|---|---|\n")
	}
	for _, row := range t.rows {
		t.row(&b, row, 0)
		if direct, ok := t.median(row, "direct"); ok && (strings.Contains(row, "delay") || strings.Contains(row, "first token")) {
			t.row(&b, row, direct)
		}
	}
	t.leaseTable(&b)
	t.fleetTable(&b)
	t.typedTable(&b)
	return b.String()
}

func (t *table) row(b *strings.Builder, row string, less float64) {
	name := row
	if less != 0 {
		name += ", added"
	}
	fmt.Fprintf(b, "| %s |", name)
	cell := func(v float64, ok bool) {
		if !ok {
			b.WriteString(" – |")
			return
		}
		fmt.Fprintf(b, " %s |", figure(v))
	}
	for _, p := range []string{"direct", "caddy", "quic", "fairway"} {
		v, ok := t.median(row, p)
		cell(v-less, ok)
	}
	own, ok := t.median(row, "fairway")
	for _, p := range []string{"caddy", "quic"} {
		v, other := t.median(row, p)
		cell((own-less)/(v-less), ok && other && v != less)
	}
	b.WriteString("\n")
}

func figure(v float64) string {
	switch {
	case v >= 1000:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// machine says what the run ran on.
func machine() string {
	model := "unknown processor"
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(line, "model name"); ok {
				model = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(v), ":"))
				break
			}
		}
	}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	versions := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "github.com/quic-go/quic-go" || m.Path == "github.com/caddyserver/caddy/v2" {
				versions += ", " + m.Path[strings.LastIndexByte(strings.TrimSuffix(m.Path, "/v2"), '/')+1:] + " " + m.Version
			}
		}
	}
	return fmt.Sprintf("Machine: %d × %s, Linux %s, %s%s. %s.", runtime.NumCPU(), model, strings.TrimSpace(string(kernel)), runtime.Version(), versions, time.Now().UTC().Format("2006-01-02"))
}
