package docs

import (
	"encoding/json"
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

	"github.com/fairway-edge/fairway/tests/fakegoals"
	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/freeport"
	"github.com/fairway-edge/fairway/tests/rig"
)

// TestEdgeRunsPage does what edge-runs.md says, on ports of its own: a contract from a file, on this machine, on a node, in the cloud, and with the cable pulled. The model
// is one that says what stands in the mail.
func TestEdgeRunsPage(t *testing.T) {
	t.Parallel()
	bins := rig.Build(t)
	page := read(t, "docs/edge-runs.md")
	code := func(lang, begins string) string {
		t.Helper()
		for _, m := range regexp.MustCompile("(?s)```"+lang+"\n(.*?)```").FindAllStringSubmatch(page, -1) {
			if strings.HasPrefix(m[1], begins) {
				return m[1]
			}
		}
		t.Fatalf("the page has no %s block that begins with %q", lang, begins)
		return ""
	}
	dir, bin := t.TempDir(), t.TempDir()
	shell := func(script string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "bash", "-euc", script)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "HOME="+dir)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
		return string(out)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const mail = "Please find attached our invoice INV-2024-117."
	says := ` ⟦{"number":"INV-2024-117","kind":"invoice"}⟧`
	ollama := fakeollama.Start(t, fakeollama.Options{Models: []string{"t-say"}})
	shell(strings.NewReplacer("qwen3:4b", "t-say", mail, mail+says).Replace(code("sh", "cat > invoice.json")))

	// On this machine.
	if err := os.Symlink(bins.Node, filepath.Join(bin, "fairway-node")); err != nil {
		t.Fatal(err)
	}
	if out := shell(strings.TrimSpace(code("sh", "fairway-node edge run")) + " --ollama " + ollama.URL() + " --json"); !strings.Contains(out, `"output":{"number":"INV-2024-117","kind":"Invoice"}`) {
		t.Errorf("on this machine: %s", out)
	}

	// A gateway and a node.
	const caller, key = "fw_example-key-of-a-test-0123456789abcdef", "sk-cloud-0123456789abcdef"
	write("alice.key", caller+"\n")
	write("cloud.key", key+"\n")
	goals := fakegoals.Start(t, fakegoals.Options{Key: key, Workflows: []fakegoals.Workflow{{ID: "uw_invoice"}}})
	web, udp, admin := strconv.Itoa(freeport.Get(t)), strconv.Itoa(freeport.Get(t)), "127.0.0.1:"+strconv.Itoa(freeport.Get(t))
	write("Caddyfile", strings.NewReplacer("/etc/fairway", dir, ":4433", "127.0.0.1:"+udp, "ai.example.com {\n", "http://:"+web+" {\n\tbind 127.0.0.1\n",
		"{\n\tfairway {\n", "{\n\tadmin "+admin+"\n\tfairway {\n").Replace(code("caddyfile", "{")))
	env := append(os.Environ(), "XDG_CONFIG_HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_STATE_HOME="+dir, "HOME="+dir)
	gateway := start(t, env, bins.Caddy, "run", "--config", filepath.Join(dir, "Caddyfile"))
	var token string
	rig.Eventually(t, 20*time.Second, "the gateway gives a token", func() bool {
		gateway.alive(t)
		cmd := exec.CommandContext(t.Context(), bins.Caddy, "fairway", "token", "--node", "n1", "--address", admin)
		cmd.Env = env
		out, err := cmd.Output()
		token = strings.TrimSpace(string(out))
		return err == nil
	})
	line := strings.NewReplacer("ai.example.com:4433", "127.0.0.1:"+udp, "https://api.example.com", goals.URL()).Replace(strings.TrimSpace(code("sh", "fairway-node run")))
	node := start(t, env, bins.Node, append(strings.Fields(line)[1:], "--token", strings.Fields(token)[0], "--ollama", ollama.URL())...)

	ask := func(body string) string {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1:"+web+"/api/v1/edge/runs", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+caller)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("%d %s %v", resp.StatusCode, text, err)
		}
		return string(text)
	}
	// The body is what the page's line gives curl.
	here := regexp.MustCompile(`(?s)-d @- <<JSON\n(.*?)\nJSON`).FindStringSubmatch(code("sh", "curl https://ai.example.com/api/v1/edge/runs -H \"Authorization: Bearer $FAIRWAY_KEY\" -d @-"))
	body := strings.Replace(shell("cat <<JSON\n"+here[1]+"\nJSON"), mail, mail+strings.ReplaceAll(says, `"`, `\"`), 1)
	var answer string
	rig.Eventually(t, 20*time.Second, "the run is answered on the node", func() bool {
		node.alive(t)
		answer = ask(body)
		return strings.Contains(answer, `"status":"success"`)
	})
	// All that the page shows is there, but for what differs each time.
	var shown, got map[string]any
	if err := json.Unmarshal([]byte(code("json", `{"run_id"`)), &shown); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(answer), &got); err != nil {
		t.Fatal(err)
	}
	for k := range shown {
		if _, ok := got[k]; !ok {
			t.Errorf("the page shows %q, and the answer has it not", k)
		}
	}
	want, result := shown["result"].(map[string]any), got["result"].(map[string]any)
	for _, k := range []string{"status", "output", "confidence", "evidence", "degrade_reason", "degrade_detail", "model_version"} {
		a, _ := json.Marshal(want[k])
		b, _ := json.Marshal(result[k])
		if string(a) != string(b) {
			t.Errorf("%s: the page shows %s, the answer has %s", k, a, b)
		}
	}

	// In the cloud.
	cloud := regexp.MustCompile(`(?m)^curl \S+ -H "[^"]+" -d '(\{"operator":\{"kind":"goal".*\})'$`).FindStringSubmatch(page)
	if cloud == nil {
		t.Fatal("the page has no line for the cloud")
	}
	rig.Eventually(t, 20*time.Second, "the goal is answered by the cloud", func() bool {
		answer = ask(strings.Replace(cloud[1], "…", "a mail", 1))
		return strings.Contains(answer, `"status":"success"`)
	})
	if !strings.Contains(answer, `convilyn://jobs/`) || !strings.Contains(answer, `"placement":"cloud"`) {
		t.Errorf("in the cloud: %s", answer)
	}

	// The cable is pulled: the answer that the page shows.
	if err := json.Unmarshal([]byte(code("json", `{"disposition"`)), &shown); err != nil {
		t.Fatal(err)
	}
	node.kill()
	rig.Eventually(t, 40*time.Second, "the answer is that nobody is there", func() bool {
		return strings.Contains(ask(body), shown["result"].(map[string]any)["degrade_detail"].(string))
	})
	answer = ask(body)
	for _, part := range []string{`"status":"unavailable"`, `"disposition":"fallback"`, `"degrade_reason":"server_unreachable"`} {
		if !strings.Contains(answer, part) {
			t.Errorf("with the cable pulled: %s", answer)
		}
	}
}
