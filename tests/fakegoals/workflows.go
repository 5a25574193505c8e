package fakegoals

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
)

const workflowsPath = "/api/v1/user_workflows"

// The calls on workflows of one's own.
const (
	List     = "list"
	Get      = "get"
	Runs     = "runs"
	Export   = "export"
	Contract = "contract"
	Delete   = "delete"
)

// Workflow is a workflow of the key's owner.
type Workflow struct {
	ID         string
	Name       string
	Visibility string         // private, public or archived
	Contract   map[string]any // what grounded-contract answers; nil: it cannot be derived
}

// workflowStep names the call on workflows that a request is.
func workflowStep(r *http.Request) string {
	rest, ok := strings.CutPrefix(r.URL.Path, workflowsPath)
	if !ok {
		return ""
	}
	if rest == "" && r.Method == http.MethodGet {
		return List
	}
	_, below, _ := strings.Cut(strings.TrimPrefix(rest, "/"), "/")
	return map[string]string{
		"GET ": Get, "GET runs": Runs, "GET export": Export, "GET grounded-contract": Contract, "DELETE ": Delete,
	}[r.Method+" "+below]
}

// onWorkflows carries a call out. The caller holds mu.
func (s *Server) onWorkflows(step string, r *http.Request) answer {
	if step == List {
		return s.list(r)
	}
	id := strings.Split(strings.TrimPrefix(r.URL.Path, workflowsPath+"/"), "/")[0]
	i := slices.IndexFunc(s.flows, func(w Workflow) bool { return w.ID == id })
	if i < 0 {
		return problem(http.StatusNotFound, "WORKFLOW_NOT_FOUND") // also for another owner's
	}
	w := s.flows[i]
	switch step {
	case Get:
		v := w.show()
		v["createdAt"], v["itemVersion"], v["specJson"] = "2026-08-01T10:00:00Z", 3, map[string]any{"nodes": []any{}}
		return reply(http.StatusOK, v)
	case Runs:
		return s.runs(r)
	case Export:
		a := reply(http.StatusOK, map[string]any{"opaque": w.ID})
		a.header = map[string]string{"X-Export-Schema-Version": "2"}
		return a
	case Contract:
		if w.Contract == nil {
			return problem(http.StatusConflict, "CONTRACT_NOT_DERIVABLE")
		}
		return reply(http.StatusOK, w.Contract)
	}
	if w.Visibility == "public" {
		return problem(http.StatusConflict, "WORKFLOW_IS_PUBLIC_USE_ARCHIVE")
	}
	s.flows = slices.Delete(s.flows, i, i+1)
	return reply(http.StatusOK, map[string]any{"deleted": true})
}

func (s *Server) list(r *http.Request) answer {
	limit, ok := number(r, "limit", 20, 100)
	if !ok {
		return problem(http.StatusUnprocessableEntity, "INVALID_LIMIT")
	}
	from := 0
	if c := r.URL.Query().Get("cursor"); c != "" {
		var err error
		if from, err = strconv.Atoi(strings.TrimPrefix(c, "after=")); err != nil || from > len(s.flows) {
			return problem(http.StatusUnprocessableEntity, "INVALID_CURSOR")
		}
	}
	visibility := r.URL.Query().Get("visibility")
	items := []any{}
	v := map[string]any{}
	for i := from; i < len(s.flows); i++ {
		if visibility != "" && s.flows[i].Visibility != visibility {
			continue
		}
		if len(items) == limit {
			v["cursor"] = "after=" + strconv.Itoa(i)
			break
		}
		items = append(items, s.flows[i].show())
	}
	v["items"] = items
	return reply(http.StatusOK, v)
}

func (s *Server) runs(r *http.Request) answer {
	limit, ok := number(r, "limit", 5, 50)
	if !ok {
		return problem(http.StatusUnprocessableEntity, "INVALID_LIMIT")
	}
	items := []any{}
	for i := len(s.jobs) - 1; i >= 0 && len(items) < limit; i-- {
		items = append(items, map[string]any{"jobSpecId": s.jobs[i].ID, "status": s.jobs[i].Status})
	}
	return reply(http.StatusOK, map[string]any{"items": items})
}

func number(r *http.Request, name string, otherwise, most int) (int, bool) {
	q := r.URL.Query().Get(name)
	if q == "" {
		return otherwise, true
	}
	n, err := strconv.Atoi(q)
	return n, err == nil && 1 <= n && n <= most
}

func (w Workflow) show() map[string]any {
	return map[string]any{
		"workflowId": w.ID, "specId": "spec_" + w.ID, "name": w.Name, "visibility": w.Visibility, "tags": []any{}, "stats": map[string]any{},
		"updatedAt": "2026-08-02T10:00:00Z",
	}
}
