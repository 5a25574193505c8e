package edge

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// WorkflowsPath is where the cloud keeps the workflows of a key's owner.
const WorkflowsPath = "/api/v1/user_workflows"

// WorkflowCall is one of the calls on workflows of one's own. The set is closed: what is no call is not sent.
type WorkflowCall string

// The calls.
const (
	ListWorkflows    WorkflowCall = "list"     // parameters visibility, limit (at most 100), cursor
	GetWorkflow      WorkflowCall = "get"      //
	WorkflowRuns     WorkflowCall = "runs"     // limit (at most 50)
	ExportWorkflow   WorkflowCall = "export"   // the answer's header X-Export-Schema-Version is the document's version
	WorkflowContract WorkflowCall = "contract" // model_binding, locale; the answer is a contract as [ParseContract] reads it
	DeleteWorkflow   WorkflowCall = "delete"   //
)

// workflowCalls is the table of what may be asked, and with what.
var workflowCalls = []struct {
	call   WorkflowCall
	method string
	id     bool // the path goes on with a workflow's id
	rest   string
	params []workflowParam
}{
	{ListWorkflows, "GET", false, "", []workflowParam{{"visibility", isVisibility}, {"limit", upTo(100)}, {"cursor", opaque(2048)}}},
	{GetWorkflow, "GET", true, "", nil},
	{WorkflowRuns, "GET", true, "/runs", []workflowParam{{"limit", upTo(50)}}},
	{ExportWorkflow, "GET", true, "/export", nil},
	{WorkflowContract, "GET", true, "/grounded-contract", []workflowParam{{"model_binding", opaque(maxModel)}, {"locale", isLocale}}},
	{DeleteWorkflow, "DELETE", true, "", nil},
}

type workflowParam struct {
	name string
	ok   func(value string) bool
}

func isVisibility(v string) bool { return v == "private" || v == "public" || v == "archived" }

func isLocale(v string) bool { return v != "" && len(v) <= 35 && onlyOf(v, idLetters) }

func upTo(most int) func(string) bool {
	return func(v string) bool {
		n, err := strconv.Atoi(v)
		return err == nil && 1 <= n && n <= most && strconv.Itoa(n) == v
	}
}

// opaque admits what only the cloud understands, as long as every server reads it in one way.
func opaque(most int) func(string) bool {
	return func(v string) bool {
		return v != "" && len(v) <= most && !strings.ContainsFunc(v, func(r rune) bool { return r <= ' ' || r >= 0x7f })
	}
}

var errNoCall = errors.New("no such call; want list, get, runs, export, contract or delete")

// WorkflowRequest gives the method and the target, path?query, of a call. Id is the workflow's, and "" with [ListWorkflows]. An error names the
// argument and is the caller's fault.
func WorkflowRequest(call WorkflowCall, id string, params map[string]string) (method, target string, err error) {
	for _, c := range workflowCalls {
		if c.call != call {
			continue
		}
		target = WorkflowsPath
		switch {
		case c.id && !workflowID(id):
			return "", "", errNoWorkflow
		case c.id:
			target += "/" + id + c.rest
		case id != "":
			return "", "", fmt.Errorf("%s takes no workflow", call)
		}
		for name := range params {
			if !slices.ContainsFunc(c.params, func(p workflowParam) bool { return p.name == name }) {
				return "", "", fmt.Errorf("%s takes no parameter %q", call, segment(name))
			}
		}
		mark := "?"
		for _, p := range c.params {
			v, given := params[p.name]
			if !given {
				continue
			}
			if !p.ok(v) {
				return "", "", fmt.Errorf("parameter %s of %s is out of range", p.name, call)
			}
			target += mark + p.name + "=" + url.QueryEscape(v)
			mark = "&"
		}
		return c.method, target, nil
	}
	return "", "", errNoCall
}

// PermitWorkflow says which call a method and a target, path?query, are, and whether they are one at all. Paths are matched byte for byte, so that
// nothing is permitted that a server could read as another path: no encoding, no dot segment, no doubled or trailing slash. A query holds known
// parameters, each once, encoded as [WorkflowRequest] does it.
func PermitWorkflow(method, target string) (WorkflowCall, bool) {
	path, query, queried := strings.Cut(target, "?")
	rest, ok := strings.CutPrefix(path, WorkflowsPath)
	if !ok || queried && query == "" {
		return "", false
	}
	below := ""
	if rest != "" {
		id, verb, deeper := strings.Cut(rest[1:], "/")
		if rest[0] != '/' || !workflowID(id) {
			return "", false
		}
		if deeper {
			below = "/" + verb
		}
	}
	for _, c := range workflowCalls {
		if c.method == method && c.id == (rest != "") && c.rest == below && permitQuery(query, c.params) {
			return c.call, true
		}
	}
	return "", false
}

func permitQuery(query string, params []workflowParam) bool {
	if query == "" {
		return true
	}
	seen := make(map[string]bool)
	for pair := range strings.SplitSeq(query, "&") {
		name, encoded, _ := strings.Cut(pair, "=")
		v, err := url.QueryUnescape(encoded)
		i := slices.IndexFunc(params, func(p workflowParam) bool { return p.name == name })
		if err != nil || i < 0 || seen[name] || url.QueryEscape(v) != encoded || !params[i].ok(v) {
			return false
		}
		seen[name] = true
	}
	return true
}
