package caddymodule

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"path"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddypki"
	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/internal/pki"
)

const (
	caID                 = "fairway"
	intermediateLifetime = 365 * 24 * time.Hour
	// renewIntermediate is when little enough is left to make a new one, long before
	// it would cap the 30 days of a leaf.
	renewIntermediate = intermediateLifetime / 4
)

// caPath is where Caddy keeps the files of a CA. Renewed intermediates are written
// to the same place, so that the next process finds them.
func caPath(file string) string { return path.Join("pki", "authorities", caID, file) }

// authority is the built-in CA. Caddy's own type makes root and intermediate; it is
// no part of the pki app, which would put the root into the system's trust store
// and whose renewal ends with a config. Renewal is ours: when somebody asks for a
// signature and the intermediate is old.
type authority struct {
	ca      *caddypki.CA
	storage certmagic.Storage
	log     *zap.Logger

	mu    sync.Mutex
	chain pki.Chain // guarded by mu
	retry time.Time // guarded by mu; no renewal before
}

// openAuthority reads the CA, or makes it.
func openAuthority(ctx caddy.Context, storage certmagic.Storage, log *zap.Logger) (*authority, error) {
	trust := false
	a := &authority{
		ca:      &caddypki.CA{Name: "Fairway", InstallTrust: &trust, IntermediateLifetime: caddy.Duration(intermediateLifetime)},
		storage: storage,
		log:     log,
	}
	provision := func(context.Context) error { return a.ca.Provision(ctx, caID, log) }
	var err error
	if made(ctx, storage) {
		err = provision(ctx)
	} else {
		err = locked(ctx, storage, caPath(""), provision)
	}
	if err != nil {
		return nil, err
	}
	a.chain = pki.Chain{Root: a.ca.RootCertificate(), Intermediate: a.ca.IntermediateCertificateChain(), Key: a.ca.IntermediateKey()}
	_, err = a.current()
	return a, err
}

// made tells that there is a CA to read. Only the first start has to lock others out.
func made(ctx context.Context, s certmagic.Storage) bool {
	for _, file := range []string{"root.crt", "root.key", "intermediate.crt", "intermediate.key"} {
		if !s.Exists(ctx, caPath(file)) {
			return false
		}
	}
	return true
}

// current is what signs now. See pki.NewAuthority.
func (a *authority) current() (pki.Chain, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	usable := signs(a.chain) && now.Before(a.chain.Intermediate[0].NotAfter)
	if usable && (fresh(a.chain, now) || now.Before(a.retry)) {
		return a.chain, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), storageTimeout)
	defer cancel()
	next, err := a.renew(ctx, now)
	if err == nil {
		a.chain = next
		return next, nil
	}
	if !usable {
		return pki.Chain{}, fmt.Errorf("renewing the CA's intermediate certificate: %w", err)
	}
	a.retry = now.Add(retryRenewal)
	a.log.Error("renewing the CA's intermediate certificate", zap.Time("good_until", a.chain.Intermediate[0].NotAfter), zap.Error(err))
	return a.chain, nil
}

// fresh tells that there is nothing to renew. Near the end of the root nothing newer can be had.
func fresh(c pki.Chain, now time.Time) bool {
	end := c.Intermediate[0].NotAfter
	return end.Sub(now) > renewIntermediate || !end.Before(c.Root.NotAfter)
}

// signs tells that the key is the certificate's: two files can come apart when a
// process dies between them.
func signs(c pki.Chain) bool {
	if len(c.Intermediate) == 0 || c.Key == nil {
		return false
	}
	pub, ok := c.Key.Public().(interface{ Equal(crypto.PublicKey) bool })
	return ok && pub.Equal(c.Intermediate[0].PublicKey)
}

// renew takes what another process has renewed, or makes a new intermediate and
// stores it: the key first, so that what is cut off is seen as a pair that does not fit.
func (a *authority) renew(ctx context.Context, now time.Time) (next pki.Chain, err error) {
	err = locked(ctx, a.storage, caPath(""), func(ctx context.Context) error {
		next, err = a.stored(ctx)
		if err == nil && signs(next) && fresh(next, now) {
			return nil
		}
		rootKey, err := a.ca.RootKey()
		if err != nil {
			return err
		}
		cert, key, err := pki.RenewIntermediate(a.chain.Root, rootKey, intermediateLifetime, now)
		if err != nil {
			return err
		}
		keyPEM, err := certmagic.PEMEncodePrivateKey(key)
		if err != nil {
			return err
		}
		certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
		err = errors.Join(a.storage.Store(ctx, caPath("intermediate.key"), keyPEM), a.storage.Store(ctx, caPath("intermediate.crt"), certPEM))
		next = pki.Chain{Root: a.chain.Root, Intermediate: []*x509.Certificate{cert}, Key: key}
		a.log.Info("renewed the CA's intermediate certificate", zap.Time("good_until", cert.NotAfter))
		return err
	})
	return next, err
}

// stored reads the intermediate as it is in storage now.
func (a *authority) stored(ctx context.Context) (pki.Chain, error) {
	cert, err := storedCertificate(ctx, a.storage, "intermediate.crt")
	if err != nil {
		return pki.Chain{}, err
	}
	keyPEM, err := a.storage.Load(ctx, caPath("intermediate.key"))
	if err != nil {
		return pki.Chain{}, err
	}
	key, err := certmagic.PEMDecodePrivateKey(keyPEM)
	if err != nil {
		return pki.Chain{}, err
	}
	return pki.Chain{Root: a.chain.Root, Intermediate: []*x509.Certificate{cert}, Key: key}, nil
}

// storedCertificate reads one of the CA's certificates.
func storedCertificate(ctx context.Context, s certmagic.Storage, file string) (*x509.Certificate, error) {
	raw, err := s.Load(ctx, caPath(file))
	if err != nil {
		return nil, fmt.Errorf("loading %s from storage: %w", caPath(file), err)
	}
	block, _ := pem.Decode(raw)
	if block == nil {
		return nil, fmt.Errorf("loading %s from storage: it is not PEM", caPath(file))
	}
	return x509.ParseCertificate(block.Bytes)
}
