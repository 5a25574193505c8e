package caddymodule

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/fairway-edge/fairway/internal/pki"
)

// faulty is a storage that can be told to fail.
type faulty struct {
	certmagic.Storage
	err error
}

func (f *faulty) Load(ctx context.Context, key string) ([]byte, error) {
	if f.err != nil {
		return nil, f.err
	}
	return f.Storage.Load(ctx, key)
}

func openCA(t *testing.T, storage certmagic.Storage) *authority {
	t.Helper()
	ctx, err := caddy.ProvisionContext(&caddy.Config{StorageRaw: []byte(`{"module":"file_system","root":"` + storage.(*certmagic.FileStorage).Path + `"}`)})
	if err != nil {
		t.Fatal(err)
	}
	a, err := openAuthority(ctx, storage, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// storeIntermediate puts one that ends after left, or with another's key, into storage.
func storeIntermediate(t *testing.T, a *authority, storage certmagic.Storage, left time.Duration, fits bool) *x509.Certificate {
	t.Helper()
	rootKey, err := a.ca.RootKey()
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := pki.RenewIntermediate(a.chain.Root, rootKey, left, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if !fits {
		if key, err = pki.NewKey(); err != nil {
			t.Fatal(err)
		}
	}
	keyPEM, err := certmagic.PEMEncodePrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
	if err := errors.Join(storage.Store(t.Context(), caPath("intermediate.key"), keyPEM), storage.Store(t.Context(), caPath("intermediate.crt"), certPEM)); err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestAuthorityRenewsItsIntermediate(t *testing.T) {
	storage := &certmagic.FileStorage{Path: t.TempDir()}
	first := openCA(t, storage)
	root := first.chain.Root
	if got := openCA(t, storage); !got.chain.Root.Equal(root) || !got.chain.Intermediate[0].Equal(first.chain.Intermediate[0]) {
		t.Error("a second start made another CA")
	}
	for _, c := range []struct {
		name  string
		left  time.Duration
		fits  bool
		renew bool
	}{
		{"fresh", 300 * 24 * time.Hour, true, false},
		{"old", 80 * 24 * time.Hour, true, true},
		{"at its end", time.Second, true, true},
		{"key of another", 300 * 24 * time.Hour, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			stored := storeIntermediate(t, first, storage, c.left, c.fits)
			a := openCA(t, storage)
			chain, err := a.current()
			if err != nil {
				t.Fatal(err)
			}
			if renewed := !chain.Intermediate[0].Equal(stored); renewed != c.renew || !signs(chain) || !chain.Root.Equal(root) {
				t.Errorf("renewed %t, want %t; signs %t", renewed, c.renew, signs(chain))
			}
			if next := openCA(t, storage); !next.chain.Intermediate[0].Equal(chain.Intermediate[0]) {
				t.Error("the next process does not have it")
			}
			id := pki.ID{TrustDomain: "fleet.local", Role: pki.RoleNode, Name: "jetson"}
			if _, err := pki.NewAuthority("fleet.local", a.current, nil).NewIdentity(id); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAuthorityWithoutStorage(t *testing.T) {
	files := &certmagic.FileStorage{Path: t.TempDir()}
	a := openCA(t, files)
	rootKey, err := a.ca.RootKey()
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := pki.RenewIntermediate(a.chain.Root, rootKey, time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	a.storage = &faulty{files, errors.New("storage is away")}
	a.chain = pki.Chain{Root: a.chain.Root, Intermediate: []*x509.Certificate{cert}, Key: key}
	if err := os.RemoveAll(filepath.Join(files.Path, "pki")); err != nil { // the root's key too
		t.Fatal(err)
	}
	if got, err := a.current(); err != nil || !got.Intermediate[0].Equal(cert) {
		t.Errorf("an intermediate that is good for an hour must sign on: %v", err)
	}
	if a.retry.IsZero() {
		t.Error("the renewal is tried again at once")
	}
	a.chain.Key = nil
	if _, err := a.current(); err == nil {
		t.Error("a CA without a key signs")
	}
}

func TestSecretIsMadeOnce(t *testing.T) {
	t.Parallel()
	storage := &certmagic.FileStorage{Path: t.TempDir()}
	var wg sync.WaitGroup
	keys := make([][32]byte, 4)
	for i := range keys {
		wg.Go(func() {
			var err error
			if keys[i], err = secret(t.Context(), storage, secretJoin); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, k := range keys {
		if k != keys[0] || k == ([32]byte{}) {
			t.Error("two made two keys, or none")
		}
	}
	if err := storage.Store(t.Context(), secretPath(secretJoin), []byte("short")); err != nil {
		t.Fatal(err)
	}
	if _, err := secret(t.Context(), storage, secretJoin); err == nil {
		t.Error("a key of 5 bytes was taken")
	}
}

func TestIdentityFilesAreReadAgain(t *testing.T) {
	t.Parallel()
	ca, err := pki.NewSelfSigned("fleet.local", nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	f := &identityFile{cert: filepath.Join(dir, "cert"), key: filepath.Join(dir, "key"), ca: filepath.Join(dir, "ca"), log: zap.NewNop()}
	write := func(name string) { writeIdentity(t, ca, dir, name) }
	write("gw1")
	first, err := f.load()
	if err != nil {
		t.Fatal(err)
	}
	later := func() *pki.Identity {
		f.checked = time.Time{}
		id, err := f.identity()
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	if later() != first {
		t.Error("unchanged files were read again")
	}
	write("gw1")
	second := later()
	if second == first {
		t.Error("changed files were not read")
	}
	write("gw2")
	if later() != second {
		t.Error("a certificate of another gateway was taken")
	}
	if err := os.WriteFile(f.key, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if later() != second {
		t.Error("half-written files were taken")
	}
	write("gw1")
	if id := later(); id == second || id.ID.Name != "gw1" {
		t.Error("good files were not read after bad ones")
	}
}

// writeIdentity writes cert, key and ca of a gateway to dir.
func writeIdentity(t *testing.T, ca *pki.SelfSigned, dir, name string) {
	t.Helper()
	id, err := ca.Authority().NewIdentity(pki.ID{TrustDomain: "fleet.local", Role: pki.RoleGateway, Name: name})
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(id.Certificate.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for file, blocks := range map[string][][]byte{"cert": id.Certificate.Certificate, "key": {key}, "ca": {ca.Root().Raw}} {
		kind := "CERTIFICATE"
		if file == "key" {
			kind = "PRIVATE KEY"
		}
		var content []byte
		for _, der := range blocks {
			content = append(content, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})...)
		}
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
