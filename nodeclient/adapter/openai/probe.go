package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/nodeclient/adapter"
)

// maxSkipped is how many entries are named when they cannot be used.
const maxSkipped = 10

// Probe asks for the models and, of a server that has one, for the version. A
// server that answers 401 or 403 gives adapter.ErrUnauthorized. Entries that
// the gateway could not use are left out and named by Skipped, and so, unnamed,
// are the stubs of an Ollama for models at ollama.com. Nothing is known of what
// is loaded.
func (a *Adapter) Probe(ctx context.Context) (adapter.Inventory, error) {
	path := a.base + "/models"
	status, body, err := a.Get(ctx, path)
	switch {
	case err == nil && (status == http.StatusUnauthorized || status == http.StatusForbidden):
		err = fmt.Errorf("%s: status %d: %w", path, status, adapter.ErrUnauthorized)
	case err == nil && status == http.StatusNotFound:
		err = fmt.Errorf("%s: status %d; a target's URL ends where that of an OpenAI client does, mostly in /v1", path, status)
	case err == nil && status != http.StatusOK:
		err = fmt.Errorf("%s: status %d", path, status)
	}
	var inv adapter.Inventory
	if err == nil {
		if inv.Models, inv.Skipped, err = parseModels(body); err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
	}
	if err != nil {
		a.nameless.Store(false) // whoever answers next may be another
		return adapter.Inventory{}, fmt.Errorf("probing %s: %w", a.Origin(), err)
	}
	inv.Version = a.version(ctx)
	return inv, nil
}

// parseModels reads a list of models: an object with the list in data, or, as
// some clouds have it, the list itself.
func parseModels(body []byte) (models []adapter.Model, skipped, err error) {
	var entries []json.RawMessage
	if trimmed := bytes.TrimLeft(body, " \t\r\n"); len(trimmed) > 0 && trimmed[0] == '[' {
		err = json.Unmarshal(body, &entries)
	} else {
		var list struct {
			Data json.RawMessage `json:"data"` // null from an Ollama without models
		}
		if err = json.Unmarshal(body, &list); err == nil && list.Data == nil {
			err = errors.New("no list of models")
		}
		if err == nil {
			err = json.Unmarshal(list.Data, &entries)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	var errs []error
	if len(entries) > ollama.MaxModels {
		errs = append(errs, fmt.Errorf("%d models, only %d are taken", len(entries), ollama.MaxModels))
		entries = entries[:ollama.MaxModels]
	}
	bad := 0
	seen := make(map[string]bool, len(entries))
	models = make([]adapter.Model, 0, len(entries))
	for i, raw := range entries {
		m, err := ollama.ParseOpenAIModel(raw)
		if err == nil && seen[m.Name] {
			err = fmt.Errorf("%q is listed twice", m.Name)
		}
		if err != nil {
			bad++
			if bad <= maxSkipped {
				errs = append(errs, fmt.Errorf("entry %d: %w", i, err))
			}
			continue
		}
		seen[m.Name] = true
		if !m.Remote {
			models = append(models, adapter.Model{Name: m.Name, JSON: raw})
		}
	}
	if bad > maxSkipped {
		errs = append(errs, fmt.Errorf("and %d more", bad-maxSkipped))
	}
	return models, errors.Join(errs...), nil
}
