package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/rig"
)

// F06, F07 and DECISIONS 13: with everything at DEBUG and an access log on, no key and no join token stands in a log, a metric, the admin API, the
// autosaved configuration or the storage, and none reaches a provider.
func TestNoSecretAnywhere(t *testing.T) {
	t.Parallel()
	sum := sha256.Sum256([]byte(rig.Key))
	fake := fakeollama.Start(t, fakeollama.Options{})
	g := rig.NewGateway(t, rig.Options{
		Global: "\t\tkey alice sha256:" + hex.EncodeToString(sum[:]) + "\n", NoInlineKey: true,
		Sites: "", SiteLines: "\tlog {\n\t\toutput stderr\n\t}\n",
	})
	token := g.JoinToken("n1")
	n := g.NodeWith("n1", token, "--ollama", fake.URL())
	waitModel(t, g, "t-echo")
	ways := []struct {
		path   string
		header []string
	}{
		{"/api/chat", nil},
		{"/k/" + rig.Key + "/api/chat", []string{"Authorization", ""}},
		{"/v1/messages", []string{"X-Api-Key", rig.Key, "Authorization", ""}},
		{"/k/" + rig.Key + "/nothing", []string{"Authorization", ""}},
		{"/k/" + rig.Key, []string{"Authorization", ""}},
		{"/api/chat", []string{"Authorization", "Bearer " + rig.Key + "x"}},
		{"//k/" + rig.Key + "/api/chat", []string{"Referer", g.URL() + "/k/" + rig.Key + "/"}},
		{"/api/chat?key=1", []string{"Cookie", "session=" + rig.Key}},
	}
	for _, w := range ways {
		g.Do("POST", w.path, chat("t-echo", `,"max_tokens":5`), w.header...)
	}
	for _, cmd := range [][]string{{"nodes"}, {"runs"}, {"status"}, {"nodes", "--json"}, {"runs", "--json"}} {
		hold(t, fmt.Sprint(cmd), g.Fairway(cmd...), rig.Key, token)
	}
	for _, path := range []string{"/config/", "/metrics", "/fairway/nodes", "/fairway/runs", "/fairway/status"} {
		r, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", g.Admin, path)) //nolint:noctx // loopback
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(r.Body)
		r.Body.Close()
		hold(t, path, string(b), rig.Key, token)
	}
	hold(t, "the gateway's log", g.Log(), rig.Key, token)
	hold(t, "the node's log", n.Log(), rig.Key, token)
	if !strings.Contains(g.Log(), "fairway_run") {
		t.Error("there is no access line to look into")
	}
	for _, dir := range []string{g.Dir, n.Dir} {
		err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			b, err := os.ReadFile(path)
			hold(t, path, string(b), rig.Key, token)
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	for _, rec := range fake.Log() {
		for _, h := range rec.Headers {
			hold(t, "header "+h[0]+" at the provider", h[1], rig.Key, token)
		}
		hold(t, "the target at the provider", rec.Target, rig.Key, token)
	}
}

func hold(t *testing.T, where, text string, secrets ...string) {
	t.Helper()
	for _, s := range secrets {
		if i := strings.Index(text, s); i >= 0 {
			t.Errorf("%s holds a secret: …%s…", where, text[max(0, i-80):i])
		}
	}
}
