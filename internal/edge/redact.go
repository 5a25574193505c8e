package edge

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// mask stands for each code point that was taken out of a text, so that places in what is left stay where they were.
const mask = "█"

// Redaction is a gate that takes what an operator named by patterns out of the texts before they leave, and stops a run whose own words hold it.
type Redaction struct{ patterns []*regexp.Regexp }

// NewRedaction compiles patterns. They are Go's regular expressions, in time linear in the text; a pattern that matches the empty text is
// refused, for it would match everywhere.
func NewRedaction(patterns []string) (Redaction, error) {
	var g Redaction
	for _, p := range patterns {
		if err := CheckPattern(p); err != nil {
			return Redaction{}, fmt.Errorf("redact %q %w", short(p, 40), err)
		}
		g.patterns = append(g.patterns, regexp.MustCompile(p))
	}
	return g, nil
}

// CheckPattern says why a pattern may not be used, without repeating it: one from outside a configuration may be what has to be kept.
func CheckPattern(p string) error {
	if _, refused := program(p); refused != nil {
		return errors.New(refused.Problem)
	}
	if regexp.MustCompile(p).MatchString("") {
		return errors.New("matches the empty text")
	}
	return nil
}

// Apply gives the input with every match replaced. The names of the texts and the operator's own words are not the gate's to change: a match
// there stops the run.
func (g Redaction) Apply(o *Operator, in Input) (Input, *Denial) {
	if len(g.patterns) == 0 {
		return in, nil
	}
	if slices.ContainsFunc(o.words(), g.matches) {
		return nil, &Denial{GateRedaction, "the operator's own words hold what must not leave"}
	}
	out := make(Input, len(in))
	for i, src := range in {
		if g.matches(src.Name) {
			return nil, &Denial{GateRedaction, "the name of a text holds what must not leave"}
		}
		for _, re := range g.patterns {
			src.Text = re.ReplaceAllStringFunc(src.Text, func(hit string) string { return strings.Repeat(mask, length(hit)) })
		}
		out[i] = src
	}
	return out, nil
}

func (g Redaction) matches(s string) bool {
	for _, re := range g.patterns {
		if re.MatchString(s) {
			return true
		}
	}
	return false
}
