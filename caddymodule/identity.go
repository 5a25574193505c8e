package caddymodule

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/internal/pki"
)

// Identity says where the gateway's certificate comes from, and with it which
// certificates of nodes are good.
type Identity struct {
	// `internal`: from a CA of Fairway's own, which it makes at the first start and
	// keeps in Caddy's storage; nodes join with tokens. `files`: from an existing
	// PKI, which then gives nodes their certificates too. Default: `internal`.
	Source string `json:"source,omitempty"`
	// With `files`: the PEM file with the certificate and its intermediates. Its one
	// URI name is the gateway's SPIFFE id, `spiffe://TRUST-DOMAIN/gateway/NAME`.
	Cert string `json:"cert,omitempty"`
	// With `files`: the PEM file with the certificate's key.
	Key string `json:"key,omitempty"`
	// With `files`: the PEM file with the roots that nodes' certificates chain to.
	CA string `json:"ca,omitempty"`
}

// Sources of an Identity.
const (
	identityInternal = "internal"
	identityFiles    = "files"
)

// identityValues is a resolved Identity.
type identityValues struct{ files *identityFile } // nil: internal

func (i *Identity) resolve(repl resolver) (v identityValues, err error) {
	if i == nil {
		return v, nil
	}
	source, err := repl.value("source", i.Source, identityInternal, func(v string) error { return oneOf(v, identityInternal, identityFiles) })
	if err != nil {
		return v, err
	}
	if source == identityInternal {
		if i.Cert != "" || i.Key != "" || i.CA != "" {
			return v, errors.New("cert, key and ca belong to 'files', but the source is 'internal'")
		}
		return v, nil
	}
	v.files = new(identityFile)
	for _, f := range []struct {
		option, value string
		into          *string
	}{{"cert", i.Cert, &v.files.cert}, {"key", i.Key, &v.files.key}, {"ca", i.CA, &v.files.ca}} {
		if *f.into, err = repl.value("files: "+f.option, f.value, "", nil); err != nil {
			return v, err
		}
		if *f.into == "" {
			return v, fmt.Errorf("files: %s is missing: want cert, key and ca", f.option)
		}
	}
	return v, nil
}

// startIdentity fills in how this config's gateway proves who it is.
func (a *App) startIdentity(storage certmagic.Storage) error {
	st := a.settings
	if files := a.values.identity.files; files != nil {
		files.log = a.log
		st.Identity = files.identity
		return nil
	}
	ca, err := openAuthority(a.ctx, storage, a.log)
	if err != nil {
		return fmt.Errorf("identity internal: %w", err)
	}
	seed, err := secret(a.ctx, storage, secretJoin)
	if err != nil {
		return err
	}
	st.JoinKey = joinKey(seed)
	st.Authority = pki.NewAuthority(st.TrustDomain, ca.current, nil)
	leaf := &issued{
		authority: st.Authority,
		id:        pki.ID{TrustDomain: st.TrustDomain, Role: pki.RoleGateway, Name: st.Gateway},
		log:       a.log,
	}
	st.Identity = leaf.identity
	_, err = leaf.identity() // a CA that cannot issue is an error of the load
	return err
}

// retryRenewal is how long a failed renewal waits for the next: the certificate at
// hand is still good, and handshakes must not all wait for a storage that is away.
const retryRenewal = time.Minute

// issued is the gateway's leaf from the CA. The key stays in memory. It renews
// itself when it is asked for: a certificate that no handshake asks for is of no
// use to anyone.
type issued struct {
	authority *pki.Authority
	id        pki.ID
	log       *zap.Logger

	mu    sync.Mutex
	now   *pki.Identity // guarded by mu
	retry time.Time     // guarded by mu; no renewal before
}

func (i *issued) identity() (*pki.Identity, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	t := time.Now()
	if i.now != nil && (t.Before(i.now.RenewAt()) || t.Before(i.retry)) {
		return i.now, nil
	}
	next, err := i.authority.NewIdentity(i.id)
	if err == nil {
		i.now = next
		return next, nil
	}
	err = fmt.Errorf("issuing the gateway's certificate: %w", err)
	if i.now == nil || t.After(i.now.NotAfter()) {
		return nil, err
	}
	i.retry = t.Add(retryRenewal)
	i.log.Error("renewing the gateway's certificate", zap.Time("good_until", i.now.NotAfter()), zap.Error(err))
	return i.now, nil
}

// checkFiles is how often files of an existing PKI are looked at for a change.
const checkFiles = 10 * time.Second

// identityFile is an identity in three files. Whoever renews them writes new ones,
// and the next handshake after checkFiles has them. A change that cannot be read
// is logged and leaves the old one in place.
type identityFile struct {
	cert, key, ca string
	log           *zap.Logger

	mu      sync.Mutex
	now     *pki.Identity // guarded by mu
	stamp   string        // guarded by mu; of the files that now was read from
	checked time.Time     // guarded by mu
}

// load reads the files, for a config that is being loaded.
func (f *identityFile) load() (*pki.Identity, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.checked, f.stamp = time.Now(), f.stat()
	var err error
	f.now, err = pki.LoadFiles(f.cert, f.key, f.ca)
	return f.now, err
}

func (f *identityFile) identity() (*pki.Identity, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t := time.Now(); t.Sub(f.checked) >= checkFiles {
		f.checked = t
		f.reload()
	}
	return f.now, nil
}

// reload is called with mu held.
func (f *identityFile) reload() {
	stamp := f.stat()
	if stamp == f.stamp {
		return
	}
	next, err := pki.LoadFiles(f.cert, f.key, f.ca)
	if err == nil && next.ID != f.now.ID {
		err = fmt.Errorf("the new certificate is for %s, want %s", next.ID, f.now.ID)
	}
	if err != nil { // the stamp stays, so that half-written files are read again
		f.log.Error("identity files have changed but cannot be used; keeping the identity at hand", zap.Error(err))
		return
	}
	f.now, f.stamp = next, stamp
	f.log.Info("read changed identity files", zap.Time("good_until", next.NotAfter()))
}

func (f *identityFile) stat() string {
	var stamp string
	for _, name := range []string{f.cert, f.key, f.ca} {
		if info, err := os.Stat(name); err == nil {
			stamp += fmt.Sprintf("%d %d\n", info.ModTime().UnixNano(), info.Size())
		}
	}
	return stamp
}
