package store_test

import (
	"context"
	"errors"
	"io/fs"
	"sync"
)

var errFull = errors.New("no space left on device")

// disk is a Persist in memory that outlives a store and can fail.
type disk struct {
	mu       sync.Mutex
	values   map[string][]byte
	busy     map[string]bool
	err      error
	loadErrs map[string]error
	count    int
}

func newDisk() *disk {
	return &disk{values: map[string][]byte{}, busy: map[string]bool{}, loadErrs: map[string]error{}}
}

func (d *disk) Load(_ context.Context, key string) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.loadErrs[key]; err != nil {
		return nil, err
	}
	v, ok := d.values[key]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return v, nil
}

func (d *disk) Save(_ context.Context, key string, value []byte) error {
	d.mu.Lock()
	if d.busy[key] {
		d.mu.Unlock()
		return errors.New("two saves of one key at once")
	}
	d.busy[key] = true
	d.mu.Unlock()

	d.mu.Lock()
	defer d.mu.Unlock()
	d.busy[key] = false
	if d.err != nil {
		return d.err
	}
	d.values[key] = value
	d.count++
	return nil
}

func (d *disk) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

func (d *disk) failLoad(key string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.loadErrs[key] = err
}

func (d *disk) saves() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.count
}

func (d *disk) size(key string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.values[key])
}
