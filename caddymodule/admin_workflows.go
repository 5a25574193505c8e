package caddymodule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"unicode/utf8"

	"github.com/fairway-edge/fairway/caddymodule/internal/gateway"
	"github.com/fairway-edge/fairway/internal/edge"
)

// WorkflowView is a call on workflows and what the cloud answered; its JSON names are a
// contract, but for what is in the answer, which is the cloud's.
type WorkflowView struct {
	Call     string          `json:"call"`
	Workflow string          `json:"workflow,omitempty"`
	Profile  string          `json:"profile"`
	Node     string          `json:"node"`
	Run      string          `json:"run_id"`
	Version  string          `json:"schema_version,omitempty"` // of an export
	Answer   json.RawMessage `json:"answer"`
}

// workflowParams are what a call may be asked with; which takes which is edge's to say.
var workflowParams = []string{"visibility", "limit", "cursor", "model_binding", "locale"}

func listWorkflows(_ context.Context, h *sharedHub, r *http.Request) (any, error) {
	return workflows(h, r, edge.ListWorkflows)
}

func oneWorkflow(_ context.Context, h *sharedHub, r *http.Request) (any, error) {
	call := edge.GetWorkflow
	switch c := edge.WorkflowCall(r.PathValue("call")); {
	case r.Method == http.MethodDelete:
		call = edge.DeleteWorkflow
	case c == edge.WorkflowRuns || c == edge.ExportWorkflow || c == edge.WorkflowContract:
		call = c
	case c != "":
		return nil, apiError(http.StatusNotFound, fmt.Errorf("no call %q on a workflow: want runs, export or contract", c))
	}
	return workflows(h, r, call)
}

// workflows makes one call. It goes to a cloud, and so may take longer than the other
// routes: gateway.WorkflowTimeout, which a reload waits for at worst.
func workflows(h *sharedHub, r *http.Request, call edge.WorkflowCall) (any, error) {
	st := h.Current()
	if st == nil {
		return nil, errStopping
	}
	given := r.URL.Query()
	q := gateway.WorkflowQuery{Call: call, Workflow: r.PathValue("id"), Params: map[string]string{}, Profile: given.Get("profile")}
	for _, name := range workflowParams {
		if given.Has(name) {
			q.Params[name] = given.Get(name)
		}
	}
	a, err := h.Workflow(r.Context(), st, q)
	if we := (*gateway.WorkflowError)(nil); errors.As(err, &we) {
		return nil, apiError(we.Status, err)
	} else if err != nil {
		return nil, err
	}
	return []WorkflowView{{
		Call: string(call), Workflow: q.Workflow, Profile: a.Profile, Node: a.Node, Run: a.Run, Version: a.Version, Answer: document(a.Body),
	}}, nil
}

// document is a body as JSON: itself, where it is that, and else a text.
func document(body []byte) json.RawMessage {
	switch {
	case len(body) == 0:
		return json.RawMessage("null")
	case utf8.Valid(body) && json.Valid(body):
		return body
	}
	text, _ := json.Marshal(string(body)) // never fails: what is not UTF-8 is replaced
	return text
}
