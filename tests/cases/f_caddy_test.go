package cases

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/freeport"
	"github.com/fairway-edge/fairway/tests/rig"
)

// The README's example is formatted: tests/docs, TestCaddyfiles.
func TestF01_NoOrder(t *testing.T) {
	t.Parallel()
	port := freeport.Get(t)
	g := newGateway(t, rig.Options{Sites: fmt.Sprintf(`http://:%d {
	bind 127.0.0.1
	header -Server
	respond /healthz ok
	fairway
	file_server
}
`, port)})
	out, err := g.Run("adapt", "--config", g.File())
	if err != nil || !strings.Contains(out, `"handler":"fairway"`) {
		t.Errorf("%v %s", err, out)
	}
	mixed := client{http.DefaultTransport, fmt.Sprintf("http://127.0.0.1:%d", port)}
	if s, body := mixed.ask("GET", "/healthz", ""); s != 200 || body != "ok" {
		t.Errorf("healthz: %d %s", s, body)
	}
	if s, body := mixed.ask("GET", "/api/tags", ""); s != 200 || !strings.Contains(body, `"models"`) {
		t.Errorf("tags: %d %s", s, body)
	}
}

// {$X} is replaced when the file is read, {env.X} by the module when it loads.
func TestF02_Environment(t *testing.T) {
	t.Parallel()
	for name, form := range map[string]string{"{$X}": "{$%s}", "{env.X}": "{env.%s}"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := rig.NewGateway(t, rig.Options{})
			g.Kill()
			const key = "sk-test-alpha-0001"
			x := func(v string) string { return fmt.Sprintf(form, v) }
			g.Write(strings.NewReplacer(
				rig.Key, x("T_KEY"), fmt.Sprintf("listen 127.0.0.1:%d", g.UDP), "listen 127.0.0.1:"+x("T_PORT"), "name gw1", "name "+x("T_NAME"),
			).Replace(g.Caddyfile()))
			env := append(gatewayEnv(g), "T_KEY="+key, fmt.Sprintf("T_PORT=%d", g.UDP), "T_NAME=from-env")
			gateway := spawn(t, env, rig.Build(t).Caddy, "run", "--config", g.File())
			waitGateway(t, g)
			if r := (request{File: "A17_unknown_api", Key: key}).to(t, site(g)); r.Status == 401 {
				t.Errorf("the key is not taken: %s", r.Body)
			}
			for _, literal := range []string{x("T_KEY"), "T_KEY", ""} {
				if r := (request{File: "A17_unknown_api", Key: literal + " "}).to(t, site(g)); r.Status != 401 {
					t.Errorf("%q is a key: %d", literal, r.Status)
				}
			}
			fake := fakeollama.Start(t, fakeollama.Options{})
			g.NodeOf("n1", fake.URL()) // by the port
			if !strings.Contains(gateway.log(), fmt.Sprintf("127.0.0.1:%d", g.UDP)) {
				t.Errorf("not on the port: %s", gateway.log())
			}
		})
	}
}

// load posts the Caddyfile to the admin API, as `caddy reload` does.
func load(g *rig.Gateway, caddyfile string) error {
	req, err := http.NewRequestWithContext(context.Background(), "POST", fmt.Sprintf("http://127.0.0.1:%d/load", g.Admin), strings.NewReader(caddyfile))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "text/caddyfile")
	req.Header.Set("Cache-Control", "must-revalidate")
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if b, _ := io.ReadAll(r.Body); r.StatusCode != 200 {
		return fmt.Errorf("%s: %s", r.Status, b)
	}
	return nil
}

