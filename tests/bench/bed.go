package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/fairway-edge/fairway/tests/freeport"
)

// bed is everything that runs beside the load.
type bed struct {
	dir         string
	caddyBin    string
	nodeBin     string
	paths       []*path
	gateway     *proc
	node        *proc
	gatewayFile string
	admin, udp  string
	tlsAddr     string
	plain       string // a site of the gateway's Caddy that has nothing to do with Fairway
	upstream    string // its base URL
	procs       []*proc
}

// path is one way to the upstream.
type path struct {
	name  string
	url   string
	procs []*proc // whose CPU counts
	at    string  // the endpoint; default /api/chat
	body  string  // default smallBody
}

func (b *bed) path(name string) *path {
	for _, p := range b.paths {
		if p.name == name {
			return p
		}
	}
	return nil
}

// proc is a child process.
type proc struct {
	cmd *exec.Cmd
	log bytes.Buffer
}

func (b *bed) start(env []string, name string, args ...string) (*proc, error) {
	p := &proc{cmd: exec.Command(name, args...)} //nolint:gosec,noctx // our own children; killed by close
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	b.procs = append(b.procs, p)
	return p, nil
}

func (p *proc) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// cpu returns the seconds of CPU that the process has used.
func (p *proc) cpu() float64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	user, _ := strconv.ParseFloat(f[11], 64)
	sys, _ := strconv.ParseFloat(f[12], 64)
	return (user + sys) / 100 // USER_HZ
}

// rss returns the process's resident memory in KiB.
func (p *proc) rss() float64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, _ := strconv.ParseFloat(strings.Fields(v)[0], 64)
			return n
		}
	}
	return 0
}

func (p *path) cpu() (sum float64) {
	for _, pr := range p.procs {
		sum += pr.cpu()
	}
	return sum
}

func (b *bed) close() {
	for _, p := range b.procs {
		p.kill()
	}
	_ = os.RemoveAll(b.dir)
}

func free() string {
	port, err := freeport.Next()
	if err != nil {
		panic(err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

func setUp(ctx context.Context) (*bed, error) {
	dir, err := os.MkdirTemp("", "fairway-bench-")
	if err != nil {
		return nil, err
	}
	b := &bed{dir: dir, admin: free(), udp: free(), tlsAddr: free()}
	if err := b.build(ctx); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	up, proxy, bare, bareUDP, fairway := free(), free(), free(), free(), free()
	b.upstream = "http://" + up
	if _, err = b.start(nil, self, "upstream", up); err != nil {
		return nil, err
	}
	if err := answers(ctx, "http://"+up); err != nil {
		return nil, err
	}
	caddy, err := b.caddy("proxy", fmt.Sprintf("{\n\tadmin off\n}\nhttp://%s {\n\treverse_proxy %s\n}\n", proxy, up))
	if err != nil {
		return nil, err
	}
	qg, err := b.start(nil, self, "quic-gateway", bare, bareUDP)
	if err != nil {
		return nil, err
	}
	time.Sleep(300 * time.Millisecond)
	qn, err := b.start(nil, self, "quic-node", bareUDP, up)
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(b.tlsAddr)
	b.plain = free()
	plainSite := fmt.Sprintf("http://%s {\n\tbind 127.0.0.1\n\trespond ok\n}\n", b.plain)
	b.gatewayFile = fmt.Sprintf("{\n\tadmin %s\n\tskip_install_trust\n\tauto_https disable_redirects\n\tstorage file_system %s/storage\n\tfairway {\n\t\tlisten %s\n\t\tname gw1\n\t}\n}\n"+
		"http://%s {\n\tbind 127.0.0.1\n\tfairway {\n\t\tauth none\n\t}\n}\nhttps://localhost:%s {\n\ttls internal\n\tfairway {\n\t\tauth none\n\t}\n}\n", b.admin, dir, b.udp, fairway, port) + plainSite
	if b.gateway, err = b.caddy("fairway", b.gatewayFile); err != nil {
		return nil, err
	}
	if err := answers(ctx, "http://"+fairway); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, b.gateway.log.String())
	}
	token, err := b.fairway("token", "--node", "n1")
	if err != nil {
		return nil, err
	}
	if b.node, err = b.start(nil, b.nodeBin, "run", "--gateway", b.udp, "--state-dir", dir+"/node", "--ollama", "http://"+up, "--credits", "1024", "--token", pickToken(token)); err != nil {
		return nil, err
	}
	b.paths = []*path{
		{name: "direct", url: "http://" + up},
		{name: "caddy", url: "http://" + proxy, procs: []*proc{caddy}},
		{name: "quic", url: "http://" + bare, procs: []*proc{qg, qn}},
		{name: "fairway", url: "http://" + fairway, procs: []*proc{b.gateway, b.node}},
	}
	for _, p := range b.paths {
		if err := serves(ctx, p.url); err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", p.name, err, b.node.log.String())
		}
	}
	return b, nil
}

