package edge

import (
	"regexp"
	"strings"
	"time"
)

// Bounds of a request.
const (
	MaxRequest        = 8 << 20 // bytes of a body: the texts may be escaped to six times their length
	maxInput          = 1 << 20 // bytes of all texts together
	maxSources        = 64
	maxSession        = 256 // bytes
	maxDeadlineMS     = 600_000
	defaultDeadlineMS = 120_000
)

var requestLimits = limits{bytes: MaxRequest, depth: 66, values: 60_000}

// OnDisconnect is what becomes of a run whose caller goes away.
type OnDisconnect string

// The three policies.
const (
	Cancel OnDisconnect = "cancel" // it is canceled at the provider
	Drain  OnDisconnect = "drain"  // it runs to its end, and nobody gets the result
	Detach OnDisconnect = "detach" // it runs to its end, and the result can be fetched
)

// Request is the body of POST /api/v1/edge/runs, read and found right.
type Request struct {
	Operator        *Operator
	Input           Input
	Placement       Placement
	DeadlineMS      int
	Session         string // the caller's correlation: opaque, and echoed
	Stream          bool
	OnDisconnect    OnDisconnect
	AcceptUncertain bool
	Action          *Action // nil for none
}

// Deadline is the time that the run may take.
func (r *Request) Deadline() time.Duration { return time.Duration(r.DeadlineMS) * time.Millisecond }

// ParseRequest reads a request strictly. Errors are [*FieldError]s, and name the field.
func ParseRequest(body []byte) (*Request, error) {
	n, refused := readJSON(body, requestLimits)
	if refused != nil {
		return nil, refused
	}
	f := read(n)
	r := &Request{
		Placement:       choice(f, "placement", Auto, Edge, Cloud, Auto),
		DeadlineMS:      f.integer("deadline_ms", 1, maxDeadlineMS, defaultDeadlineMS),
		Session:         f.text("session_id", maxSession),
		Stream:          f.flag("stream"),
		OnDisconnect:    choice(f, "on_disconnect", Cancel, Cancel, Drain, Detach),
		AcceptUncertain: f.flag("accept_uncertain"),
	}
	op := f.need("operator", jsonObject)
	if f.err == nil {
		r.Operator, refused = readOperator(op)
		f.nest("operator", refused)
	}
	if v := f.typed("input", jsonObject); v != nil && f.err == nil {
		r.Input, refused = readInput(v)
		f.nest("input", refused)
	}
	if v := f.typed("action", jsonObject); v != nil {
		r.Action, refused = readAction(v)
		f.nest("action", refused)
	}
	if refused := f.done(); refused != nil {
		return nil, refused
	}
	if refused := r.fits(); refused != nil {
		return nil, refused
	}
	return r, nil
}

func (f *fields) nest(name string, refused *FieldError) {
	if refused != nil {
		f.keep(under(name, refused))
	}
}

// fits holds the parts of a request to one another.
func (r *Request) fits() *FieldError {
	o := r.Operator
	switch {
	case o.Kind == KindGoal && r.Placement == Edge:
		return &FieldError{"placement", "is edge, where a goal cannot run"}
	case o.Workflow == "" && r.Placement == Cloud:
		return &FieldError{"placement", "is cloud, which runs workflows: a goal, or a contract whose id begins with uw_"}
	case o.Kind == KindContract && len(r.Input) == 0:
		return &FieldError{"input", "is required with a contract"}
	}
	return nil
}

