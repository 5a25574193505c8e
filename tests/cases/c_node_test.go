package cases

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/rig"
)

// hosted runs a node that has a file of the test's own as /etc/hosts.
func hosted(t *testing.T, hosts string, env []string, args ...string) *child {
	t.Helper()
	bins := rig.Build(t)
	cmd, line := private(t, `mount --bind "$1" /etc/hosts; shift; exec "$@"`,
		append([]string{hosts, bins.Node, "run", "--state-dir", filepath.Join(t.TempDir(), "state"), "--log-level", "debug"}, args...)...)
	return spawn(t, env, cmd, line...)
}

func writeHosts(t *testing.T, file, text string) string {
	t.Helper()
	if file == "" {
		file = filepath.Join(t.TempDir(), "hosts")
	}
	// In place: a bind mount keeps to the inode. Go looks at the file again when its time or size has changed.
	if err := os.WriteFile(file, []byte("127.0.0.1 localhost\n"+text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Neither program may raise its buffers here: a user namespace has no power over the machine's.
func TestC01_BufferWarning(t *testing.T) {
	t.Parallel()
	g := newGateway(t, rig.Options{})
	token := g.JoinToken("n1")
	g.Kill()
	bins := rig.Build(t)
	cmd, line := private(t, `exec "$@"`, bins.Caddy, "run", "--config", g.File())
	gateway := spawn(t, gatewayEnv(g), cmd, line...)
	waitGateway(t, g)
	fake := fakeollama.Start(t, fakeollama.Options{})
	node := hosted(t, writeHosts(t, "", ""), nil, "--gateway", g.Addr(), "--token", token, "--ollama", fake.URL())
	g.WaitNode("n1", "ready")
	serves(t, g, 5*time.Second)
	for name, log := range map[string]string{"gateway": gateway.log(), "node": node.log()} {
		if n := strings.Count(log, "buffer size"); n > 1 {
			t.Errorf("the %s warns %d times", name, n)
		} else {
			t.Logf("the %s warns %d times", name, n)
		}
	}
	page, err := os.ReadFile("../../docs/operate.md")
	if err != nil || !strings.Contains(string(page), "net.core.rmem_max") || !strings.Contains(string(page), "net.core.wmem_max") {
		t.Errorf("the page does not name both sysctls: %v", err)
	}
}

// Two gateways with one identity, one after the other under one name, as after a move to another machine.
func TestC11_GatewayMoves(t *testing.T) {
	t.Parallel()
	a := newGateway(t, rig.Options{})
	fake := fakeollama.Start(t, fakeollama.Options{})
	hosts := writeHosts(t, "", "127.0.0.1 gw.test\n")
	node := hosted(t, hosts, nil, "--gateway", fmt.Sprintf("gw.test:%d", a.UDP), "--token", a.JoinToken("n1"), "--ollama", fake.URL())
	a.WaitNode("n1", "ready")
	a.Kill()
	moved := strings.Replace(a.Caddyfile(), "listen 127.0.0.1:", "listen 127.0.0.2:", 1)
	a.Write(moved)
	a.Start()
	writeHosts(t, hosts, "127.0.0.2 gw.test\n")
	start := time.Now()
	rig.Eventually(t, 30*time.Second, "the node is at the new address", func() bool { n := a.Node("n1"); return n != nil && n.State == "ready" })
	t.Logf("after %v", time.Since(start))
	serves(t, a, 5*time.Second)
	select {
	case <-node.done:
		t.Error("the node ended")
	default:
	}
}

func TestC12_BootsBeforeTheNetwork(t *testing.T) {
	t.Parallel()
	g := newGateway(t, rig.Options{})
	fake := fakeollama.Start(t, fakeollama.Options{})
	fake.Down()
	hosts := writeHosts(t, "", "")
	node := hosted(t, hosts, nil, "--gateway", fmt.Sprintf("gw.test:%d", g.UDP), "--token", g.JoinToken("n1"), "--ollama", fake.URL())
	time.Sleep(long(20*time.Second, time.Minute))
	select {
	case <-node.done:
		t.Fatalf("the node ended: %s", node.log())
	default:
	}
	if n := strings.Count(node.log(), "gw.test"); n < 2 || n > 200 {
		t.Errorf("%d lines name the gateway", n)
	}
	writeHosts(t, hosts, "127.0.0.1 gw.test\n")
	if err := fake.Up(); err != nil {
		t.Fatal(err)
	}
	if d := serves(t, g, 40*time.Second); d > 30*time.Second {
		t.Errorf("served after %v", d)
	}
	// A mistake, in contrast, ends it at once.
	if code := g.TryNode("n2", "--credits", "many").Exit(5 * time.Second); code != 2 {
		t.Errorf("bad configuration: exit %d", code)
	}
}

func TestC15_AddressFamilies(t *testing.T) {
	t.Parallel()
	for name, addr := range map[string]string{"127.0.0.1 only": "127.0.0.1:0", "[::1] only": "[::1]:0"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := fakeollama.Start(t, fakeollama.Options{Addr: addr})
			_, port, _ := net.SplitHostPort(fake.Addr())
			g := newGateway(t, rig.Options{})
			// The resolver says both, in whichever order the machine has them.
			bins := rig.Build(t)
			cmd, line := private(t, `mount --bind "$1" /etc/hosts; shift; exec "$@"`, writeHosts(t, "", "::1 localhost\n"), bins.Node, "run",
				"--gateway", g.Addr(), "--token", g.JoinToken("n1"), "--state-dir", filepath.Join(t.TempDir(), "state"), "--ollama", "http://localhost:"+port)
			spawn(t, nil, cmd, line...)
			g.WaitNode("n1", "ready")
			serves(t, g, 10*time.Second)
		})
	}
	t.Run("a black-holed AAAA of the gateway", func(t *testing.T) {
		t.Parallel()
		g := newGateway(t, rig.Options{})
		hole, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv6loopback, Port: g.UDP}) // takes packets and says nothing
		if err != nil {
			t.Fatal(err)
		}
		defer hole.Close()
		fake := fakeollama.Start(t, fakeollama.Options{})
		hosts := writeHosts(t, "", "::1 gw.test\n127.0.0.1 gw.test\n")
		start := time.Now()
		hosted(t, hosts, nil, "--gateway", fmt.Sprintf("gw.test:%d", g.UDP), "--token", g.JoinToken("n1"), "--ollama", fake.URL())
		g.WaitNode("n1", "ready")
		if d := time.Since(start); d > within(10*time.Second) {
			t.Errorf("connected after %v", d)
		}
		buf := make([]byte, 2048)
		hole.SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, _, err := hole.ReadFrom(buf); err != nil {
			t.Log("the node did not try IPv6 first on this machine")
		}
	})
}

func TestC20_PortConflict(t *testing.T) {
	t.Parallel()
	g := newGateway(t, rig.Options{})
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", g.UDP))
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	port := g.UDP
	g.Write(g.Caddyfile() + fmt.Sprintf("https://localhost:%d {\n\ttls internal\n\tfairway {\n\t}\n}\n", port))
	err = g.Reload()
	if err == nil {
		t.Fatal("it loads")
	}
	for _, part := range []string{itoa(port), "listen", "HTTP/3"} {
		if !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(part)) {
			t.Errorf("the message does not say %q: %v", part, err)
		}
	}
}