// Kept connections on h1, h2 and h3: tests/e2e, TestReloadsUnderLoad and TestReloadLeavesStreamsAlone.
func TestF03_ReloadUnderStreams(t *testing.T) {
	t.Parallel()
	f := newFleet(t, rig.Options{})
	gen := f.Node("n1").Sessions[0].Generation
	other := fmt.Sprintf("http://:%d {\n\tbind 127.0.0.1\n\trespond \"new site\"\n}\n", freeport.Get(t))
	var stop atomic.Bool
	var lost atomic.Int32
	var wg sync.WaitGroup
	wg.Go(func() { // 20 requests a second, a connection each: those that Caddy closes idle are another row
		for !stop.Load() {
			r := (request{File: "A16_api_false"}).to(t, site(f.Gateway))
			if r.Status == 0 && r.Ended == reset {
				// Caddy gives each config a socket of its own on the port (SO_REUSEPORT), and what waits in the old one's queue is lost with
				// it, on any site; a client's library sends such a request again.
				lost.Add(1)
				r = (request{File: "A16_api_false"}).to(t, site(f.Gateway))
			}
			if r.Status != 200 {
				t.Errorf("during the reloads: %d %s: %s after %v", r.Status, r.Body, r.Ended, r.Total)
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	n := long(100, 240) // tokens
	wg.Go(func() {
		raw := strings.Replace(string(request{File: "B11_tick_60s"}.bytes(t, site(f.Gateway))), `"t_n": 240`, fmt.Sprintf(`"t_n": %d`, n), 1)
		r := request{Bytes: raw, Timeout: 90 * time.Second}.to(t, site(f.Gateway))
		if r.Status != 200 || r.Ended != complete || len(r.At) != int(n)+1 {
			t.Errorf("the stream: %d %s, %d lines", r.Status, r.Ended, len(r.At))
		}
	})
	for i := range 5 {
		time.Sleep(3 * time.Second)
		file := f.Caddyfile()
		if i%2 == 0 {
			file += other
		}
		if err := load(f.Gateway, file); err != nil {
			t.Error(err)
		}
	}
	time.Sleep(2 * time.Second)
	stop.Store(true)
	wg.Wait()
	if now := f.Node("n1").Sessions; len(now) != 1 || now[0].Generation != gen {
		t.Errorf("the session changed: %+v", now)
	}
	if n := lost.Load(); n > 5 { // one a reload
		t.Errorf("%d connections were lost", n)
	}
}

func TestF04_ReloadsLeakNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t, rig.Options{})
	for range 3 { // warm
		if err := load(f.Gateway, f.Caddyfile()); err != nil {
			t.Fatal(err)
		}
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	time.Sleep(2 * time.Second)
	fds, gor := rig.Use(t, f.Pid()).FDs, f.Metric("go_goroutines")
	for range 50 {
		if err := load(f.Gateway, f.Caddyfile()); err != nil {
			t.Error(err)
		}
	}
	for range 20 {
		if err := load(f.Gateway, f.Caddyfile()+fmt.Sprintf("http://%s {\n\tbind 127.0.0.1\n\trespond never\n}\n", taken.Addr())); err == nil {
			t.Fatal("a taken port loads")
		}
	}
	if r := f.send(t, "A16_api_false"); r.Status != 200 {
		t.Errorf("the old configuration does not serve: %d %s", r.Status, r.Body)
	}
	if _, err := net.ListenPacket("udp", f.Addr()); err == nil {
		t.Error("the UDP port is free")
	}
	var u rig.Usage
	var now float64
	defer func() { t.Logf("descriptors %d then %d, goroutines %v then %v", fds, u.FDs, gor, now) }()
	rig.Eventually(t, 15*time.Second, "descriptors and goroutines are flat", func() bool {
		u, now = rig.Use(t, f.Pid()), f.Metric("go_goroutines")
		return u.FDs <= fds+5 && now <= gor+5
	})
	for _, bad := range []string{"use of closed", "panic"} {
		if strings.Contains(f.Log(), bad) {
			t.Errorf("the log says %q", bad)
		}
	}
}

// The units' settings: tests/docs, TestUnits.
func TestF05_Unprivileged(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root, to become somebody else")
	}
	dir, err := os.MkdirTemp("", "fairway-f05-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	bins := rig.Build(t)
	sh := func(script string, args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), "sh", append([]string{"-ec", script, "sh"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	sh(`chmod 755 "$1"; mkdir "$1/gw" "$1/node"; install -m 755 "$2" "$1/caddy"; install -m 755 "$3" "$1/fairway-node"; chown 65532:65532 "$1/gw" "$1/node"`, dir, bins.Caddy, bins.Node)
	g := rig.NewGateway(t, rig.Options{})
	g.Kill()
	file := filepath.Join(dir, "Caddyfile")
	text := strings.ReplaceAll(g.Caddyfile(), filepath.Join(g.Dir, "storage"), filepath.Join(dir, "gw", "storage"))
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	// Everything is read-only but one folder each; no capability is left.
	confine := func(state string, caps string, args ...string) *child {
		script := `mount --bind "$1" "$1"; mount --make-rprivate /; mount -o remount,bind,ro /; for m in /tmp /var /root /home; do if mountpoint -q $m; then mount -o remount,bind,ro $m; fi; done; mount -o remount,bind,rw "$1"; shift
caps=$1; shift
exec setpriv --reuid 65532 --regid 65532 --clear-groups --inh-caps=$caps --ambient-caps=$caps --bounding-set=$caps --no-new-privs env XDG_CONFIG_HOME="$0" "$@"`
		line := append([]string{"-m", "sh", "-ec", script, state, state, caps}, args...)
		return spawn(t, []string{"HOME=" + state, "XDG_CONFIG_HOME=" + state, "XDG_DATA_HOME=" + state, "TMPDIR=" + state}, "unshare", line...)
	}
	gw := confine(filepath.Join(dir, "gw"), "-all", filepath.Join(dir, "caddy"), "run", "--config", file)
	waitGateway(t, g)
	fake := fakeollama.Start(t, fakeollama.Options{})
	confine(filepath.Join(dir, "node"), "-all", filepath.Join(dir, "fairway-node"), "run", "--gateway", g.Addr(), "--token", g.JoinToken("n1"),
		"--state-dir", filepath.Join(dir, "node", "state"), "--ollama", fake.URL())
	g.WaitNode("n1", "ready")
	serves(t, g, 10*time.Second)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", gw.cmd.Process.Pid))
	if err != nil || !strings.Contains(string(status), "Uid:\t65532\t65532") || !strings.Contains(string(status), "CapEff:\t0000000000000000") {
		t.Errorf("the gateway is not confined: %v %s", err, status)
	}
	// A state directory that cannot be written is named.
	node := confine(filepath.Join(dir, "node"), "-all", filepath.Join(dir, "fairway-node"), "run", "--gateway", g.Addr(), "--token", g.JoinToken("n2"),
		"--state-dir", filepath.Join(dir, "nowhere"))
	<-node.done
	if code := node.cmd.ProcessState.ExitCode(); code != 4 || !strings.Contains(node.log(), filepath.Join(dir, "nowhere")) {
		t.Errorf("exit %d: %s", code, node.log())
	}
	// A low port without the capability fails and says so; with it, it serves.
	t.Run("a low port", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.9:80")
		if err != nil {
			t.Skipf("port 80 is not to be had here: %v", err)
		}
		l.Close()
		h := rig.NewGateway(t, rig.Options{})
		h.Kill()
		conf := strings.ReplaceAll(h.Caddyfile(), filepath.Join(h.Dir, "storage"), filepath.Join(dir, "gw", "storage2"))
		conf = strings.Replace(conf, fmt.Sprintf("http://:%d {\n\tbind 127.0.0.1", h.HTTP), "http://:80 {\n\tbind 127.0.0.9", 1)
		if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
			t.Fatal(err)
		}
		start := func(caps string) *child {
			return confine(filepath.Join(dir, "gw"), caps, filepath.Join(dir, "caddy"), "run", "--config", file)
		}
		if low, _ := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start"); strings.TrimSpace(string(low)) == "1024" {
			none := start("-all")
			<-none.done
			if none.cmd.ProcessState.ExitCode() == 0 || !strings.Contains(none.log(), "127.0.0.9:80") {
				t.Errorf("exit %d: %s", none.cmd.ProcessState.ExitCode(), none.log())
			}
		}
		start("-all,+net_bind_service")
		waitGateway(t, h)
		low := client{http.DefaultTransport, "http://127.0.0.9"}
		rig.Eventually(t, 5*time.Second, "it serves", func() bool { s, _ := low.ask("GET", "/", ""); return s == 200 })
	})
}

// More ways in which keys travel, and what is on disk: tests/e2e, TestNoSecretAnywhere.
func TestF06_WholeFolderNoKey(t *testing.T) {
	t.Parallel()
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(rig.Key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	g := newGateway(t, rig.Options{Global: "\t\tkey alice {file." + key + "}\n", NoInlineKey: true, SiteLines: "\tlog {\n\t\toutput stderr\n\t}\n"})
	token := g.JoinToken("n1")
	fake := fakeollama.Start(t, fakeollama.Options{})
	n := g.NodeWith("n1", token, "--ollama", fake.URL(), "--credits", credits)
	waitModel(t, g, "t-echo")
	files, err := filepath.Glob("testdata/*.http")
	if err != nil || len(files) < 60 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	var wg sync.WaitGroup
	for _, file := range files {
		wg.Go(func() {
			request{File: strings.TrimSuffix(filepath.Base(file), ".http"), CloseAfter: 3 * time.Second}.to(t, site(g))
		})
	}
	wg.Wait()
	where := map[string]string{"the gateway's log": g.Log(), "the node's log": n.Log()}
	for _, path := range []string{"/config/", "/metrics", "/fairway/runs", "/fairway/nodes", "/fairway/status"} {
		_, where[path] = client{http.DefaultTransport, fmt.Sprintf("http://127.0.0.1:%d", g.Admin)}.ask("GET", path, "")
	}
	for name, text := range where {
		if text == "" {
			t.Errorf("%s is empty", name)
		}
		for _, secret := range []string{rig.Key, token} {
			if i := strings.Index(text, secret); i >= 0 {
				t.Errorf("%s holds a secret: …%s…", name, text[max(0, i-200):i])
			}
		}
	}
	if c := strings.Count(where["the gateway's log"], `"fairway_run"`); c < len(files)/2 {
		t.Errorf("only %d access lines to look into", c)
	}
	if !json.Valid([]byte(where["/config/"])) {
		t.Error("the configuration cannot be read")
	}
}
