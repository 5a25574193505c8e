package edge

import (
	"encoding/json"
	"strings"
)

// Kind is the form of an operator.
type Kind string

// The kinds of operators.
const (
	KindSchema   Kind = "schema"   // a prompt and a JSON Schema
	KindContract Kind = "contract" // a contract: grounded fields
	KindGoal     Kind = "goal"     // a workflow in the cloud
)

// Capability is what a machine can do with a model.
type Capability string

// The capabilities of a device's manifest.
const (
	LLM             Capability = "llm"
	OCR             Capability = "ocr"
	ObjectDetection Capability = "object_detection"
	TTS             Capability = "tts"
	STT             Capability = "stt"
	Embeddings      Capability = "embeddings"
)

// Tier is how good a model is, in three steps.
type Tier string

// The quality tiers, each good for what asks for one before it.
const (
	Basic    Tier = "basic"
	Standard Tier = "standard"
	Premium  Tier = "premium"
)

// meets reports whether a model of tier t is good enough for an operator that asks for want.
func (t Tier) meets(want Tier) bool {
	rank := map[Tier]int{Basic: 1, Standard: 2, Premium: 3}
	return rank[t] > 0 && rank[t] >= rank[want]
}

// Operator is what a typed run executes: a question whose answer has a type. It is immutable and may be used by many runs at once.
type Operator struct {
	Kind       Kind
	Model      string // the provider's name for the model; "" with a goal
	Workflow   string // the id under which the cloud has it, uw_…; "" for none
	Profile    string // of a goal, where a route has several; "" for the only one
	Capability Capability
	Tier       Tier

	prompt   string
	contract *Contract
	schema   *schema
}

// ContractOperator runs a contract with a model, by default the one that the contract is bound to.
func ContractOperator(c *Contract, model string) (*Operator, error) {
	if model == "" {
		model = c.ModelBinding
	}
	if model == "" {
		return nil, &FieldError{"model", "is required: the contract is bound to none"}
	}
	o := &Operator{Kind: KindContract, Model: model, Capability: LLM, Tier: Standard, prompt: c.Prompt, contract: c}
	if workflowID(c.ID) {
		o.Workflow = c.ID
	}
	return o, nil
}

// workflowID reports whether s is the id of a workflow in the cloud.
func workflowID(s string) bool {
	rest, ok := strings.CutPrefix(s, "uw_")
	return ok && rest != "" && len(s) <= maxName && !strings.ContainsFunc(rest, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
	})
}

// Origin names what answers for the operator, where the provider said nothing better.
func (o *Operator) Origin() Origin {
	switch {
	case o.contract != nil:
		return Origin{ModelID: o.Model, ModelVersion: o.contract.Version}
	case o.Kind == KindGoal:
		return Origin{ModelID: o.Workflow, ModelVersion: "cloud"}
	}
	return Origin{ModelID: o.Model, ModelVersion: noVersion}
}

// Format is the JSON Schema that the provider is held to while it generates: Ollama's "format". It is nil for a goal.
func (o *Operator) Format() json.RawMessage {
	switch {
	case o.contract != nil:
		return o.contract.schema()
	case o.schema != nil:
		return o.schema.asked
	}
	return nil
}

// words are everything of its author's and its caller's that the operator sends: to a provider in a body, or to the cloud. Texts are as they are meant,
// without the escapes that JSON gives them; a schema is there as it is written besides, for its numbers and for what stands side by side.
func (o *Operator) words() []string {
	own := []string{o.prompt, o.Model, o.Workflow}
	switch {
	case o.contract != nil:
		var r script
		o.contract.say(&r)
		own = append(own, r.own...)
	case o.schema != nil:
		own = append(own, string(o.schema.text))
		if n, refused := readJSON(o.schema.text, requestLimits); refused == nil {
			own = n.appendTexts(own)
		}
	}
	return own
}
