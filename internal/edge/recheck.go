package edge

import (
	"bytes"
	"strings"
)

// Doubt says why a result that another side made of a run cannot be one of this operator and input, or "" if it can: what is in it has to be in the input
// and to fit the schema once more. A goal's result rests on the cloud's word alone.
func (o *Operator) Doubt(r ModelResult, in Input) string {
	if r.Status == Unavailable || r.Status == Invalid || o.Kind == KindGoal {
		return ""
	}
	if r.Output == nil {
		if r.Status == Success {
			return "success without an output"
		}
		return ""
	}
	again := o.Judge(Said{Text: string(r.Output)}, in, Origin{})
	switch {
	case again.Status == Invalid, again.Status == Unavailable:
		return "the output: " + again.DegradeDetail
	case again.Status == Uncertain && r.Status == Success:
		return "success, and nothing is grounded"
	case !bytes.Equal(again.Output, r.Output):
		return "the output holds what is not grounded, or is not spelled as its author spelled it"
	case r.Confidence != nil && again.Confidence != nil && *r.Confidence > *again.Confidence:
		return "the confidence is higher than what is grounded"
	}
	for _, e := range r.Evidence {
		if !cites(again.Evidence, e) {
			return "evidence that is not there"
		}
	}
	return ""
}

// cites reports whether a piece of evidence is among those that were found again.
func cites(found []Evidence, e Evidence) bool {
	for _, f := range found {
		if f.Source == e.Source && same(f.Snippet, e.Snippet) && same(f.Offset, e.Offset) {
			return true
		}
	}
	return false
}

func same[T comparable](a, b *T) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}

// citation begins the evidence of a job in the cloud.
const citation = "convilyn://jobs/"

// CitedJob is the id of the job in the cloud that a result rests on, or "".
func CitedJob(r ModelResult) string {
	for _, e := range r.Evidence {
		if id, ok := strings.CutPrefix(e.Source, citation); ok {
			return id
		}
	}
	return ""
}

// Suits reports whether what a machine can do, and how well, is enough for the demand.
func (d Demand) Suits(c Capability, t Tier) bool { return c == d.Capability && t.meets(d.Tier) }
