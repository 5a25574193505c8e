package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/caddymodule/internal/fleet"
	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/tunnel"
)

// Who operates the gateway may look at the workflows that a goal-job API keeps for the owner of its key. Each call is a run of the gateway's own through a node,
// with a lease, like the listings of package models; which calls there are is a closed list, held here, by a gateway that forwards, and by the node.
const (
	// WorkflowsPrincipal is the principal of these runs; no key can name it.
	WorkflowsPrincipal = "fairway:workflows"
	// WorkflowTimeout bounds one call.
	WorkflowTimeout = 8 * time.Second

	adapterGoals = "goals"
)

// workflowsEndpoint stands for the calls where a run has an endpoint: in accounts and errors. It is not in the catalogue, so that no caller can ask for it.
var workflowsEndpoint = &ollama.Endpoint{Name: "workflows", Family: ollama.Edge, Class: ollama.Management, Action: ollama.Pin}

// workflowMatch is to these calls what ollama.Lookup is to the catalogue's. Target is path?query.
func workflowMatch(method, target string) ollama.Match {
	if _, ok := edge.PermitWorkflow(method, target); !ok {
		return ollama.Match{Family: ollama.Edge, Status: http.StatusNotFound}
	}
	path, _, _ := strings.Cut(target, "?")
	return ollama.Match{Endpoint: workflowsEndpoint, Family: ollama.Edge, Path: path, Status: http.StatusOK}
}

// WorkflowQuery is one call on own workflows.
type WorkflowQuery struct {
	Call     edge.WorkflowCall
	Workflow string            // its id; "" with list
	Params   map[string]string // as the call takes them
	Profile  string            // "" where the configuration has one profile of adapter goals
}

// WorkflowAnswer is what the cloud answered, with a status of success.
type WorkflowAnswer struct {
	Run     string
	Profile string
	Node    string
	Version string // X-Export-Schema-Version, of an export
	Body    []byte
}

// WorkflowError is a call without an answer. Its text is for whoever operates the gateway, and repeats nothing of what the cloud said.
type WorkflowError struct {
	Status int // as HTTP has it
	Text   string
}

func (e *WorkflowError) Error() string { return e.Text }

func workflowError(status int, format string, args ...any) error {
	return &WorkflowError{status, fmt.Sprintf(format, args...)}
}

// Workflow makes a call. Its errors are *WorkflowError.
func (h *Hub) Workflow(ctx context.Context, st *Settings, q WorkflowQuery) (*WorkflowAnswer, error) {
	method, target, err := edge.WorkflowRequest(q.Call, q.Workflow, q.Params)
	if err != nil {
		return nil, workflowError(http.StatusBadRequest, "%v", err)
	}
	p, err := st.goalsProfile(q.Profile)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, WorkflowTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, target, nil)
	if err != nil {
		return nil, workflowError(http.StatusBadRequest, "the request cannot be spelled")
	}
	w := &answerBuffer{header: http.Header{}}
	x := &exchange{
		h: NewHandler(h, st, Options{QueueWait: WorkflowTimeout}), w: w, r: r, rc: http.NewResponseController(w), acc: NewAccount(), principal: WorkflowsPrincipal,
		match: workflowMatch(method, target),
	}
	x.acc.Principal, x.acc.Route, x.acc.Endpoint = WorkflowsPrincipal, DefaultRoute, workflowsEndpoint.Name
	u := x.newRun(nil)
	u.given = &tunnel.RunOpen{Run: x.acc.Run, Kind: tunnel.KindTunnel, Method: method, Path: []byte(target), Headers: workflowHeaders(method), Body: tunnel.BodyNone}
	u.want = fleet.Want{Filter: st.cloud(p.Name)}
	err = u.serve()
	if err == nil && w.over {
		err = fail(tunnel.CodeBadProvider, "the cloud's answer is over %d bytes", maxListing)
	}
	if err != nil {
		f := asFailure(err, workflowsEndpoint, "")
		x.acc.end(tunnel.Failed, f.code, codes[f.code].status) // of no effect where it has ended
		err = unasked(ctx, f, p)
	} else if w.status/100 != 2 {
		err = refusedCall(w.status, w.body.Bytes(), q, p)
	}
	h.account(x.acc)
	st.Log.Info("a call on workflows", zap.String("call", string(q.Call)), zap.String("workflow", q.Workflow), zap.String("profile", p.Name),
		zap.String("run", x.acc.Run), zap.String("node", x.acc.Node), zap.Int("status", w.status), zap.NamedError("failed", err))
	if err != nil {
		return nil, err
	}
	return &WorkflowAnswer{Run: x.acc.Run, Profile: p.Name, Node: x.acc.Node, Version: w.header.Get("X-Export-Schema-Version"), Body: w.body.Bytes()}, nil
}

