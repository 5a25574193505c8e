package edge

import (
	"strings"
	"unicode"
)

// grounding is what is left of a model's answer once every value has been looked up again.
type grounding struct {
	values   []string // one a field: the value, or the sentinel
	evidence []Evidence
}

// ground looks up every value of an answer. A value that does not hold becomes the sentinel; nothing of the model's own words gets through
// that is not in one input text or in the author's list.
func (c *Contract) ground(answer *node, in Input) grounding {
	texts := index(in)
	proofs := make([]*Evidence, len(c.fields))
	values := make([]string, len(c.fields))
	for i, fd := range c.fields {
		values[i] = c.sentinel
		v := answer.members[fd.name]
		if v == nil {
			continue
		}
		if fd.mode == closedSet {
			if label, ok := fd.label(v); ok {
				values[i], proofs[i] = label, &Evidence{Source: fd.name, Snippet: &label}
			}
			continue
		}
		if value, ok := c.quotable(v); ok {
			if p, ok := texts.find(collapse(value)); ok {
				values[i], proofs[i] = value, &Evidence{Source: p.source, Snippet: &value, Offset: &p.offset}
			}
		}
	}
	c.cap(values, proofs)
	g := grounding{values: values}
	for _, p := range proofs {
		if p != nil {
			g.evidence = append(g.evidence, *p)
		}
	}
	return g
}

// quotable gives a value that may be looked up in the texts.
func (c *Contract) quotable(v *node) (string, bool) {
	if v.kind != jsonText {
		return "", false
	}
	value := clean(v.text)
	return value, value != "" && value != c.sentinel && length(value) <= c.maxValueChars && !masked(value)
}

// masked reports whether nothing can be read in a value: it has masks, and besides at most what stands between them.
func masked(value string) bool {
	return strings.Contains(value, mask) && !strings.ContainsFunc(value, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) })
}

// label gives the author's spelling of what a model said in any case and spacing, or as a boolean or number.
func (fd *field) label(v *node) (string, bool) {
	said := v.text
	switch v.kind {
	case jsonText:
	case jsonBool:
		said = "false"
		if v.yes {
			said = "true"
		}
	case jsonNumber:
		said = wholeNumeral(v.text)
	default:
		return "", false
	}
	label, ok := fd.byKey[labelKey(said)]
	return label, ok
}

// cap holds the verbatim values together to the contract's total: while they are too long, the longest goes, of equals the first.
func (c *Contract) cap(values []string, proofs []*Evidence) {
	lengths := make([]int, len(values))
	total, missing := 0, length(c.sentinel)
	for i, fd := range c.fields {
		if fd.mode == verbatim {
			lengths[i] = length(values[i])
			total += lengths[i]
		}
	}
	for total > c.maxTotalChars {
		longest := 0
		for i := range lengths {
			if lengths[i] > lengths[longest] {
				longest = i
			}
		}
		if lengths[longest] <= missing {
			return
		}
		total -= lengths[longest] - missing
		lengths[longest], values[longest], proofs[longest] = missing, c.sentinel, nil
	}
}
