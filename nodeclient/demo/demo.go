// Package demo is a provider without a model: an adapter of kind "ollama" that
// answers within the process, so that a first look at Fairway needs no Ollama.
//
// It is honest: every answer says that it is Fairway's demo and that no model
// runs. It serves one model, "demo", and the endpoints that people try first:
// /api/chat, /api/generate, /api/show, /v1/chat/completions, /v1/completions,
// and what Probe would read. Everything else is an error in the family's shape.
//
//	demo.go    the adapter: inventory, Connect
//	conn.go    one request through memory
//	serve.go   endpoints and errors
//	answer.go  the words and their shapes
package demo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"time"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
)

const (
	modelName = "demo:latest"
	version   = "0.0.0" // no Ollama stands behind it, so it claims no release

	// pace is the time between two words: slow enough to see that they
	// stream, at 50 a second about what a small model does on a laptop.
	pace = 20 * time.Millisecond
)

// Demo is the demo provider. Make it with New.
type Demo struct{ mux *http.ServeMux }

// New makes the demo provider. It holds no resources.
func New() *Demo { return &Demo{mux: routes()} }

// Target is "demo".
func (d *Demo) Target() string { return "demo" }

// Kind is "ollama": the protocol that it speaks.
func (d *Demo) Kind() string { return "ollama" }

// Origin names no address: nothing listens.
func (d *Demo) Origin() string { return "http://demo.invalid:80" }

// Probe returns the one model, always the same.
func (d *Demo) Probe(ctx context.Context) (adapter.Inventory, error) {
	if err := ctx.Err(); err != nil {
		return adapter.Inventory{}, err
	}
	b, err := json.Marshal(entry())
	if err != nil {
		return adapter.Inventory{}, err
	}
	return adapter.Inventory{Version: version, Models: []adapter.Model{{Name: modelName, JSON: b}}}, nil
}

// Connect always succeeds while ctx lives.
func (d *Demo) Connect(ctx context.Context, _ bool) (adapter.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, notSent(err)
	}
	return &conn{handler: d.mux}, nil
}

// tagsEntry is a model as /api/tags lists it.
type tagsEntry struct {
	Name       string   `json:"name"`
	Model      string   `json:"model"`
	ModifiedAt string   `json:"modified_at"`
	Size       int64    `json:"size"`
	Digest     string   `json:"digest"`
	Details    details  `json:"details"`
	Caps       []string `json:"capabilities"`
}

type details struct {
	ParentModel       string   `json:"parent_model"`
	Format            string   `json:"format"`
	Family            string   `json:"family"`
	Families          []string `json:"families"`
	ParameterSize     string   `json:"parameter_size"`
	QuantizationLevel string   `json:"quantization_level"`
}

var demoDetails = details{Format: "text", Family: "demo", Families: []string{"demo"}, ParameterSize: "0", QuantizationLevel: "none"}

// modifiedAt is fixed, so that all demo providers of a fleet list the same.
const modifiedAt = "2026-01-01T00:00:00Z"

func entry() tagsEntry {
	sum := sha256.Sum256([]byte(text))
	return tagsEntry{
		Name: modelName, Model: modelName, ModifiedAt: modifiedAt, Size: int64(len(text)),
		Digest: hex.EncodeToString(sum[:]), Details: demoDetails, Caps: []string{"completion"},
	}
}

var _ adapter.Adapter = (*Demo)(nil)
