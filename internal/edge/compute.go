package edge

import (
	"encoding/json"
	"slices"
	"time"
)

// Bounds of a step that the cloud delegates.
const (
	maxCompute = 512 << 10 // bytes of a payload
	maxNonce   = 512       // bytes
	maxFiles   = 256
)

var computeLimits = limits{bytes: maxCompute, depth: 16, values: 4096}

// Words of the interrupt.
const (
	clientCompute   = "client_compute"
	clientDelegated = "client_delegated"
)

// Compute is one step of a job that the cloud leaves to a machine that has the files: the interrupt client_compute. What is asked for are anchors,
// each of them words of a file, so that it is run as a contract whose fields are verbatim. It is immutable.
type Compute struct {
	Nonce string   // echoed in the answer
	Files []string // ids of the files that it is about: references, which say nothing of where they are

	contract *Contract
}

// ParseCompute reads the payload of the interrupt, bare or in its entry. Members that it does not know are the cloud's business; of those that decide over
// values it is as strict as [ParseContract]. Errors are [*FieldError]s.
func ParseCompute(data []byte) (*Compute, error) {
	n, refused := readJSON(data, computeLimits)
	if refused != nil {
		return nil, refused
	}
	payload, refused := computePayload(n)
	if refused != nil {
		return nil, refused
	}
	c, refused := readCompute(payload)
	switch {
	case refused != nil && payload != n:
		return nil, under("payload", refused)
	case refused != nil:
		return nil, refused
	}
	return c, nil
}

// computePayload finds the payload in an entry of pendingInterrupts.
func computePayload(n *node) (*node, *FieldError) {
	if n.members["interruptType"] == nil {
		return n, nil
	}
	f := read(n)
	if f.needText("interruptType", maxName) != clientCompute {
		f.fail("interruptType", "is not %s", clientCompute)
	}
	if s := f.text("status", maxName); s != "" && s != "pending" {
		f.fail("status", "is not pending: nobody waits for an answer")
	}
	payload := f.need("payload", jsonObject)
	if f.err != nil {
		return nil, f.err
	}
	return payload, nil
}

func readCompute(n *node) (*Compute, *FieldError) {
	f := read(n)
	k := &Contract{ID: clientCompute, Version: "1", Prompt: f.needText("extractor_prompt", maxPrompt)}
	if id := f.text("extractor_prompt_id", maxModel); id != "" {
		k.ID = id
	}
	k.caps(f)
	c := &Compute{Nonce: f.needText("nonce", maxNonce), Files: f.names("file_ids", 0, maxFiles), contract: k}
	if s := f.text("strategy", maxName); s != "" && s != clientDelegated {
		f.fail("strategy", "is not %s", clientDelegated)
	}
	for _, name := range f.names("required_anchors", 1, maxFields) {
		k.fields = append(k.fields, field{name: name, mode: verbatim})
	}
	if f.err != nil {
		return nil, f.err
	}
	return c, nil
}

// names reads a list of names, each given once.
func (f *fields) names(name string, least, most int) (out []string) {
	v := f.typed(name, jsonList)
	switch {
	case v == nil && least > 0:
		f.fail(name, "is required")
		return nil
	case v == nil:
		return nil
	case len(v.items) < least || len(v.items) > most:
		f.fail(name, "has %d entries, not %d to %d", len(v.items), least, most)
		return nil
	}
	for i, item := range v.items {
		switch {
		case item.kind != jsonText:
			f.keep(under(name, within(i, problem("is %s, not a string", item.kind))))
		case !named(item.text):
			f.keep(under(name, within(i, problem("is no name: blank, with control characters, or longer than %d", maxName))))
		case slices.Contains(out, item.text):
			f.keep(under(name, within(i, problem("is given twice"))))
		}
		out = append(out, item.text)
	}
	return out
}

// Request is the run that answers the step with a model, from the files that are here: texts by the ids of files, or by any name where the step names
// none. Some of the files are enough; none is an error, for an answer that nothing was looked up for would pass for one that found nothing.
func (c *Compute) Request(model string, in Input, deadline time.Duration) (*Request, error) {
	o, err := ContractOperator(c.contract, model)
	if err != nil {
		return nil, err
	}
	o.Workflow = "" // whatever the prompt is called
	total := 0
	for _, src := range in {
		if total += len(src.Text); total > maxInput {
			return nil, under("input", problem("is longer than %d bytes, all texts together", maxInput))
		}
		if !named(src.Name) || len(c.Files) > 0 && !slices.Contains(c.Files, src.Name) {
			return nil, under("input", under(src.Name, problem("is not among file_ids")))
		}
	}
	ms := int(deadline.Milliseconds())
	switch {
	case len(in) > maxSources:
		return nil, under("input", problem("has more than %d texts", maxSources))
	case len(in) == 0 && len(c.Files) > 0:
		return nil, under("file_ids", problem("names %d files, and none of them is here", len(c.Files)))
	case len(in) == 0:
		return nil, under("input", problem("is empty: there is nothing to look in"))
	case ms < 1 || ms > maxDeadlineMS:
		return nil, under("deadline_ms", problem("is not a whole number from 1 to %d", maxDeadlineMS))
	}
	return &Request{Operator: o, Input: in, Placement: Edge, DeadlineMS: ms, OnDisconnect: Cancel}, nil
}

// Answer is what the cloud is owed for the step, whatever became of the run: every anchor, with the sentinel for what is not grounded, and with nothing else
// where there was no model to ask, so that the job can go on.
func (c *Compute) Answer(r ModelResult) ([]byte, error) {
	anchors := json.RawMessage(c.contract.Missing())
	if r.Output != nil && (r.Status == Success || r.Status == Uncertain) {
		anchors = r.Output
	}
	return plainJSON(struct {
		Anchors json.RawMessage `json:"anchors"`
		Nonce   string          `json:"nonce"`
	}{anchors, c.Nonce})
}
