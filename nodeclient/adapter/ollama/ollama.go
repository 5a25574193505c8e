// Package ollama is the adapter for an Ollama server. Requests pass through as
// they are (package http1); what is Ollama's own is how its address may be
// spelled, and how it tells what it holds.
//
//	ollama.go  the adapter
//	probe.go   inventory
package ollama

import (
	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/nodeclient/adapter/http1"
)

// Adapter is one Ollama server. Make it with New.
type Adapter struct{ *http1.Server }

// defaultPort is Ollama's own, for origins that say as little as its OLLAMA_HOST.
const defaultPort = "11434"

// New makes the adapter of one target. origin is scheme://host[:port] with
// scheme http or https and nothing behind the port; without a port it is the
// scheme's. As in OLLAMA_HOST the scheme may be left out: then it is http, and
// the port 11434.
func New(target, origin string) (*Adapter, error) {
	s, err := http1.New(target, origin, defaultPort)
	if err != nil {
		return nil, err
	}
	return &Adapter{s}, nil
}

// Kind is "ollama".
func (a *Adapter) Kind() string { return "ollama" }

var _ adapter.Adapter = (*Adapter)(nil)
