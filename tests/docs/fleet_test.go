package docs

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/freeport"
	"github.com/fairway-edge/fairway/tests/rig"
)

// TestSeveralGateways does what README says of them, on ports of its own: one file, two names, a copied storage, a node that is given both.
func TestSeveralGateways(t *testing.T) {
	t.Parallel()
	bins := rig.Build(t)
	readme := section(t, read(t, "README.md"), "## Several gateways")
	example := regexp.MustCompile("(?s)```caddyfile\n(.*?)```").FindStringSubmatch(readme)
	line := regexp.MustCompile(`(?m)^fairway-node (run .*)$`).FindStringSubmatch(readme)
	names := regexp.MustCompile(`(?m)^GATEWAY=(\w+) bin/caddy (run --config Caddyfile)$`).FindAllStringSubmatch(readme, -1)
	if example == nil || line == nil || len(names) != 2 || !strings.Contains(readme, "\nrsync -a gw1.example.com:.local/share/caddy/ ~/.local/share/caddy/\n") {
		t.Fatal("README's section has not the lines that this test runs")
	}
	const caller = "fw_example-key-of-a-test-0123456789abcdef"
	redis := rig.NewRedis(t)
	fake := fakeollama.Start(t, fakeollama.Options{Models: []string{"m"}})
	shared := t.TempDir()
	for name, text := range map[string]string{"alice.key": caller, "redis.url": redis.URL()} {
		if err := os.WriteFile(filepath.Join(shared, name), []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var home, web, udp, admin []string
	var env [][]string
	for i, n := range names {
		home = append(home, t.TempDir())
		web, udp = append(web, strconv.Itoa(freeport.Get(t))), append(udp, strconv.Itoa(freeport.Get(t)))
		admin = append(admin, "127.0.0.1:"+strconv.Itoa(freeport.Get(t)))
		// Ports, the admin address and names of machines are not the example's business, nor is a certificate for its name.
		text := strings.NewReplacer("/etc/fairway", shared, "listen :4433", "listen 127.0.0.1:"+udp[i], "{env.GATEWAY}.example.com:4433", "127.0.0.1:"+udp[i],
			"ai.example.com {\n", "http://:"+web[i]+" {\n\tbind 127.0.0.1\n", "{\n\tfairway {\n", "{\n\tadmin "+admin[i]+"\n\tfairway {\n").Replace(example[1])
		if err := os.WriteFile(filepath.Join(home[i], "Caddyfile"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		env = append(env, append(os.Environ(), "GATEWAY="+n[1], "HOME="+home[i], "XDG_DATA_HOME="+filepath.Join(home[i], ".local/share"), "XDG_CONFIG_HOME="+filepath.Join(home[i], ".config")))
	}
	run := func(i int) *process {
		t.Helper()
		p := start(t, env[i], bins.Caddy, "run", "--config", filepath.Join(home[i], "Caddyfile"))
		rig.Eventually(t, 20*time.Second, names[i][1]+" serves", func() bool {
			p.alive(t)
			resp, err := http.Get("http://127.0.0.1:" + web[i] + "/") //nolint:noctx // a probe on loopback
			if err != nil {
				return false
			}
			resp.Body.Close()
			return true
		})
		return p
	}
	caddy := func(i int, args ...string) string {
		cmd := exec.CommandContext(t.Context(), bins.Caddy, append(args, "--address", admin[i])...)
		cmd.Env = env[i]
		out, err := cmd.CombinedOutput()
		if err != nil {
			return ""
		}
		return string(out)
	}
	run(0)
	// Its site may answer before its identity is there: a copy of the storage would have half of that, and its lock.
	rig.Eventually(t, 20*time.Second, "the first is up", func() bool { return caddy(0, "fairway", "status") != "" })
	if err := os.CopyFS(filepath.Join(home[1], ".local/share/caddy"), os.DirFS(filepath.Join(home[0], ".local/share/caddy"))); err != nil {
		t.Fatal(err)
	}
	run(1)
	rig.Eventually(t, 20*time.Second, "each sees the other", func() bool {
		return strings.Count(caddy(0, "fairway", "status"), "alive") == 2 && strings.Count(caddy(1, "fairway", "status"), "alive") == 2
	})
	token := regexp.MustCompile(`(?m)^ey\S+`).FindString(caddy(0, "fairway", "token", "--node", "workstation"))
	args := strings.Fields(strings.NewReplacer("gw1.example.com:4433", "127.0.0.1:"+udp[0], "gw2.example.com:4433", "127.0.0.1:"+udp[1], "TOKEN", token).Replace(line[1]))
	node := start(t, append(os.Environ(), "HOME="+t.TempDir(), "XDG_STATE_HOME="+t.TempDir()), bins.Node, append(args, "--ollama", fake.URL())...)
	for i := range names {
		rig.Eventually(t, 30*time.Second, "served at "+names[i][1], func() bool {
			node.alive(t)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1:"+web[i]+"/api/chat", strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"hi"}]}`))
			if err != nil {
				return false
			}
			req.Header.Set("Authorization", "Bearer "+caller)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return false
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			return err == nil && resp.StatusCode == 200 && strings.Contains(string(body), `"done":true`)
		})
	}
	rig.Eventually(t, 10*time.Second, "a session with each", func() bool {
		return strings.Contains(caddy(0, "fairway", "nodes", "--json"), `"gw1"`) && strings.Contains(caddy(0, "fairway", "nodes", "--json"), `"gw2"`)
	})
}

// TestCompose holds the Compose file to what its Caddyfile and the page say: it cannot be run here.
func TestCompose(t *testing.T) {
	t.Parallel()
	var file struct {
		Services map[string]struct {
			Build       struct{ Context, Dockerfile string }
			Environment map[string]string
			Volumes     []string
			Ports       []string
			Command     []string
			Grace       string                                `yaml:"stop_grace_period"`
			DependsOn   map[string]struct{ Condition string } `yaml:"depends_on"`
		}
		Volumes map[string]any
	}
	if err := yaml.Unmarshal([]byte(read(t, "packaging/compose/compose.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	caddyfile := read(t, "packaging/compose/Caddyfile")
	for _, name := range []string{"gw1", "gw2"} {
		g := file.Services[name]
		if g.Environment["GATEWAY"] != name || g.Environment["FAIRWAY_KEY"] == "" {
			t.Errorf("%s: environment %v", name, g.Environment)
		}
		if g.DependsOn["redis"].Condition != "service_healthy" || g.Grace != "45s" {
			t.Errorf("%s: %+v", name, g)
		}
		for _, want := range []string{"./Caddyfile:/etc/fairway/Caddyfile:ro", "storage:/data"} {
			if !strings.Contains(strings.Join(g.Volumes, " "), want) {
				t.Errorf("%s has no volume %s", name, want)
			}
		}
		if len(g.Ports) != 2 || !strings.HasSuffix(g.Ports[0], ":8080") || !strings.HasSuffix(g.Ports[1], ":4433/udp") {
			t.Errorf("%s: ports %v", name, g.Ports)
		}
		for _, file := range []string{filepath.Join("packaging/compose", g.Build.Context, g.Build.Dockerfile)} {
			if !strings.Contains(read(t, file), "./xcaddy.sh") {
				t.Errorf("%s builds otherwise", file)
			}
		}
	}
	if len(file.Services["gw1"].Ports) == 0 || file.Services["gw1"].Ports[0] == file.Services["gw2"].Ports[0] {
		t.Error("both gateways want one port")
	}
	for _, want := range []string{"storage file_system /data", "listen :4433", "url redis://redis:6379/0", "http://:8080 {", "advertise {env.GATEWAY}:4433"} {
		if !strings.Contains(caddyfile, want) {
			t.Errorf("the Caddyfile lacks %q", want)
		}
	}
	if redis := strings.Join(file.Services["redis"].Command, " "); !strings.Contains(redis, "noeviction") {
		t.Errorf("redis: %s", redis)
	}
}
