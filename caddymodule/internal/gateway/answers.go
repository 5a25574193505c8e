package gateway

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fairway-edge/fairway/caddymodule/internal/fleet"
	"github.com/fairway-edge/fairway/internal/ollama"
)

// keepAliveBody is the longest unread body for whose end an answer may wait, in bytes.
const keepAliveBody = 64 << 10

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
	unread := !x.bodyRead && x.r.ProtoMajor == 1 && (x.r.ContentLength < 0 || x.r.ContentLength > keepAliveBody)
	if unread {
		// Else net/http would wait for a body that nobody wants, to keep the connection, before it sends the answer.
		head.Set("Connection", "close")
	}
	x.started = true
	x.w.WriteHeader(status)
	if x.r.Method != http.MethodHead {
		n, _ := x.w.Write(body) // a client that left needs no answer
		x.acc.wrote(body[:n])
	}
	if unread && x.r.Header.Get("Expect") == "" {
		x.linger()
	}
}

// A lingering close: a client that is still sending must get to read its answer, and a socket that is closed with unread bytes resets
// the connection under it.
const (
	lingerTime  = 10 * time.Second
	lingerBytes = 1 << 30
)

// linger sends the answer and reads on, for as long as a slow client may need to get to it.
func (x *exchange) linger() {
	if x.rc.Flush() != nil || x.rc.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, x.r.Body, lingerBytes)
}

// empty answers 204.
func (x *exchange) empty() {
	x.acc.endSelf(http.StatusNoContent)
	x.started = true
	x.w.WriteHeader(http.StatusNoContent)
}

func (x *exchange) json(body []byte) { x.respond(http.StatusOK, ollama.ContentTypeJSON, body) }

// self answers what needs no node.
func (x *exchange) self() error {
	switch x.match.Endpoint.Path {
	case "/":
		x.respond(http.StatusOK, ollama.ContentTypeRoot, []byte(ollama.RunningText))
	case "/api/version":
		v := x.h.hub.fleet.Version()
		if v == "" {
			v = ollama.APIVersion // clients refuse a server without one, and none is wrong here
		}
		x.json(marshal(map[string]string{"version": v}))
	case "/api/status":
		x.json([]byte(ollama.StatusBody))
	case "/api/experimental/model-recommendations":
		x.json([]byte(ollama.RecommendationsBody))
	default:
		return fail(codeForbidden, "%s is not served by this gateway", x.match.Path)
	}
	return nil
}

// inventory answers from the directory; no node is asked.
func (x *exchange) inventory() error {
	if x.h.hub.Superseded() {
		return errStore // and not an empty list: whoever looks whether this gateway is of use has to see that it is not
	}
	inv := x.h.hub.fleet.Inventory()
	if x.node != "" {
		if err := x.mayPin(); err != nil {
			return err
		}
		inv = x.h.hub.fleet.InventoryOf(x.node)
	}
	switch x.match.Endpoint.Path {
	case "/api/tags":
		x.json(inv.Tags)
	case "/api/ps":
		x.json(inv.PS)
	case "/v1/models":
		x.respond(http.StatusOK, "application/json", append(slices.Clip(inv.V1Models), '\n'))
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
	if x.node != "" {
		if err := x.mayPin(); err != nil {
			return err
		}
	}
	key := ollama.ModelKey(asked)
	m, ok := x.h.hub.fleet.Model(key, x.node)
	if !ok {
		name, err := ollama.ParseName(asked)
		switch {
		case err != nil:
			return err
		case name.Cloud:
			return errCloud
		}
		if err := x.h.hub.fleet.Lacks(&fleet.Want{Model: key, Node: x.node, Filter: anyTarget}); !errors.Is(err, fleet.ErrNoModel) {
			return err
		}
		return noSuchModel(x.match.Endpoint, asked)
	}
	x.respond(http.StatusOK, "application/json", append(ollama.V1Model(m, asked), '\n'))
	return nil
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // of a literal in this file
	}
	return b
}
