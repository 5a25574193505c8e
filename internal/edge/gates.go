package edge

import "slices"

// The gates are deterministic checks that a run has to pass. There are seven, and the list is this project's own: other systems that speak of
// safety gates name some of these and not all. They run in the gateway and on the node with the same code, and none of them asks a model.
//
//	redaction   before the texts leave    [Redaction]
//	budget      before a run starts       [Budget]
//	retry       after a failure           [Retry]
//	cycle       after a failure           [Cycle]
//	tool        before an action          [Tools]
//	grounding   on every answer           [Operator.Judge]
//	action      before an action          [Approval]
const (
	GateRedaction = "redaction"
	GateBudget    = "budget"
	GateRetry     = "retry"
	GateCycle     = "cycle"
	GateTool      = "tool"
	GateGrounding = "grounding"
	GateAction    = "action"
)

// Denial is a gate's no. Its text holds numbers and names of the project's own, so that it may be logged and answered.
type Denial struct {
	Gate   string
	Reason string
}

func (d *Denial) Error() string { return "gate " + d.Gate + ": " + d.Reason }

// Denied is the result of a run that a gate stopped.
func Denied(o Origin, d *Denial) ModelResult {
	r := o.result(Unavailable)
	r.DegradeReason, r.DegradeDetail = OtherError, short("gate: "+d.Gate+": "+d.Reason, maxDetail)
	return r
}

// Budget bounds what a run may take of a model, all attempts together.
type Budget struct {
	Tokens int // 0 for [DefaultBudget]
}

// DefaultBudget is the budget, in tokens, where none is configured.
const DefaultBudget = 100_000

// LeastBudget is the least budget, in tokens, with which any run of a model can pass: the longest answer, and the shortest question.
const LeastBudget = numPredict + 25

// Check admits a run, or its next attempt, that would bring what the run has taken to so many tokens; see [Operator.Tokens].
func (b Budget) Check(tokens int) *Denial {
	most := b.Tokens
	if most <= 0 {
		most = DefaultBudget
	}
	if tokens > most {
		return &Denial{GateBudget, "the run would take more tokens than it may"}
	}
	return nil
}

// Tools are the names of tools that a run's action may name. Without any, no action passes.
type Tools []string

// Check admits a tool that is on the list.
func (t Tools) Check(tool string) *Denial {
	if !slices.Contains(t, tool) {
		return &Denial{GateTool, "the tool is not on the list of permitted tools"}
	}
	return nil
}

// Gates are the gates that a run has to pass before anything of it leaves, as one side is configured. The zero value has the defaults: nothing is
// taken out of the texts, and no tool is permitted.
type Gates struct {
	Redaction Redaction
	Budget    Budget
	Tools     Tools
	Approval  Approval
}

// Admit holds a request to the gates, and gives its input as it may leave. What the answer is grounded in afterwards is that.
func (g Gates) Admit(r *Request) (Input, *Denial) {
	if a := r.Action; a != nil {
		if no := g.Tools.Check(a.Tool); no != nil {
			return nil, no
		}
		if no := g.Approval.Check(*a); no != nil {
			return nil, no
		}
	}
	in, no := g.Redaction.Apply(r.Operator, r.Input)
	if no != nil {
		return nil, no
	}
	if no := g.Budget.Check(r.Operator.Tokens(in)); no != nil {
		return nil, no
	}
	return in, nil
}
