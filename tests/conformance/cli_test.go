package conformance

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/tests/rig"
)

// Check 91: the stock command gives through the gateway what it gives directly.
func TestCLI(t *testing.T) {
	p := commonPair(t)
	host := func(base string) string { return strings.TrimPrefix(base, "http://") }
	ago := regexp.MustCompile(`\d+ (second|minute|hour|day|week|month)s? ago|\d+ (seconds?|minutes?) from now|Less than a second ago|About a minute`)
	ansi := regexp.MustCompile("\x1b\\[[0-9;?]*[a-zA-Z]|[⠀-⣿] ?")
	plain := func(s string) string {
		return strings.TrimSpace(ago.ReplaceAllString(ansi.ReplaceAllString(s, ""), "*"))
	}
	same := func(args ...string) {
		t.Helper()
		d, derr := rig.CLI(t, host(p.ollama.URL), args...)
		g, gerr := rig.CLI(t, host(p.g.URL()), args...)
		if d, g = plain(d), plain(g); d != g || (derr == nil) != (gerr == nil) {
			t.Errorf("ollama %v\ndirect (%v):\n%s\ngateway (%v):\n%s", args, derr, d, gerr, g)
		}
	}
	same("--version")
	same("list")
	same("run", "tiny", "hi")
	same("show", "tiny")
	rig.Eventually(t, 5*time.Second, "ps agrees", func() bool {
		d, _ := rig.CLI(t, host(p.ollama.URL), "ps")
		g, _ := rig.CLI(t, host(p.g.URL()), "ps")
		return plain(d) == plain(g)
	})
	same("stop", "tiny")
	// Deliberately different: without the manage option nobody makes a node download.
	for _, args := range [][]string{{"pull", "x"}, {"run", "nope", "hi"}, {"rm", "tiny"}} {
		if out, err := rig.CLI(t, host(p.g.URL()), args...); err == nil || !strings.Contains(out, "manage option") {
			t.Errorf("ollama %v: %v %s", args, err, out)
		}
	}
}
