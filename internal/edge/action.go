package edge

import (
	"errors"
	"strings"
	"time"
)

// Risk is what an action can do at worst.
type Risk string

// The four levels.
const (
	R0 Risk = "R0" // reads
	R1 Risk = "R1" // changes what can be changed back
	R2 Risk = "R2" // changes how something runs
	R3 Risk = "R3" // moves money, or touches someone's safety or person
)

// DecisionSource says who decided. The set is closed.
type DecisionSource string

// Who decided.
const (
	ByHuman  DecisionSource = "human"
	ByExpiry DecisionSource = "expiry_default" // nobody, in time
)

// Authorization is a person's word for one action.
type Authorization struct {
	Operator  string // who
	Reason    string // why
	Approved  bool
	GrantedAt time.Time // zero where it was not said
	Source    DecisionSource
}

// Action is what a run would do with its result.
type Action struct {
	Tool             string
	Risk             Risk
	RequiresApproval bool // whatever the risk
	Authorization    *Authorization
}

// Approval is the gate before actions. What is above the automatic level, or asks for it, needs a person's word.
type Approval struct{ automatic Risk }

// NewApproval takes the highest risk that needs nobody's word: R0 or R1, by default R1. Nothing can make R2 and R3 automatic.
func NewApproval(automatic Risk) (Approval, error) {
	switch automatic {
	case "":
		return Approval{R1}, nil
	case R0, R1:
		return Approval{automatic}, nil
	}
	return Approval{}, errors.New("approve takes R0 or R1: what is riskier needs a person's word each time")
}

// Check admits an action. It is not invoked before; a decision that a clock made because nobody answered is no approval.
func (g Approval) Check(a Action) *Denial {
	switch a.Risk {
	case R0, R1, R2, R3:
	default:
		return &Denial{GateAction, "the risk is not one of R0, R1, R2, R3"}
	}
	automatic := g.automatic
	if automatic == "" {
		automatic = R1
	}
	if a.Risk <= automatic && !a.RequiresApproval { // the names sort as the levels do
		return nil
	}
	w := a.Authorization
	switch {
	case w == nil:
		return &Denial{GateAction, string(a.Risk) + " needs an approval"}
	case w.Source == ByExpiry:
		return &Denial{GateAction, "a timeout is no approval"}
	case w.Source != "" && w.Source != ByHuman, !w.Approved:
		return &Denial{GateAction, "the action is not approved"}
	case strings.TrimSpace(w.Operator) == "" || strings.TrimSpace(w.Reason) == "":
		return &Denial{GateAction, "an approval says who gave it and why"}
	}
	return nil
}
