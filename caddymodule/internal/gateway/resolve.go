package gateway

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/fairway-edge/fairway/caddymodule/internal/fleet"
	"github.com/fairway-edge/fairway/internal/ollama"
)

// showTimeout bounds a run that a client's leaving does not end.
const showTimeout = 30 * time.Second

var errCloud = fail(codeForbidden, "cloud models are not served by this gateway")

// route serves an endpoint that one node answers: read the body, find the model as Ollama would, and run it.
func (x *exchange) route() error {
	body, release, err := x.readBody()
	if err != nil {
		return err
	}
	defer release()
	e := x.match.Endpoint
	req, derr := ollama.Decode(e, x.r.Header.Get("Content-Type"), x.r.Header.Get("Content-Encoding"), body)
	key, shown := req.Name.Key(), req.Name.String()
	if derr != nil {
		// A name that is none to Ollama may be the id of another provider's model.
		key, shown = ollama.ModelKey(req.Model), req.Model
		if _, held := x.h.hub.fleet.HeldBy(key); req.Model == "" || !held {
			return derr
		}
		if !e.ServedBy("openai") {
			return otherAPI(e, req.Model)
		}
	}
	x.request = req
	x.acc.Model = shown
	if req.Name.Cloud {
		return errCloud
	}
	run := x.newRun(body)
	run.want = fleet.Want{Model: key, Credit: e.Class == ollama.Inference && !req.Load && !req.Unload, Since: e.Since, Filter: x.h.settings.filter(e)}
	if x.node != "" {
		if err := x.mayPin(); err != nil {
			return err
		}
		run.want.Node = x.node
	}
	if req.Unload {
		return x.unserved(x.unload(run), key)
	}
	if e.Class == ollama.Inventory {
		if m, ok := x.h.hub.fleet.Model(key, x.node); ok {
			run.want.Digest = m.Digest // nodes may hold different models under one name: the one that lists show
		}
		// Quick, and Ollama answers it also to a client that has shut its sending side, which here looks like one that left.
		timed, stop := context.WithTimeout(context.WithoutCancel(x.r.Context()), showTimeout)
		defer stop()
		run.ctx, run.cancel = context.WithCancelCause(timed)
	}
	return x.unserved(run.serve(), key)
}

// unserved says more than that nobody has a model where it is only the endpoint that its provider does not have.
func (x *exchange) unserved(err error, key string) error {
	if !errors.Is(err, fleet.ErrNoModel) || x.match.Endpoint.ServedBy("openai") {
		return err
	}
	if byOllama, byOpenAI := x.h.hub.fleet.HeldBy(key); byOllama || !byOpenAI {
		return err
	}
	return otherAPI(x.match.Endpoint, x.request.Model)
}

// otherAPI tells the caller of a native endpoint where an OpenAI-compatible provider has what it is for.
func otherAPI(e *ollama.Endpoint, model string) error {
	path := "/v1/chat/completions"
	switch e.Name {
	case "generate":
		path = "/v1/completions"
	case "embed", "embeddings":
		path = "/v1/embeddings"
	}
	return fail(codeBadRequest, "model %q is served by an OpenAI-compatible provider: use %s", model, path)
}

// pin serves a management endpoint, on the node that the caller names and nowhere else.
func (x *exchange) pin() error {
	if !x.h.mayManage(x.principal) {
		return fail(codeForbidden, "%s is a management endpoint; principal %s may not use it (see the manage option)", x.match.Path, x.principal)
	}
	if x.node == "" {
		return fail(codeNodeRequired, "name the node in X-Fairway-Node or by the path prefix /n/NODE")
	}
	if err := x.mayPin(); err != nil {
		return err
	}
	e := x.match.Endpoint
	if e.Blob && x.r.Method == http.MethodPost {
		run := x.newRun(nil)
		run.upload = x.r.Body
		if x.r.ProtoMajor == 1 {
			// The answer may come before the upload's end; net/http would read that first, and keep the connection.
			_ = x.rc.EnableFullDuplex()
			x.w.Header().Set("Connection", "close")
		}
		return x.manage(run, "")
	}
	body, release, err := x.readBody()
	if err != nil {
		return err
	}
	defer release()
	if e.ModelIn != ollama.ModelNone {
		req, derr := ollama.Decode(e, x.r.Header.Get("Content-Type"), x.r.Header.Get("Content-Encoding"), body)
		x.request = req
		if derr != nil {
			return derr
		}
		x.acc.Model = req.Name.String()
	}
	held := ""
	if e.Held {
		held = x.request.Name.Key()
	}
	return x.manage(x.newRun(body), held)
}

// manage runs a management request at the node's one target for such: blobs and the create that uses them belong together.
func (x *exchange) manage(run *run, held string) error {
	e := x.match.Endpoint
	run.want = fleet.Want{Node: x.node, Since: e.Since, Filter: x.h.settings.filter(e)}
	run.want.Target = x.h.hub.fleet.Keeper(&run.want, held)
	if err := run.serve(); !errors.Is(err, fleet.ErrNoModel) {
		return err
	}
	return fail(codeNoNode, "node %q has no Ollama", x.node)
}

// mayChoose says whether the caller may choose the node: who manages nodes may, nobody else.
func (x *exchange) mayChoose() error {
	if !x.h.mayManage(x.principal) {
		return fail(codeForbidden, "principal %s may not choose a node (see the manage option)", x.principal)
	}
	return nil
}

// mayPin is mayChoose for a node that has to be here.
func (x *exchange) mayPin() error {
	if err := x.mayChoose(); err != nil {
		return err
	}
	if x.h.hub.Superseded() {
		return errStore
	}
	if !x.h.hub.fleet.Has(x.node) {
		return fail(codeNoNode, "node %q is not connected", x.node)
	}
	return nil
}

func (h *Handler) mayManage(principal string) bool {
	for _, m := range h.opts.Manage {
		if m == "*" || m == principal {
			return true
		}
	}
	return false
}