func readOperator(n *node) (*Operator, *FieldError) {
	f := read(n)
	kind := choice(f, "kind", "", KindSchema, KindContract, KindGoal)
	if kind == "" {
		f.fail("kind", "is required")
	}
	var o *Operator
	switch kind {
	case KindSchema:
		o = readSchemaOperator(f)
	case KindContract:
		o = readContractOperator(f)
	default:
		o = &Operator{Kind: KindGoal, Workflow: f.needText("workflow_id", maxName), Profile: f.text("profile", maxName)}
		if !workflowID(o.Workflow) {
			f.fail("workflow_id", "is not the id of a workflow, uw_…")
		}
	}
	capability := choice(f, "capability", LLM, LLM, OCR, ObjectDetection, TTS, STT, Embeddings)
	tier := choice(f, "tier", Standard, Basic, Standard, Premium)
	if refused := f.done(); refused != nil {
		return nil, refused
	}
	o.Capability, o.Tier = capability, tier
	return o, nil
}

func readSchemaOperator(f *fields) *Operator {
	o := &Operator{Kind: KindSchema, Model: f.needText("model", maxModel), prompt: f.needText("prompt", maxPrompt)}
	v := f.get("schema")
	switch {
	case v == nil:
		f.fail("schema", "is required")
	case len(v.raw) > maxSchema:
		f.fail("schema", "is longer than %d bytes", maxSchema)
	case f.err == nil:
		s, refused := newSchema(v)
		f.nest("schema", refused)
		o.schema = s
	}
	return o
}

func readContractOperator(f *fields) *Operator {
	model := f.text("model", maxModel)
	v := f.need("contract", jsonObject)
	if f.err != nil {
		return nil
	}
	if len(v.raw) > maxContract {
		f.fail("contract", "is longer than %d bytes", maxContract)
		return nil
	}
	c, refused := contractOf(v)
	if refused != nil {
		f.nest("contract", refused)
		return nil
	}
	o, err := ContractOperator(c, model)
	if err != nil {
		f.fail("model", "is required: the contract is bound to none")
	}
	return o
}

// readInput takes the texts in the order in which they stand. A null is a slot that was left out.
func readInput(n *node) (Input, *FieldError) {
	if len(n.keys) > maxSources {
		return nil, problem("has more than %d texts", maxSources)
	}
	var in Input
	total := 0
	for _, name := range n.keys {
		v := n.members[name]
		switch {
		case !named(name):
			return nil, under(name, problem("is no name: blank, with control characters, or longer than %d", maxName))
		case v.kind == jsonNull:
			continue
		case v.kind != jsonText:
			return nil, under(name, problem("is %s, not a string", v.kind))
		}
		if total += len(v.text); total > maxInput {
			return nil, problem("is longer than %d bytes, all texts together", maxInput)
		}
		in = append(in, Source{name, v.text})
	}
	return in, nil
}

func readAction(n *node) (*Action, *FieldError) {
	f := read(n)
	a := &Action{
		Tool:             f.needText("tool", maxName),
		Risk:             choice(f, "risk", "", R0, R1, R2, R3),
		RequiresApproval: f.flag("requires_approval"),
	}
	if a.Risk == "" {
		f.fail("risk", "is required")
	}
	if v := f.typed("authorization", jsonObject); v != nil {
		g := read(v)
		a.Authorization = &Authorization{
			Operator: g.needText("operator", maxModel),
			Reason:   g.needText("reason", maxPrompt),
			Approved: g.flag("approved"),
			Source:   choice(g, "decision_source", ByHuman, ByHuman, ByExpiry),
		}
		if s := g.text("granted_at", maxName); s != "" {
			at, ok := parseTime(s)
			if !ok {
				g.fail("granted_at", "is not a time of RFC 3339")
			}
			a.Authorization.GrantedAt = at
		}
		f.nest("authorization", g.done())
	}
	return a, f.done()
}

// rfc3339 is the grammar of RFC 3339, section 5.6. time.Parse also takes a comma, and an hour of one digit.
var rfc3339 = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})$`)

// parseTime reads a time as RFC 3339 writes it, its letters in either case.
func parseTime(s string) (time.Time, bool) {
	s = strings.ToUpper(s)
	if !rfc3339.MatchString(s) {
		return time.Time{}, false
	}
	at, err := time.Parse(time.RFC3339, s)
	return at, err == nil
}
