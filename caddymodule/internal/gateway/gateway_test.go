package gateway

import (
	"strings"
	"testing"
	"time"

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

// Who manages nodes may choose one, for runs and for lists; nobody else may.
func TestPinnedNode(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{Manage: []string{"alice"}, ExposeNode: true})
	r.node("n1", fakeollama.Start(t, fakeollama.Options{Models: []string{"t-echo", "t-one"}}), 4)
	r.node("n2", fakeollama.Start(t, fakeollama.Options{Models: []string{"t-echo", "t-two"}}), 4)
	for range 4 {
		for _, node := range []string{"n1", "n2"} {
			if resp, body := r.do("POST", "/n/"+node+"/api/chat", chat("t-echo", "")); resp.StatusCode != 200 || resp.Header.Get("X-Fairway-Node") != node {
				t.Errorf("%s: %d at %s: %s", node, resp.StatusCode, resp.Header.Get("X-Fairway-Node"), body)
			}
		}
	}
	if _, body := r.do("GET", "/n/n1/api/tags", ""); !strings.Contains(body, "t-one") || strings.Contains(body, "t-two") {
		t.Errorf("%s", body)
	}
	if resp, _ := r.do("POST", "/n/n1/api/chat", chat("t-two", "")); resp.StatusCode != 404 {
		t.Errorf("a model of another node: %d", resp.StatusCode)
	}
	if resp, _ := r.do("POST", "/n/n9/api/chat", chat("t-echo", "")); resp.StatusCode != 503 {
		t.Errorf("a node that is not here: %d", resp.StatusCode)
	}
	if resp, _ := r.do("POST", "/api/chat", chat("t-echo", ""), "Authorization", "Bearer sk-bob", "X-Fairway-Node", "n1"); resp.StatusCode != 403 {
		t.Errorf("bob: %d", resp.StatusCode)
	}
}

// Headers and queries that are not UTF-8 are HTTP all the same.
func TestBytesThatAreNotUTF8(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	fake := fakeollama.Start(t, fakeollama.Options{})
	r.node("n1", fake, 4)
	if resp, body := r.do("POST", "/api/chat?q=%ff", chat("t-echo", ""), "User-Agent", "caf\xe9"); resp.StatusCode != 200 {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	log := fake.Log()
	if got := log[len(log)-1].Header("User-Agent"); len(got) != 1 || got[0] != "caf\xe9" {
		t.Errorf("%q", got)
	}
}

// An abort ends a run wherever it stands: in line, too.
func TestAbortEndsWaitingRuns(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	r.node("n1", fakeollama.Start(t, fakeollama.Options{}), 1)
	done := make(chan int, 2)
	for range 2 {
		go func() {
			resp, _ := r.do("POST", "/api/chat", chat("t-slowload", `,"t_s":30`))
			done <- resp.StatusCode
		}()
	}
	for r.hub.Fleet().Waiting() == 0 {
		time.Sleep(time.Millisecond)
	}
	r.hub.runs.abort(errStopping)
	for range 2 {
		if status := <-done; status != 503 {
			t.Errorf("%d", status)
		}
	}
	if n := r.hub.InFlight(); n != 0 {
		t.Errorf("%d in flight", n)
	}
}
