package rig

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/freeport"
)

// Key is the API key that a rig's gateway admits, as principal alice, unless its options say otherwise.
const Key = "sk-rig-alice-0123456789abcdef"

// Options say how a gateway is configured.
type Options struct {
	Global  string // further lines of the global fairway block
	Site    string // further lines of the fairway directive
	Sites   string // further sites
	Globals string // further global options of Caddy
	NoKey   bool   // no key; the site says auth none
	// NoInlineKey leaves the key line to Global.
	NoInlineKey bool
	SiteLines   string // further lines of the plain site
	TLS         bool   // an https site for h2 and h3 as well
	Grace       string // default 5s
	Name        string // default gw1
	Storage     string // a directory; default one of its own
	Redis       string // the URL of a shared store
	StoreLines  string // further lines of its block
	Advertise   int    // the UDP port that it tells the others; default its own
}

// Gateway is a Caddy with the module.
type Gateway struct {
	*Process
	t     testing.TB
	bins  Bins
	Dir   string
	HTTP  int // ports
	HTTPS int
	Admin int
	UDP   int
	Opts  Options
}

// NewGateway starts a gateway and waits until it serves.
func NewGateway(t testing.TB, o Options) *Gateway {
	t.Helper()
	g := Unstarted(t, o)
	g.Start()
	return g
}

// Unstarted is a gateway whose process is not there yet: see Launch.
func Unstarted(t testing.TB, o Options) *Gateway {
	t.Helper()
	g := &Gateway{
		t: t, bins: Build(t), Dir: t.TempDir(), HTTP: freeport.Get(t), HTTPS: freeport.Get(t), Admin: freeport.Get(t), UDP: freeport.Get(t), Opts: o,
	}
	g.Write(g.Caddyfile())
	return g
}

// Start starts the process, again after a Kill.
func (g *Gateway) Start() {
	g.t.Helper()
	g.Launch()
	g.Await()
}

// Launch starts the process and waits for nothing.
func (g *Gateway) Launch() {
	g.t.Helper()
	g.Process = start(g.t, "gateway "+cmp.Or(g.Opts.Name, "gw1"), g.env(), g.bins.Caddy, "run", "--config", g.File())
}

// Await waits until it serves.
func (g *Gateway) Await() {
	g.t.Helper()
	Eventually(g.t, 20*time.Second, "the gateway serves", func() bool {
		select {
		case <-g.Process.Done():
			g.t.Fatalf("the gateway ended: %s", g.Log())
		default:
		}
		r, err := http.Get(g.URL() + "/") //nolint:noctx // a probe on loopback
		if err != nil {
			return false
		}
		r.Body.Close()
		// Caddy starts its apps in random order: the site may answer before nodes can dial in.
		var rows []NodeRow
		return r.StatusCode == http.StatusOK && g.AdminGet("/fairway/nodes", &rows) == nil
	})
}

func (g *Gateway) env() []string {
	return []string{"XDG_CONFIG_HOME=" + filepath.Join(g.Dir, "config"), "XDG_DATA_HOME=" + filepath.Join(g.Dir, "data"), "HOME=" + g.Dir}
}

// File is the path of the Caddyfile.
func (g *Gateway) File() string { return filepath.Join(g.Dir, "Caddyfile") }

// Write replaces the Caddyfile.
func (g *Gateway) Write(caddyfile string) {
	g.t.Helper()
	if err := os.WriteFile(g.File(), []byte(caddyfile), 0o600); err != nil {
		g.t.Fatal(err)
	}
}

// Caddyfile makes the configuration that the options say.
func (g *Gateway) Caddyfile() string {
	o := g.Opts
	key, auth := "\t\tkey alice "+Key+"\n", ""
	if o.NoKey {
		key, auth = "", "\t\tauth none\n"
	}
	if o.NoInlineKey {
		key = ""
	}
	if o.Redis != "" {
		o.Global = fmt.Sprintf("\t\tstore redis {\n\t\t\turl %s\n%s\t\t}\n\t\tadvertise 127.0.0.1:%d\n", o.Redis, o.StoreLines, cmp.Or(o.Advertise, g.UDP)) + o.Global
	}
	var b strings.Builder
	fmt.Fprintf(&b, "{\n\tadmin 127.0.0.1:%d\n\tskip_install_trust\n\tauto_https disable_redirects\n\tstorage file_system %s\n\tlog {\n\t\tlevel DEBUG\n\t}\n%s", g.Admin, cmp.Or(o.Storage, filepath.Join(g.Dir, "storage")), o.Globals)
	fmt.Fprintf(&b, "\tfairway {\n\t\tlisten 127.0.0.1:%d\n\t\tname %s\n\t\tgrace %s\n%s%s\t}\n}\n", g.UDP, cmp.Or(o.Name, "gw1"), cmp.Or(o.Grace, "5s"), key, o.Global)
	fmt.Fprintf(&b, "http://:%d {\n\tbind 127.0.0.1\n%s\tfairway {\n%s%s\t}\n}\n", g.HTTP, o.SiteLines, auth, o.Site)
	if o.TLS {
		fmt.Fprintf(&b, "https://localhost:%d {\n\ttls internal\n\tfairway {\n%s%s\t}\n}\n", g.HTTPS, auth, o.Site)
	}
	b.WriteString(o.Sites)
	return b.String()
}