func pickToken(out string) string {
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); strings.Count(line, ".") == 2 && strings.HasPrefix(line, "ey") {
			return line
		}
	}
	return ""
}

func (b *bed) build(ctx context.Context) error {
	if *binDir != "" {
		b.caddyBin, b.nodeBin = filepath.Join(*binDir, "caddy"), filepath.Join(*binDir, "fairway-node")
		return nil
	}
	b.caddyBin, b.nodeBin = filepath.Join(b.dir, "caddy"), filepath.Join(b.dir, "fairway-node")
	for out, pkg := range map[string]string{b.caddyBin: "tests/cmd/caddy", b.nodeBin: "nodeclient/cmd/fairway-node"} {
		if msg, err := exec.CommandContext(ctx, "go", "build", "-o", out, "github.com/fairway-edge/fairway/"+pkg).CombinedOutput(); err != nil { //nolint:gosec // our own packages
			return fmt.Errorf("building %s: %w\n%s", pkg, err, msg)
		}
	}
	return nil
}

func (b *bed) env(name string) []string {
	return []string{"XDG_CONFIG_HOME=" + b.dir + "/" + name + "/config", "XDG_DATA_HOME=" + b.dir + "/" + name + "/data"}
}

func (b *bed) caddy(name, file string) (*proc, error) {
	path := filepath.Join(b.dir, name+".Caddyfile")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		return nil, err
	}
	return b.start(b.env(name), b.caddyBin, "run", "--adapter", "caddyfile", "--config", path)
}

func (b *bed) fairway(args ...string) (string, error) { return b.command("fairway", b.admin, args...) }

// command runs `caddy fairway` on the gateway of that name.
func (b *bed) command(name, admin string, args ...string) (string, error) {
	cmd := exec.Command(b.caddyBin, append(append([]string{"fairway"}, args...), "--address", admin)...) //nolint:gosec,noctx // our own binary
	cmd.Env = append(os.Environ(), b.env(name)...)
	o, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("caddy fairway %v: %w: %s", args, err, o)
	}
	return string(o), nil
}

func (b *bed) reload() error {
	cmd := exec.Command(b.caddyBin, "reload", "--force", "--adapter", "caddyfile", "--config", filepath.Join(b.dir, "fairway.Caddyfile"), "--address", b.admin) //nolint:gosec,noctx // our own binary
	cmd.Env = append(os.Environ(), b.env("fairway")...)
	if o, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("reload: %w: %s", err, o)
	}
	return nil
}

var errTimeout = errors.New("no answer in time")

func answers(ctx context.Context, url string) error {
	return until(ctx, 20*time.Second, func() bool {
		r, err := http.Get(url + "/") //nolint:noctx,gosec // loopback
		if err == nil {
			r.Body.Close()
		}
		return err == nil
	})
}

func serves(ctx context.Context, url string) error {
	return until(ctx, 20*time.Second, func() bool {
		r, err := http.Post(url+"/api/chat", "application/json", strings.NewReader(`{"model":"bench","messages":[{"role":"user","content":"hi"}],"stream":false}`)) //nolint:noctx,gosec // loopback
		if err != nil {
			return false
		}
		_, _ = io.Copy(io.Discard, r.Body)
		r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
}

func until(ctx context.Context, d time.Duration, ok func() bool) error {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if ok() {
			return nil
		}
	}
	return errTimeout
}
