package caddymodule

import (
	"context"
	"path"

	"github.com/fairway-edge/fairway/internal/store"
)

// storageRoot is where Fairway's own things stand in Caddy's storage.
const storageRoot = "fairway"

// records keeps what a memory store must not forget, by the gateway's name: several
// gateways may share one storage.
type records struct {
	gateway string
	storage *lentStorage
}

func (r *records) key(name string) string { return path.Join(storageRoot, "gateways", r.gateway, name) }

// Load implements store.Persist.
func (r *records) Load(ctx context.Context, key string) ([]byte, error) {
	return r.storage.current().Load(ctx, r.key(key))
}

// Save implements store.Persist.
func (r *records) Save(ctx context.Context, key string, value []byte) error {
	return r.storage.current().Store(ctx, r.key(key), value)
}

var _ store.Persist = (*records)(nil)