// URL is the base URL of the plain site.
func (g *Gateway) URL() string { return fmt.Sprintf("http://127.0.0.1:%d", g.HTTP) }

// Addr is where nodes dial in.
func (g *Gateway) Addr() string { return fmt.Sprintf("127.0.0.1:%d", g.UDP) }

// Run runs a command of the gateway's binary and returns what it printed and how it exited.
func (g *Gateway) Run(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, g.bins.Caddy, args...)
	cmd.Env = append(os.Environ(), g.env()...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Fairway runs `caddy fairway …` against this gateway's admin API.
func (g *Gateway) Fairway(args ...string) string {
	g.t.Helper()
	out, err := g.Run(append(append([]string{"fairway"}, args...), "--address", fmt.Sprintf("127.0.0.1:%d", g.Admin))...)
	if err != nil {
		g.t.Fatalf("caddy fairway %v: %v\n%s", args, err, out)
	}
	return out
}

// Reload loads the Caddyfile as it stands; the error holds what Caddy said.
func (g *Gateway) Reload() error {
	out, err := g.Run("reload", "--force", "--config", g.File(), "--address", fmt.Sprintf("127.0.0.1:%d", g.Admin))
	if err != nil {
		return fmt.Errorf("reload: %w: %s", err, out)
	}
	return nil
}

// AdminGet fetches a path of the admin API into v.
func (g *Gateway) AdminGet(path string, v any) error {
	r, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", g.Admin, path)) //nolint:noctx // on loopback
	if err != nil {
		return err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", path, r.Status, b)
	}
	return json.Unmarshal(b, v)
}

// NodeRow is a row of /fairway/nodes.
type NodeRow struct {
	Name     string
	State    string
	Labels   map[string]string
	Sessions []struct {
		Gateway    string
		Generation uint64
	}
	Targets []struct {
		Name, Adapter string
		Reachable     bool
		Models        []string
		Credits       struct{ Granted, Free int }
	}
}

// Node returns the row of a node, nil when it is not known.
func (g *Gateway) Node(name string) *NodeRow {
	var rows []NodeRow
	if g.AdminGet("/fairway/nodes", &rows) != nil {
		return nil
	}
	for i := range rows {
		if rows[i].Name == name {
			return &rows[i]
		}
	}
	return nil
}

// WaitNode waits until a node is in a state.
func (g *Gateway) WaitNode(name, state string) *NodeRow {
	g.t.Helper()
	var row *NodeRow
	Eventually(g.t, 20*time.Second, fmt.Sprintf("node %s is %s", name, state), func() bool {
		row = g.Node(name)
		return row != nil && row.State == state
	})
	return row
}

// Metric returns the sum of a metric's samples whose line holds every one of the given parts.
func (g *Gateway) Metric(name string, parts ...string) float64 {
	g.t.Helper()
	r, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", g.Admin)) //nolint:noctx // on loopback
	if err != nil {
		g.t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	var sum float64
lines:
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name); !ok || (rest[0] != '{' && rest[0] != ' ') {
			continue
		}
		for _, p := range parts {
			if !strings.Contains(line, p) {
				continue lines
			}
		}
		var v float64
		if _, err := fmt.Sscan(line[strings.LastIndexByte(strings.TrimSpace(line), ' ')+1:], &v); err == nil {
			sum += v
		}
	}
	return sum
}

// Do sends a request with the rig's key and returns the answer with its body read.
func (g *Gateway) Do(method, path, body string, header ...string) (*http.Response, string) {
	g.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, g.URL()+path, bytes.NewBufferString(body))
	if err != nil {
		g.t.Fatal(err)
	}
	if !g.Opts.NoKey {
		req.Header.Set("Authorization", "Bearer "+Key)
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i+1] == "" {
			req.Header.Del(header[i])
			continue
		}
		req.Header.Set(header[i], header[i+1])
	}
	r, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		g.t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return r, string(b) + "\n[cut: " + err.Error() + "]"
	}
	return r, string(b)
}

// Upload posts a body of unknown length with the rig's key.
func (g *Gateway) Upload(path string, body io.Reader, header ...string) (*http.Response, string) {
	g.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, g.URL()+path, body)
	if err != nil {
		g.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+Key)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	r, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		g.t.Fatal(err)
	}
	defer r.Body.Close()
	b, _ := io.ReadAll(r.Body)
	return r, string(b)
}
