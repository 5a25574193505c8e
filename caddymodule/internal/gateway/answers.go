package gateway

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/fairway-edge/fairway/internal/ollama"
)

// respond writes a whole answer of the gateway's own. HEAD gets the head alone.
func (x *exchange) respond(status int, contentType string, body []byte) {
	head := x.w.Header()
	if contentType != "" {
		head.Set("Content-Type", contentType)
	}
	head.Set("Content-Length", strconv.Itoa(len(body)))
	if x.acc.Outcome == "" {
		x.acc.endSelf(status)
	}
	x.started = true
	x.w.WriteHeader(status)
	if x.r.Method != http.MethodHead {
		_, _ = x.w.Write(body) // a client that left needs no answer
	}
}

func (x *exchange) text(status int, body string) {
	if status == http.StatusNoContent {
		x.acc.endSelf(status)
		x.started = true
		x.w.WriteHeader(status)
		return
	}
	x.respond(status, "text/plain; charset=utf-8", []byte(body))
}

func (x *exchange) json(body []byte) { x.respond(http.StatusOK, ollama.ContentTypeJSON, body) }

// self answers what needs no node.
func (x *exchange) self() error {
	switch x.match.Endpoint.Path {
	case "/":
		x.text(http.StatusOK, ollama.RunningText)
	case "/api/version":
		v := x.h.hub.fleet.Version()
		if v == "" {
			v = ollama.APIVersion // clients refuse a server without one, and none is wrong here
		}
		x.json(marshal(map[string]string{"version": v}))
	case "/api/status":
		x.json([]byte(`{"cloud":{"disabled":true,"source":"config"}}`))
	case "/api/experimental/model-recommendations":
		x.json([]byte(`{"recommendations":[]}`))
	case "/api/me":
		// The account is the node owner's; callers have none.
		x.acc.Outcome = "completed"
		x.respond(http.StatusUnauthorized, ollama.ContentTypeJSON, []byte(`{"error":"unauthorized"}`))
	default:
		return fail(codeForbidden, "%s is not served by this gateway", x.match.Path)
	}
	return nil
}

// inventory answers from the directory; no node is asked.
func (x *exchange) inventory() error {
	inv := x.h.hub.fleet.Inventory()
	switch x.match.Endpoint.Path {
	case "/api/tags":
		x.json(inv.Tags)
	case "/api/ps":
		x.json(inv.PS)
	case "/v1/models":
		x.respond(http.StatusOK, "application/json", inv.V1Models)
	default:
		return x.oneModel()
	}
	return nil
}

// oneModel answers GET /v1/models/NAME.
func (x *exchange) oneModel() error {
	asked := x.match.Param
	if strings.TrimSpace(asked) == "" {
		return x.unknown()
	}
	name, err := ollama.ParseName(asked)
	if err != nil {
		return &failure{code: codeNoSuchModel, message: x.match.Endpoint.ModelNotFound(asked)}
	}
	m, ok := x.h.hub.fleet.Model(name.Key())
	if !ok {
		return &failure{code: codeNoSuchModel, message: x.match.Endpoint.ModelNotFound(asked)}
	}
	x.respond(http.StatusOK, "application/json", ollama.V1Model(m, asked))
	return nil
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // of a literal in this file
	}
	return b
}
