package gateway

import (
	"strings"
	"testing"

	"github.com/fairway-edge/fairway/tests/fakeollama"
)

func chat(model, knobs string) string {
	return `{"model":"` + model + `","messages":[{"role":"user","content":"hi"}]` + knobs + `}`
}

func TestARunEndToEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{ExposeNode: true})
	fake := fakeollama.Start(t, fakeollama.Options{})
	r.node("n1", fake, 4)
	resp, body := r.do("POST", "/api/chat", chat("t-echo", ""), "X-Fairway-Session", "corr-1")
	if resp.StatusCode != 200 || !strings.Contains(body, `"done":true`) || strings.HasSuffix(body, "[cut]") {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	if resp.Header.Get("X-Fairway-Node") != "n1" || resp.Header.Get("X-Fairway-Session") != "corr-1" || resp.Header.Get("X-Fairway-Run") == "" {
		t.Fatalf("%v", resp.Header)
	}
	accs := r.accounts()
	if len(accs) != 1 {
		t.Fatalf("%d accounts", len(accs))
	}
	a := accs[0]
	if a.Outcome != "completed" || a.Node != "n1" || a.Principal != "alice" || a.Status != 200 || a.Bytes != uint64(len(body)) || a.Attempts != 1 {
		t.Fatalf("%+v", a.View())
	}
	if direct := fake.Log(); direct[len(direct)-1].Host == "" {
		t.Fatal("no Host")
	}
}
