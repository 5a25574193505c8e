package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
)

// Persist is where [Memory] keeps what a restart must not forget. Keys are
// constants of this package, such as "revocations.json". Save replaces the whole
// value and returns when it is durable. Load of a key that was never saved is an
// error that is [fs.ErrNotExist]. Calls for one key are never concurrent.
type Persist interface {
	Load(ctx context.Context, key string) ([]byte, error)
	Save(ctx context.Context, key string, value []byte) error
}

// document is one value of type T: read without a lock, replaced as a whole,
// written to storage before it is visible. T is never changed once it is stored.
type document[T any] struct {
	key     string
	persist Persist // nil: in memory only
	now     atomic.Pointer[T]

	mu    sync.Mutex // held over a change, storage included; readers do not take it
	dirty bool       // guarded by mu: now is not what storage has
}

// envelope lets a later version change the form without misreading this one.
type envelope[T any] struct {
	Version int `json:"version"`
	Data    T   `json:"data"`
}

const documentVersion = 1

// open reads what storage has, or begins with empty.
func (d *document[T]) open(ctx context.Context, persist Persist, key string, empty *T) error {
	d.key, d.persist = key, persist
	d.now.Store(empty)
	if persist == nil {
		return nil
	}
	raw, err := persist.Load(ctx, key)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("load %s: %w", key, err)
	}
	e := envelope[T]{Data: *empty}
	if err := json.Unmarshal(raw, &e); err != nil {
		return fmt.Errorf("load %s: %w", key, err)
	}
	if e.Version != documentVersion {
		return fmt.Errorf("load %s: version %d, want %d", key, e.Version, documentVersion)
	}
	d.now.Store(&e.Data)
	return nil
}

func (d *document[T]) read() *T { return d.now.Load() }

// change replaces the value by what next makes of it; next returns its argument
// for no change, and an error for a refusal. If storage fails nothing changes.
func (d *document[T]) change(ctx context.Context, next func(*T) (*T, error)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	to, err := next(d.now.Load())
	if err != nil || to == d.now.Load() {
		return err
	}
	if err := d.save(ctx, to); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	d.now.Store(to)
	return nil
}

// changeFirst is change for what must hold at once, even if storage fails: then
// the error is ErrNotDurable, and the next call writes it although it changes
// nothing more.
func (d *document[T]) changeFirst(ctx context.Context, next func(*T) (*T, error)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	to, err := next(d.now.Load())
	if err != nil {
		return err
	}
	if to == d.now.Load() && !d.dirty {
		return nil
	}
	d.now.Store(to)
	d.dirty = true
	if err := d.save(ctx, to); err != nil {
		return fmt.Errorf("%w: %w", ErrNotDurable, err)
	}
	return nil
}

// save is called with mu held.
func (d *document[T]) save(ctx context.Context, v *T) error {
	if d.persist != nil {
		raw, err := json.Marshal(envelope[T]{Version: documentVersion, Data: *v})
		if err == nil {
			err = d.persist.Save(ctx, d.key, raw)
		}
		if err != nil {
			return fmt.Errorf("save %s: %w", d.key, err)
		}
	}
	d.dirty = false
	return nil
}