// workflowHeaders are the request's. A call that changes something has a key of its own, as the API wants it.
func workflowHeaders(method string) []*tunnel.Header {
	hs := []*tunnel.Header{{Name: "Accept", Value: []byte("application/json")}, {Name: "User-Agent", Value: []byte("fairway")}}
	if method != http.MethodGet {
		hs = append(hs, &tunnel.Header{Name: "Idempotency-Key", Value: []byte(newUUID())})
	}
	return hs
}

// newUUID is a random UUID, version 4.
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// goalsProfile picks the profile whose workflows are meant.
func (st *Settings) goalsProfile(name string) (*Profile, error) {
	var found []string
	var one *Profile
	for i := range st.Profiles {
		p := &st.Profiles[i]
		if p.Adapter != adapterGoals {
			continue
		}
		found = append(found, p.Name)
		if name == "" || p.Name == name {
			one = p
		}
	}
	switch {
	case len(found) == 0:
		return nil, workflowError(http.StatusNotFound, "no profile has the adapter goals: workflows are in a cloud that such a profile is for")
	case one == nil:
		return nil, workflowError(http.StatusNotFound, "there is no profile %q with the adapter goals: want one of %s", name, strings.Join(found, ", "))
	case name == "" && len(found) > 1:
		return nil, workflowError(http.StatusBadRequest, "there are several profiles with the adapter goals: say which, %s", strings.Join(found, " or "))
	}
	return one, nil
}

// unasked says why the cloud gave no answer.
func unasked(ctx context.Context, f *failure, p *Profile) error {
	status := f.status
	if status == 0 {
		status = codes[f.code].status
	}
	switch {
	case ctx.Err() != nil:
		return workflowError(http.StatusGatewayTimeout, "the cloud did not answer within %s", WorkflowTimeout)
	case f.code == codeNoNode, f.code == codeNoSuchModel:
		return workflowError(http.StatusServiceUnavailable, "no node is connected with the target %s of adapter goals, or it cannot reach the cloud", p.Target)
	case f.inner != "":
		return workflowError(status, "%s (%s)", f.message, f.inner)
	}
	return workflowError(max(status, http.StatusBadRequest), "%s (%s)", f.message, f.code)
}

// refusedCall says in plain words what the cloud's no means. Of its body only words that are known are looked for: how it spells errors is not.
func refusedCall(status int, body []byte, q WorkflowQuery, p *Profile) error {
	says := func(word string) bool { return bytes.Contains(body, []byte(word)) }
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		if p.Slot == "" {
			return workflowError(http.StatusBadGateway, "the cloud asks for a key, and profile %s has no slot", p.Name)
		}
		return workflowError(http.StatusBadGateway, "the cloud does not take the credential in slot %s (%d)", p.Slot, status)
	case status == http.StatusNotFound && q.Call == edge.WorkflowContract && !says("WORKFLOW_NOT_FOUND"):
		return workflowError(status, "there is no workflow %s of this key's owner, or the cloud gives no contracts", q.Workflow)
	case status == http.StatusNotFound && q.Workflow != "":
		return workflowError(status, "there is no workflow %s of this key's owner", q.Workflow)
	case status == http.StatusConflict && says("WORKFLOW_IS_PUBLIC_USE_ARCHIVE"):
		return workflowError(status, "workflow %s is public: it can be archived, not deleted", q.Workflow)
	case status == http.StatusConflict && q.Call == edge.WorkflowContract:
		return workflowError(status, "no contract can be derived from workflow %s", q.Workflow)
	case status == http.StatusUnprocessableEntity && q.Call == edge.WorkflowContract:
		return workflowError(status, "workflow %s is authored in a way that gives no contract", q.Workflow)
	case status == http.StatusConflict, status == http.StatusUnprocessableEntity:
		return workflowError(status, "the cloud does not take the call as it stands (%d)", status)
	case status == http.StatusTooManyRequests:
		return workflowError(http.StatusServiceUnavailable, "the cloud has had too many calls: try again later")
	}
	return workflowError(http.StatusBadGateway, "the cloud answered %d", status)
}
