package goals

import (
	"context"
	"fmt"
	"net/http"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/nodeclient/adapter"
)

// Probe asks whether the API is there: the list of own workflows, without a key, which this node does not have. A "no" to that is a yes. There is
// nothing to hold and no version, so that the inventory is empty; adapter.ErrUnauthorized is never the answer, for there is nothing that the gateway
// could ask with a lease instead.
func (a *Adapter) Probe(ctx context.Context) (adapter.Inventory, error) {
	const path = edge.WorkflowsPath + "?limit=1"
	status, _, err := a.Get(ctx, path)
	if err == nil {
		switch status {
		case http.StatusOK, http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests:
			return adapter.Inventory{}, nil
		}
		err = fmt.Errorf("%s: status %d", path, status)
	}
	return adapter.Inventory{}, fmt.Errorf("probing %s: %w", a.Origin(), err)
}
