package caddymodule

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/caddymodule/internal/gateway"
)

// The keys that a gateway makes for itself and keeps in Caddy's storage, 32 random
// bytes each.
const (
	secretReset = "stateless_reset" // QUIC's: a restarted gateway ends old connections at once
	secretToken = "token"           // QUIC's: address validation across a restart
	secretJoin  = "join"            // the seed of the Ed25519 key that signs join tokens
)

// storageTimeout bounds one step of a config's start that needs the storage's lock.
const storageTimeout = 10 * time.Second

func secretPath(name string) string { return path.Join(storageRoot, "keys", name) }

// loadSecret reads a key that exists.
func loadSecret(ctx context.Context, s certmagic.Storage, name string) (key [32]byte, err error) {
	raw, err := s.Load(ctx, secretPath(name))
	if err != nil {
		return key, fmt.Errorf("loading %s from storage: %w", secretPath(name), err)
	}
	if len(raw) != len(key) {
		return key, fmt.Errorf("loading %s from storage: it has %d bytes, want %d", secretPath(name), len(raw), len(key))
	}
	copy(key[:], raw)
	return key, nil
}

// secret reads a key and makes it if there is none. Whoever shares the storage gets
// the same one.
func secret(ctx context.Context, s certmagic.Storage, name string) (key [32]byte, err error) {
	key, err = loadSecret(ctx, s, name)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	err = locked(ctx, s, secretPath(name), func(ctx context.Context) error {
		key, err = loadSecret(ctx, s, name)
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if _, err := rand.Read(key[:]); err != nil {
			return err
		}
		if err := s.Store(ctx, secretPath(name), key[:]); err != nil {
			return fmt.Errorf("saving %s to storage: %w", secretPath(name), err)
		}
		return nil
	})
	return key, err
}

// locked runs f while nobody else who shares the storage runs it.
func locked(ctx context.Context, s certmagic.Storage, name string, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, storageTimeout)
	defer cancel()
	lock := strings.ReplaceAll(name, "/", "_")
	if err := s.Lock(ctx, lock); err != nil {
		return fmt.Errorf("locking %s in storage: %w", lock, err)
	}
	defer func() { _ = s.Unlock(context.WithoutCancel(ctx), lock) }()
	return f(ctx)
}

// hubKeys are the keys of the listener.
func hubKeys(ctx context.Context, s certmagic.Storage) (reset, token [32]byte, err error) {
	if reset, err = secret(ctx, s, secretReset); err != nil {
		return reset, token, err
	}
	token, err = secret(ctx, s, secretToken)
	return reset, token, err
}

// joinKey signs join tokens.
func joinKey(seed [32]byte) ed25519.PrivateKey { return ed25519.NewKeyFromSeed(seed[:]) }

// hashPrefix begins a key that is given by its hash.
const hashPrefix = "sha256:"

// Key admits a caller by an API key. Several keys may have one name: the old and
// the new one while a key is rotated.
type Key struct {
	// Who calls with this key: letters, digits and `. _ @ -`, at most 63.
	Name string `json:"name"`
	// The key as a placeholder, `{file./path}` or `{env.NAME}`, or `sha256:` and the
	// hash of the key in hex. A key in clear works, but then stands in the config
	// that Caddy keeps and shows.
	Value string `json:"value"`
}

// resolveKeys reads the keys' values and keeps their hashes only.
func resolveKeys(keys []Key, repl resolver, log *zap.Logger) ([]gateway.Key, error) {
	var out []gateway.Key
	owner := map[[32]byte]string{}
	for _, k := range keys {
		if err := checkPrincipal(k.Name); err != nil {
			return nil, fmt.Errorf("key: %w", err)
		}
		value, err := repl.value("key "+k.Name, k.Value, "", nil)
		if err != nil || value == "" {
			return nil, fmt.Errorf("key %s: no value: %w", k.Name, errors.Join(err, errEmptyKey))
		}
		hash, err := hashOf(value)
		if err != nil {
			return nil, fmt.Errorf("key %s: %w", k.Name, err)
		}
		if other, twice := owner[hash]; twice {
			return nil, fmt.Errorf("key %s: it is the same key as another one of %s", k.Name, other)
		}
		owner[hash] = k.Name
		if !hasPlaceholder(k.Value) && !strings.HasPrefix(k.Value, hashPrefix) {
			log.Warn("an API key stands in the configuration in clear; use {env.NAME}, {file./path} or sha256:HEX", zap.String("key", k.Name))
		}
		out = append(out, gateway.Key{Principal: k.Name, Hash: hash})
	}
	return out, nil
}

var errEmptyKey = errors.New("want {file./path}, {env.NAME} or sha256:HEX, set and not empty")

// hashOf is the SHA-256 of an API key that is given as itself or as its hash.
func hashOf(value string) (hash [32]byte, err error) {
	if digits, ok := strings.CutPrefix(value, hashPrefix); ok {
		raw, err := hex.DecodeString(digits)
		if err != nil || len(raw) != len(hash) {
			return hash, errors.New("64 hexadecimal digits must follow sha256")
		}
		copy(hash[:], raw)
		return hash, nil
	}
	value = strings.TrimSpace(value) // as the gateway does with what callers show
	if value == "" {
		return hash, errEmptyKey
	}
	if strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return hash, errors.New("the key has spaces or control characters in it, so no caller could send it")
	}
	return gateway.HashKey(value), nil
}
