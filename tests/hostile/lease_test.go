package hostile

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/canary"
	"github.com/fairway-edge/fairway/tests/fakeollama"
	"github.com/fairway-edge/fairway/tests/rig"
)

// thumbprints are the gateway's lease keys, as an owner of a node would look them up.
func thumbprints(t *testing.T, g *rig.Gateway) string {
	t.Helper()
	var rows []struct {
		Issuers []string `json:"lease_issuers"`
	}
	if err := json.Unmarshal([]byte(g.Fairway("status", "--json")), &rows); err != nil || len(rows) != 1 || len(rows[0].Issuers) == 0 {
		t.Fatalf("%v, %+v", err, rows)
	}
	return strings.Join(rows[0].Issuers, ",")
}

// A node whose owner has pinned the keys under which it takes leases is not served by a gateway with others: it leaves, says why, and its provider is not asked;
// and that gateway serves on with the nodes that trust it. After a restart the gateway's keys are others.
func TestPinnedLeaseIssuer(t *testing.T) {
	t.Parallel()
	key := canary.New(t)
	g := rig.NewGateway(t, rig.Options{Global: rig.Slot(t, key)})
	pinned, other := fakeollama.Start(t, fakeollama.Options{Key: key}), fakeollama.Start(t, fakeollama.Options{Key: key})
	ask := func() int {
		r, _ := g.Do("POST", "/api/chat", chat("t-echo"))
		return r.StatusCode
	}
	serves := func(what string, status int) {
		t.Helper()
		rig.Eventually(t, 15*time.Second, what, func() bool { return ask() == status })
	}
	n := g.NodeOf("n1", pinned.URL(), "--lease-issuer", thumbprints(t, g))
	serves("the node with the right pin serves", 200)
	g.Kill()
	g.Start()
	rig.Eventually(t, 15*time.Second, "the node says that it does not take the key", func() bool {
		return strings.Contains(n.Log(), "lease issuer is not taken") && strings.Contains(n.Log(), "is not pinned")
	})
	asked := pinned.Stats().Exec
	if asked == 0 {
		t.Error("the provider was never asked")
	}
	for range 5 {
		if status := ask(); status != 503 {
			t.Errorf("with the pinned node alone: %d", status)
		}
	}
	g.NodeOf("n2", other.URL(), "--lease-issuer", thumbprints(t, g))
	serves("the other node serves", 200)
	for range 10 {
		if status := ask(); status != 200 {
			t.Errorf("with another node: %d", status)
		}
	}
	if now := pinned.Stats().Exec; now != asked {
		t.Errorf("the provider behind the pinned node was asked %d times", now-asked)
	}
	if twisted := g.TryNode("n3", "--token", g.JoinToken("n3"), "--lease-issuer", "short"); twisted.Exit(10*time.Second) != 2 {
		t.Errorf("a pin that is none: %s", twisted.Log())
	}
}

// T16 and T28: callers that bring credentials of their own, and providers that try to have one elsewhere.
func TestCredentialGoesNowhereElse(t *testing.T) {
	t.Parallel()
	key := canary.New(t)
	g := rig.NewGateway(t, rig.Options{Global: rig.Slot(t, key)})
	fake, elsewhere := fakeollama.Start(t, fakeollama.Options{Key: key}), fakeollama.Start(t, fakeollama.Options{})
	g.NodeOf("n1", fake.URL(), "--credits", "8")
	rig.Eventually(t, 10*time.Second, "serves", func() bool {
		r, _ := g.Do("POST", "/api/chat", chat("t-echo"))
		return r.StatusCode == 200
	})
	before := len(fake.Log())
	const own = "sk-the-callers-own-0123456789"
	for _, name := range []string{
		"X-Api-Key", "x-api-key", "Api-Key", "Proxy-Authorization", "Cookie", "X-Goog-Api-Key", "X-Auth-Token", "OpenAI-Organization", "X_Api_Key", "api_key",
		"X-Fairway-Lease", "X-Fairway-Slot", "X-Fairway-Principal",
	} {
		if r, body := g.Do("POST", "/api/chat", chat("t-echo"), name, own); r.StatusCode != 200 {
			t.Errorf("%s: %d %s", name, r.StatusCode, body)
		}
	}
	for _, rec := range fake.Log()[before:] {
		if rec.Path != "/api/chat" {
			continue
		}
		if got := rec.Header("Authorization"); len(got) != 1 || got[0] != "Bearer "+key {
			t.Errorf("%d lines of Authorization", len(got))
		}
		for _, h := range rec.Headers {
			if strings.Contains(h[1], own) || strings.HasPrefix(strings.ToLower(h[0]), "x-fairway") {
				t.Errorf("%s of the caller reached the provider", h[0])
			}
			if h[0] != "Authorization" && canary.Find([]byte(h[1]), key) >= 0 || strings.Contains(h[1], rig.Key) {
				t.Errorf("%s holds a key", h[0])
			}
		}
	}
	if err := fake.SetFault(fakeollama.Fault{Kind: "redirect", Path: "/api/chat", Times: 1, To: elsewhere.URL()}); err != nil {
		t.Fatal(err)
	}
	r, body := g.Do("POST", "/api/chat", chat("t-echo"))
	if n := len(elsewhere.Log()); n != 0 || r.StatusCode == 200 || canary.Find(fmt.Append([]byte(body), r.Header), key) >= 0 {
		t.Errorf("redirected: %d %v %s; %d requests elsewhere", r.StatusCode, r.Header, body, n)
	}
	for _, fault := range []string{"echohead", "echotrailer"} {
		if err := fake.SetFault(fakeollama.Fault{Kind: fault, Path: "/api/chat", Times: 1}); err != nil {
			t.Fatal(err)
		}
		r, body := g.Do("POST", "/api/chat", chat("t-echo"))
		if canary.Find(fmt.Append([]byte(body), r.Header, r.Trailer), key) >= 0 || fault == "echohead" && r.StatusCode != http.StatusBadGateway {
			t.Errorf("%s: %d %v %v %s", fault, r.StatusCode, r.Header, r.Trailer, body)
		}
	}
}
