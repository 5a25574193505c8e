package edge

import "strings"

var answerLimits = limits{bytes: maxAnswer, depth: maxAnswerDepth, values: maxAnswerValues}

// Judge makes a result of what a model said about an input. It never fails and never panics, whatever that was: an answer that cannot be read
// is unavailable, one that breaks the operator's schema is invalid and discarded, one of which nothing is grounded is uncertain. Only
// values that were looked up again, or that the schema admits, are in the output.
func (o *Operator) Judge(said Said, in Input, by Origin) ModelResult {
	answer, why := parseAnswer(said)
	switch {
	case why != "":
		return unparseable(by, why)
	case o.contract != nil:
		return o.contract.judge(answer, in, by)
	case o.schema != nil:
		if wrong := o.schema.check(answer); wrong != "" {
			return discarded(by, "schema: "+wrong)
		}
		if answer.kind == jsonNull {
			return Doubtful(by, "the answer is null")
		}
		return Succeeded(by, answer.compact())
	}
	return Fail(by, codeInternal) // a goal is judged where it runs
}

// judge holds an answer to the contract: an object without a member that nobody asked for, and every value looked up again.
func (c *Contract) judge(answer *node, in Input, by Origin) ModelResult {
	if answer.kind != jsonObject {
		return unparseable(by, "the answer is "+answer.kind.String()+", not an object")
	}
	for _, k := range answer.keys {
		if !c.declares(k) {
			return discarded(by, "schema: "+segment(k)+" is no field of the contract")
		}
	}
	g := c.ground(answer, in)
	if len(g.evidence) == 0 {
		r := Doubtful(by, "no value is grounded")
		r.Output, r.Confidence = c.output(g.values), new(float64)
		return r
	}
	r := Succeeded(by, c.output(g.values), g.evidence...)
	confidence := float64(len(g.evidence)) / float64(len(c.fields))
	r.Confidence = &confidence
	return r
}

func (c *Contract) declares(name string) bool {
	for _, fd := range c.fields {
		if fd.name == name {
			return true
		}
	}
	return false
}

// parseAnswer finds the JSON in what a model said: after its thoughts, out of one fence. Text before or after it is a reason to doubt which
// part was meant, so that nothing is searched for.
func parseAnswer(said Said) (*node, string) {
	s := strings.TrimSpace(said.Text)
	thought := strings.TrimSpace(said.Thinking) != ""
	for {
		rest, ok := strings.CutPrefix(s, "<think>")
		if !ok {
			break
		}
		thought = true
		_, s, _ = strings.Cut(rest, "</think>")
		s = strings.TrimSpace(s)
	}
	s = unfence(s)
	switch {
	case s == "" && thought:
		return nil, "the model thought and did not answer"
	case s == "":
		return nil, "the answer is empty"
	}
	n, refused := readJSON([]byte(s), answerLimits)
	if refused == nil {
		return n, ""
	}
	why := "the answer " + strings.TrimPrefix(refused.Error(), "the document ")
	if said.Cut {
		why += " (it was cut off at its longest)"
	}
	return nil, why
}

// unfence takes the fence off a text that is one code block, with no label or the label json.
func unfence(s string) string {
	inner, opened := strings.CutPrefix(s, "```")
	inner, closed := strings.CutSuffix(inner, "```")
	if !opened || !closed {
		return s
	}
	if len(inner) >= 4 && strings.EqualFold(inner[:4], "json") {
		inner = inner[4:]
	}
	return strings.TrimSpace(inner)
}
