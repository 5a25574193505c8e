package pki

import (
	"crypto"
	"crypto/x509"
	"fmt"
	"sync"
	"time"
)

const (
	rootLifetime         = 10 * 365 * 24 * time.Hour
	intermediateLifetime = 365 * 24 * time.Hour
)

// SelfSigned is a root and an intermediate in memory: a CA without Caddy, for
// tests and fixtures. Safe for concurrent use.
type SelfSigned struct {
	trustDomain string
	now         func() time.Time
	rootKey     crypto.Signer

	mu    sync.Mutex
	chain Chain // guarded by mu
}

// NewSelfSigned makes a CA for trustDomain. now is the clock that everything
// issued from it is dated by, time.Now if nil.
func NewSelfSigned(trustDomain string, now func() time.Time) (*SelfSigned, error) {
	if !ValidTrustDomain(trustDomain) {
		return nil, fmt.Errorf("trust domain %q is not valid", clip(trustDomain))
	}
	if now == nil {
		now = time.Now
	}
	key, err := NewKey()
	if err != nil {
		return nil, fmt.Errorf("make root key: %w", err)
	}
	t := now()
	root, err := signAuthority("Fairway Root CA", 1, t.Add(-backdate), t.Add(rootLifetime), nil, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make root: %w", err)
	}
	s := &SelfSigned{trustDomain: trustDomain, now: now, rootKey: key, chain: Chain{Root: root}}
	if err := s.RenewIntermediate(intermediateLifetime); err != nil {
		return nil, err
	}
	return s, nil
}

// Chain is what signs now, in the form that [NewAuthority] asks for.
func (s *SelfSigned) Chain() (Chain, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.chain, nil
}

// RenewIntermediate replaces the intermediate.
func (s *SelfSigned) RenewIntermediate(lifetime time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	cert, key, err := RenewIntermediate(s.chain.Root, s.rootKey, lifetime, s.now())
	if err != nil {
		return err
	}
	s.chain = Chain{Root: s.chain.Root, Intermediate: []*x509.Certificate{cert}, Key: key}
	return nil
}

// Authority issues from this CA.
func (s *SelfSigned) Authority() *Authority {
	return NewAuthority(s.trustDomain, s.Chain, s.now)
}

// Root is the CA's root certificate.
func (s *SelfSigned) Root() *x509.Certificate {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.chain.Root
}

// RootKey signs intermediates. Fixtures that need an odd certificate use it.
func (s *SelfSigned) RootKey() crypto.Signer { return s.rootKey }
