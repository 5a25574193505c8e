package edge

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// deny expects a gate's no, and that it makes a result for the wire.
func deny(t *testing.T, d *Denial, gate, says string) {
	t.Helper()
	if d == nil || d.Gate != gate || !strings.Contains(d.Reason, says) {
		t.Fatalf("got %v, want gate %s to say %q", d, gate, says)
	}
	r := Denied(Origin{}, d)
	if r.Status != Unavailable || r.DegradeReason != OtherError || r.DegradeDetail != "gate: "+gate+": "+d.Reason {
		t.Errorf("result %+v", r)
	}
	wire(t, r)
	var err error = d
	if errors.Unwrap(err) != nil || !strings.HasPrefix(err.Error(), "gate "+gate) {
		t.Error(err)
	}
}

func pass(t *testing.T, d *Denial) {
	t.Helper()
	if d != nil {
		t.Fatalf("denied: %v", d)
	}
}

func redaction(t *testing.T, patterns ...string) Redaction {
	t.Helper()
	g, err := NewRedaction(patterns)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestGateRedactionPass(t *testing.T) {
	t.Parallel()
	o := contractOperator(t)
	in := Input{{"a", "é IBAN DE12 3456, call 0170 1234567 by the window"}, {"b", "nothing"}}
	out, d := redaction(t, `DE\d{2} \d{4}`, `\b0\d{3} \d+`).Apply(o, in)
	pass(t, d)
	if want := "é IBAN █████████, call ████████████ by the window"; out[0].Text != want || out[1] != in[1] {
		t.Errorf("got  %q\nwant %q", out[0].Text, want)
	}
	if strings.Contains(in[0].Text, mask) {
		t.Error("the caller's own input was changed")
	}
	// Places in what is left are places in what the caller sent.
	r := o.Judge(Said{Text: `{"evidence_snippet":"by the window"}`}, out, o.Origin())
	if got := string([]rune(in[0].Text)[*r.Evidence[0].Offset:]); got != "by the window" {
		t.Errorf("at the offset: %q", got)
	}
	if same, d := redaction(t).Apply(o, in); d != nil || same[0] != in[0] {
		t.Error("no pattern, and a change")
	}
}

func TestGateRedactionDeny(t *testing.T) {
	t.Parallel()
	o := contractOperator(t)
	_, d := redaction(t, `(?i)the pet`).Apply(o, Input{{"a", "x"}})
	deny(t, d, GateRedaction, "own words")
	_, d = redaction(t, `kitchen`).Apply(o, Input{{"a", "x"}})
	deny(t, d, GateRedaction, "own words")
	_, d = redaction(t, `4711`).Apply(o, Input{{"customer 4711", "x"}})
	deny(t, d, GateRedaction, "the name of a text")
	for _, bad := range []string{"(", "(?=x)y", "x*", "", "(abcdefghij){1000}", strings.Repeat("x", maxPattern+1)} {
		if _, err := NewRedaction([]string{"fine", bad}); err == nil || !strings.HasPrefix(err.Error(), "redact ") {
			t.Errorf("%.40q: got %v", bad, err)
		}
	}
}

func TestGateBudgetPass(t *testing.T) {
	t.Parallel()
	pass(t, Budget{}.Check(DefaultBudget))
	pass(t, Budget{Tokens: 2000}.Check(2000))
	o := contractOperator(t)
	if n := o.Tokens(Input{{"a", strings.Repeat("word ", 600)}}); n < 1000+numPredict || n > 1000+numPredict+400 {
		t.Errorf("3000 bytes are %d tokens", n)
	}
}

// TestLeastBudget: a smaller budget would stop every run, and this one does not.
func TestLeastBudget(t *testing.T) {
	t.Parallel()
	if n := operatorOf(t, `{"kind":"schema","model":"m","prompt":"p","schema":{}}`).Tokens(nil); n != LeastBudget {
		t.Errorf("the least run takes %d tokens, not %d", n, LeastBudget)
	}
}

func TestGateBudgetDeny(t *testing.T) {
	t.Parallel()
	deny(t, Budget{}.Check(DefaultBudget+1), GateBudget, "more tokens")
	deny(t, Budget{Tokens: 2000}.Check(2001), GateBudget, "more tokens")
}

func TestGateRetryPass(t *testing.T) {
	t.Parallel()
	delays := []time.Duration{50 * time.Millisecond, 100 * time.Millisecond}
	for i, want := range delays {
		got, d := Retry{}.Next(i+1, "provider_unreachable", true)
		pass(t, d)
		if got != want {
			t.Errorf("after attempt %d: %v, want %v", i+1, got, want)
		}
	}
	long := Retry{MaxAttempts: 100, BaseDelay: time.Second, Factor: 10, MaxDelay: 7 * time.Second}
	for _, attempts := range []int{2, 50, 99} {
		got, d := long.Next(attempts, "no_node", true)
		pass(t, d)
		if got != 7*time.Second {
			t.Errorf("attempt %d: %v", attempts, got)
		}
	}
}

func TestGateRetryDeny(t *testing.T) {
	t.Parallel()
	_, d := Retry{}.Next(3, "provider_unreachable", true)
	deny(t, d, GateRetry, "used up")
	_, d = Retry{}.Next(1, "node_lost", false)
	deny(t, d, GateRetry, "nobody knows")
	for _, code := range []string{"lease_revoked", "credential_denied", "no_such_model", "deadline_exceeded", "canceled", "bad_provider_response", "provider_busy", "?"} {
		_, d = Retry{}.Next(1, code, true)
		deny(t, d, GateRetry, "the same again")
	}
}

func TestGateCyclePass(t *testing.T) {
	t.Parallel()
	var g Cycle
	for range 5 {
		pass(t, g.Failed("a"))
		pass(t, g.Failed("a"))
		pass(t, g.Failed("b"))
	}
	pass(t, g.Failed("b"))
	g.Succeeded()
	pass(t, g.Failed("b"))
	pass(t, g.Failed("b"))
}

func TestGateCycleDeny(t *testing.T) {
	t.Parallel()
	var g Cycle
	pass(t, g.Failed("a"))
	pass(t, g.Failed("a"))
	deny(t, g.Failed("a"), GateCycle, "too often")
	deny(t, g.Failed("a"), GateCycle, "too often")
	deny(t, (&Cycle{MaxConsecutive: 1}).Failed("a"), GateCycle, "too often")
}

func TestGateToolPass(t *testing.T) {
	t.Parallel()
	pass(t, Tools{"mail", "lamp"}.Check("lamp"))
}

func TestGateToolDeny(t *testing.T) {
	t.Parallel()
	deny(t, Tools(nil).Check("lamp"), GateTool, "permitted")
	deny(t, Tools{"lamp"}.Check("Lamp"), GateTool, "permitted")
	deny(t, Tools{"lamp"}.Check(""), GateTool, "permitted")
}

func TestGateGroundingPass(t *testing.T) {
	t.Parallel()
	in := Input{{"a", "by the window"}}
	if r := contractOperator(t).Judge(Said{Text: `{"evidence_snippet":"the window"}`}, in, Origin{}); r.Status != Success {
		t.Errorf("got %+v", r)
	}
	if r := schemaOperator(t, `{"type":"array"}`).Judge(Said{Text: `[]`}, in, Origin{}); r.Status != Success {
		t.Errorf("got %+v", r)
	}
}

func TestGateGroundingDeny(t *testing.T) {
	t.Parallel()
	in := Input{{"a", "by the window"}}
	r := contractOperator(t).Judge(Said{Text: `{"evidence_snippet":"on the roof","zone":"roof"}`}, in, Origin{})
	if r.Status != Uncertain || strings.Contains(string(r.Output), "roof") || r.Disposition(false) != Fallback {
		t.Errorf("got %+v %s", r, r.Output)
	}
	r = schemaOperator(t, `{"type":"array"}`).Judge(Said{Text: `{}`}, in, Origin{})
	if r.Status != Invalid || r.Output != nil || r.Disposition(true) != Fallback {
		t.Errorf("got %+v", r)
	}
}

func approval(t *testing.T, automatic Risk) Approval {
	t.Helper()
	g, err := NewApproval(automatic)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func given(source DecisionSource) *Authorization {
	return &Authorization{Operator: "mia", Reason: "the valve leaks", Approved: true, Source: source}
}

func TestGateActionPass(t *testing.T) {
	t.Parallel()
	g := approval(t, "")
	pass(t, g.Check(Action{Tool: "lamp", Risk: R0}))
	pass(t, g.Check(Action{Tool: "lamp", Risk: R1}))
	pass(t, Approval{}.Check(Action{Tool: "lamp", Risk: R1}))
	pass(t, g.Check(Action{Tool: "pump", Risk: R2, Authorization: given(ByHuman)}))
	pass(t, g.Check(Action{Tool: "pump", Risk: R3, Authorization: given("")}))
	pass(t, approval(t, R0).Check(Action{Tool: "lamp", Risk: R1, Authorization: given(ByHuman)}))
	pass(t, g.Check(Action{Tool: "lamp", Risk: R0, RequiresApproval: true, Authorization: given(ByHuman)}))
}

func TestGateActionDeny(t *testing.T) {
	t.Parallel()
	g := approval(t, R1)
	for _, risk := range []Risk{R2, R3} {
		deny(t, g.Check(Action{Risk: risk}), GateAction, string(risk)+" needs an approval")
	}
	deny(t, approval(t, R0).Check(Action{Risk: R1}), GateAction, "needs an approval")
	deny(t, g.Check(Action{Risk: R0, RequiresApproval: true}), GateAction, "needs an approval")
	for _, risk := range []Risk{"", "R4", "r0", "R"} {
		deny(t, g.Check(Action{Risk: risk, Authorization: given(ByHuman)}), GateAction, "not one of")
	}
	for _, automatic := range []Risk{R2, R3, "R9", "all"} {
		if _, err := NewApproval(automatic); err == nil {
			t.Errorf("%s can be made automatic", automatic)
		}
	}
}

// TestGateApproval: only a person's word lets a risky action through, and silence is none.
func TestGateApproval(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(w *Authorization)
		says   string
	}{
		"a timeout":        {func(w *Authorization) { w.Source = ByExpiry }, "a timeout is no approval"},
		"refused":          {func(w *Authorization) { w.Approved = false }, "not approved"},
		"someone unknown":  {func(w *Authorization) { w.Source = "policy" }, "not approved"},
		"nobody":           {func(w *Authorization) { w.Operator = " " }, "who gave it and why"},
		"without a reason": {func(w *Authorization) { w.Reason = "" }, "who gave it and why"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, risk := range []Risk{R2, R3} {
				w := given(ByHuman)
				tt.change(w)
				deny(t, approval(t, R1).Check(Action{Risk: risk, Authorization: w}), GateAction, tt.says)
			}
		})
	}
}
