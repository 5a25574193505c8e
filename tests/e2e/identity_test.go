package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/rig"
)

// A join token works as often as it says, for the node that it names, also across a restart of the gateway.
func TestJoinTokens(t *testing.T) {
	t.Parallel()
	g := rig.NewGateway(t, rig.Options{})
	token := g.JoinToken("n1")
	g.NodeWith("n1", token)
	twin := g.TryNode("n1", "--token", token)
	if code := twin.Exit(15 * time.Second); code != 3 || !strings.Contains(twin.Log(), "token_spent") {
		t.Errorf("a spent token: exit %d: %s", code, twin.Log())
	}
	g.Kill()
	g.Start()
	again := g.TryNode("n1", "--token", token)
	if code := again.Exit(15 * time.Second); code != 3 || !strings.Contains(again.Log(), "token_spent") {
		t.Errorf("after a restart: exit %d: %s", code, again.Log())
	}
	other := rig.NewGateway(t, rig.Options{})
	foreign := g.TryNode("n2", "--token", other.JoinToken("n2"))
	if code := foreign.Exit(15 * time.Second); code != 3 {
		t.Errorf("another gateway's token: exit %d: %s", code, foreign.Log())
	}
	for _, n := range []string{"n2"} {
		if g.Node(n) != nil {
			t.Errorf("%s was registered", n)
		}
	}
	if code := g.TryNode("n3").Exit(10 * time.Second); code != 2 {
		t.Errorf("neither token nor identity: exit %d", code)
	}
	if out, err := g.Run("fairway", "token", "--node", "Bad/Name"); err == nil {
		t.Errorf("a token for a malformed name: %s", out)
	}
}

// A drained node gets no work, also after it has dialled again, until it is put back; the gateway remembers it over a restart.
func TestDrainSurvives(t *testing.T) {
	t.Parallel()
	g, n, _ := fleet(t, rig.Options{})
	g.Fairway("drain", "n1")
	check := func(what string, status int) {
		t.Helper()
		rig.Eventually(t, 12*time.Second, what, func() bool {
			r, _ := g.Do("POST", "/api/chat", chat("t-echo", ""))
			return r.StatusCode == status
		})
	}
	check("drained", 503)
	n.Kill()
	n.Restart()
	g.WaitNode("n1", "draining")
	check("drained after its re-dial", 503)
	g.Kill()
	g.Start()
	g.WaitNode("n1", "draining")
	check("drained after the gateway's restart", 503)
	g.Fairway("undrain", "n1")
	check("back", 200)
}
