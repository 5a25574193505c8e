package caddymodule

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairway-edge/fairway/internal/edge"
)

// TestRedactPlaceholders: a placeholder stands for a regular expression, and the braces of one are not taken for a placeholder.
func TestRedactPlaceholders(t *testing.T) {
	t.Setenv("T_PROJECT", "Kestrel|Merlin")
	file := filepath.Join(t.TempDir(), "pattern")
	if err := os.WriteFile(file, []byte("card \\d{4}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ pattern, in, out string }{
		{"{env.T_PROJECT}", "on Merlin", "on ██████"},
		{"{env.T_PROJECT}", "on {env.T_PROJECT}", "on {env.T_PROJECT}"},
		{"({env.T_PROJECT})-\\d{2}", "Kestrel-42", "██████████"},
		{"{file." + file + "}", "card 4711", "█████████"},
		{`\d{3}-\w{2,4}`, "123-abcd", "████████"},
		{`\p{Greek}{2,}\x{20AC}`, "αβ€", "███"},
		{`\{env.T_PROJECT\}`, "{env.T_PROJECT}", "███████████████"},
	} {
		g, err := (&Edge{Redact: []string{c.pattern}}).gates(newResolver())
		if err != nil {
			t.Errorf("%s: %v", c.pattern, err)
			continue
		}
		in, no := g.Redaction.Apply(&edge.Operator{Kind: edge.KindGoal}, edge.Input{{Name: "a", Text: c.in}})
		if no != nil || in[0].Text != c.out {
			t.Errorf("%s: %v, %v, want %s", c.pattern, in, no, c.out)
		}
	}
}

// TestRedactKeepsSecrets: what a pattern stands for may be a secret, and no error has it.
func TestRedactKeepsSecrets(t *testing.T) {
	t.Setenv("T_PROJECT", "Kestrel(")
	_, err := (&Edge{Redact: []string{"{env.T_PROJECT}"}}).gates(newResolver())
	if err == nil || strings.Contains(err.Error(), "Kestrel") {
		t.Error(err)
	}
}

// TestLabelNames: the JSON form refuses what the Caddyfile refuses.
func TestLabelNames(t *testing.T) {
	t.Parallel()
	for _, app := range []string{
		`{"profiles": [{"name": "p", "nodes": {"{env.HOME}": "x"}}]}`,
		`{"embedded_node": {"labels": {"{env.HOME}": "x"}}}`,
	} {
		if err := validateJSON(t, app); err == nil || !strings.Contains(err.Error(), "'{env.HOME}': a placeholder may stand for a label's value") {
			t.Errorf("%s: %v", app, err)
		}
	}
}
