package caddymodule

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/fairway-edge/fairway/internal/edge"
)

// Edge says what typed runs have to pass before anything of them leaves the gateway.
type Edge struct {
	// What is taken out of the input texts, as Go regular expressions. A run whose own
	// words match is refused. Of placeholders only `{env.NAME}` and `{file./path}` are
	// replaced, by a regular expression as it stands.
	Redact []string `json:"redact,omitempty"`

	// How many tokens a run may take at most, estimated before it starts, at least 1049:
	// an answer alone counts 1024. Default: 100000.
	Budget int `json:"budget,omitempty"`

	// The tools that an action may name. Default: none.
	Tools []string `json:"tools,omitempty"`

	// The highest risk of an action that needs nobody's approval, `R0` or `R1`.
	// Default: `R1`.
	Approve string `json:"approve,omitempty"`
}

// maxBudget bounds what a budget may say.
const maxBudget = 1 << 30

// UnmarshalCaddyfile reads the block of edge.
func (e *Edge) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	if d.NextArg() {
		return d.Errf("edge takes a block, not '%s'", d.Val())
	}
	return options{
		"redact": texts(&e.Redact, checkRedact),
		"budget": {parse: func(d *caddyfile.Dispenser) error {
			var v string
			if err := text(&v, nil).parse(d); err != nil {
				return err
			}
			if err := checkBudget(v); err != nil { // it is a number in the JSON: no placeholder stays open
				return d.WrapErr(fmt.Errorf("budget: %w", err))
			}
			e.Budget, _ = strconv.Atoi(v) // judged above
			return nil
		}},
		"tools":   texts(&e.Tools, checkTool),
		"approve": text(&e.Approve, checkApprove),
	}.parse(d, "edge", d.Nesting())
}

func checkRedact(v string) error {
	_, err := edge.NewRedaction([]string{v})
	return err
}

func checkBudget(v string) error {
	if n, err := strconv.Atoi(v); err != nil || n < edge.LeastBudget || n > maxBudget {
		return fmt.Errorf("'%s' is not a number of tokens that a run could do with: want %d to %d", v, edge.LeastBudget, maxBudget)
	}
	return nil
}

func checkTool(v string) error {
	if v == "" || len(v) > 128 {
		return fmt.Errorf("'%s' is not the name of a tool: want 1 to 128 bytes", v)
	}
	return nil
}

func checkApprove(v string) error { return oneOf(v, string(edge.R0), string(edge.R1)) }

// gates resolves the block; nil is every default.
func (e *Edge) gates(repl resolver) (g edge.Gates, err error) {
	if e == nil {
		return g, nil
	}
	patterns, err := repl.patterns(e.Redact)
	if err != nil {
		return g, err
	}
	if g.Redaction, err = edge.NewRedaction(patterns); err != nil {
		return g, err
	}
	if e.Budget != 0 {
		if err := checkBudget(strconv.Itoa(e.Budget)); err != nil {
			return g, fmt.Errorf("budget: %w", err)
		}
		g.Budget = edge.Budget{Tokens: e.Budget}
	}
	tools, err := repl.list("tools", e.Tools, checkTool)
	if err != nil {
		return g, err
	}
	g.Tools = tools
	approve, err := repl.value("approve", e.Approve, string(edge.R1), checkApprove)
	if err != nil {
		return g, err
	}
	g.Approval, err = edge.NewApproval(edge.Risk(approve))
	return g, err
}

// braced finds what may be a placeholder in a regular expression. What is escaped is none, nor is a repetition such as {2,4}.
var braced = regexp.MustCompile(`(?s)\\.|\{[A-Za-z_]+\.[^{}]+\}`)

// patterns resolves regular expressions, in which braces have a meaning of their own: only {env.NAME} and {file./path} are replaced, by a regular
// expression as it stands. What looks like another placeholder is refused, for it would never match. No error repeats what came from outside.
func (r resolver) patterns(list []string) ([]string, error) {
	var out []string
	for _, p := range list {
		var err error
		resolved := braced.ReplaceAllStringFunc(p, func(hit string) string {
			switch {
			case hit[0] == '\\' || err != nil:
				return hit
			case strings.HasPrefix(hit, "{env."), strings.HasPrefix(hit, "{file."):
				hit, err = r.value("redact", hit, "", nil)
			default:
				err = fmt.Errorf("redact: %s is no placeholder that a pattern takes: want {env.NAME} or {file./path}; a brace itself is written \\{", hit)
			}
			return hit
		})
		if err == nil && resolved != p {
			if err = edge.CheckPattern(resolved); err != nil {
				err = fmt.Errorf("redact %s: with its placeholders replaced it %w", p, err)
			}
		}
		if err != nil {
			return nil, err
		}
		out = append(out, resolved)
	}
	return out, nil
}

// Interface guard
var _ caddyfile.Unmarshaler = (*Edge)(nil)
