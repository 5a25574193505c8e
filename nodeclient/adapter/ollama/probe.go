package ollama

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	api "github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/nodeclient/adapter"
)

// Probe asks for tags, loaded models and version, on connections of its own so
// that it takes none from a run. Models that would
// run elsewhere (cloud stubs) are left out, and so are entries that cannot be
// used, which Skipped names. A server too old for /api/ps or
// without a version is fine; one that cannot list its models is an error.
func (a *Adapter) Probe(ctx context.Context) (adapter.Inventory, error) {
	var inv adapter.Inventory
	if err := a.probeTags(ctx, &inv); err != nil {
		return adapter.Inventory{}, fmt.Errorf("probing %s: %w", a.Origin(), err)
	}
	if err := a.probeLoaded(ctx, &inv); err != nil {
		return adapter.Inventory{}, fmt.Errorf("probing %s: %w", a.Origin(), err)
	}
	if err := a.probeVersion(ctx, &inv); err != nil {
		return adapter.Inventory{}, fmt.Errorf("probing %s: %w", a.Origin(), err)
	}
	return inv, nil
}

// errFairway: the address is a gateway's, most likely the one that the node serves. What it lists is what this node and others have told it, and requests would go
// round in circles.
var errFairway = errors.New("this is a Fairway gateway, not an Ollama")

func (a *Adapter) probeTags(ctx context.Context, inv *adapter.Inventory) error {
	got, err := a.Fetch(ctx, "/api/tags")
	if err != nil {
		return err
	}
	if slices.ContainsFunc(got.Headers, func(h adapter.Header) bool { return strings.EqualFold(h.Name, "X-Fairway-Run") }) {
		return errFairway
	}
	status, body := got.Status, got.Body
	if status == http.StatusUnauthorized { // behind a proxy that asks for a key; 403 is Ollama's own word for a Host that it does not know
		return fmt.Errorf("/api/tags: status %d: %w", status, adapter.ErrUnauthorized)
	}
	if status != http.StatusOK {
		return fmt.Errorf("/api/tags: status %d", status)
	}
	models, err := api.ParseTags(body)
	if models == nil && err != nil {
		return fmt.Errorf("/api/tags: %w", err)
	}
	inv.Skipped = err
	for _, m := range models {
		if !m.Remote {
			inv.Models = append(inv.Models, adapter.Model{Name: m.Name, JSON: m.Raw})
		}
	}
	return nil
}

func (a *Adapter) probeLoaded(ctx context.Context, inv *adapter.Inventory) error {
	status, body, err := a.Get(ctx, "/api/ps")
	if err != nil || status != http.StatusOK {
		return err
	}
	loaded, err := api.ParsePS(body)
	if loaded == nil && err != nil {
		return fmt.Errorf("/api/ps: %w", err)
	}
	inv.Skipped = errors.Join(inv.Skipped, err)
	for _, l := range loaded {
		inv.Loaded = append(inv.Loaded, adapter.Loaded{Name: l.Name, JSON: l.Raw})
	}
	return nil
}

func (a *Adapter) probeVersion(ctx context.Context, inv *adapter.Inventory) error {
	status, body, err := a.Get(ctx, "/api/version")
	if err != nil || status != http.StatusOK {
		return err
	}
	var v struct{ Version string }
	if err := json.Unmarshal(body, &v); err != nil {
		return fmt.Errorf("/api/version: %w", err)
	}
	inv.Version = v.Version
	return nil
}
