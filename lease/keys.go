package lease

import (
	"crypto/ecdh"
	"crypto/ed25519"
	"crypto/hpke"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"
)

// The suite: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20Poly1305. The ids stand in info, so another suite is another key.
const (
	kemID  uint16 = 0x0020
	kdfID  uint16 = 0x0001
	aeadID uint16 = 0x0003
)

// KEM is the id of the only KEM in use, as RecipientKey announces it.
const KEM = kemID

// Thumbprint returns an Ed25519 key's RFC 7638 thumbprint: its kid, and what a node's owner may pin.
func Thumbprint(pub ed25519.PublicKey) string {
	sum := sha256.Sum256([]byte(`{"crv":"Ed25519","kty":"OKP","x":"` + b64.EncodeToString(pub) + `"}`))
	return b64.EncodeToString(sum[:])
}

// header is the constant first segment of every token under a key.
func header(kid string) string {
	return b64.EncodeToString([]byte(`{"alg":"EdDSA","kid":"` + kid + `","typ":"fairway-lease+jwt"}`))
}

// IssuerKey is a public issuer key as a node learns it.
type IssuerKey struct {
	Thumbprint string
	Public     ed25519.PublicKey
}

// Issuers are the keys from which a node takes leases on one session. Safe for concurrent use.
type Issuers struct {
	pins []string

	mu   sync.RWMutex
	keys map[string]ed25519.PublicKey // guarded by mu; by header segment
}

// NewIssuers returns an empty set; with pins only keys of those thumbprints enter it.
func NewIssuers(pins []string) *Issuers { return &Issuers{pins: pins} }

// Announce replaces the set by what the gateway announces: at most two keys. A key that is malformed or not pinned makes it fail and changes nothing.
func (s *Issuers) Announce(keys []IssuerKey) error {
	if len(keys) > 2 {
		return fmt.Errorf("%d issuer keys; at most 2", len(keys))
	}
	set := make(map[string]ed25519.PublicKey, len(keys))
	for _, k := range keys {
		if len(k.Public) != ed25519.PublicKeySize || Thumbprint(k.Public) != k.Thumbprint {
			return fmt.Errorf("issuer key %q is not what its thumbprint says", k.Thumbprint)
		}
		if len(s.pins) > 0 && !slices.Contains(s.pins, k.Thumbprint) {
			return fmt.Errorf("issuer key %q is not pinned", k.Thumbprint)
		}
		set[header(k.Thumbprint)] = slices.Clone(k.Public)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = set
	return nil
}

func (s *Issuers) key(header string) (ed25519.PublicKey, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	k, ok := s.keys[header]
	return k, ok
}

// Recipient is a node's key for one session. Leases sealed for it can be opened nowhere else, and by nobody once it is dropped.
type Recipient struct {
	private hpke.PrivateKey
	public  []byte
	id      string
}

// NewRecipient makes a fresh key.
func NewRecipient() (*Recipient, error) {
	k, err := hpke.DHKEM(ecdh.X25519()).GenerateKey()
	if err != nil {
		return nil, fmt.Errorf("making a recipient key: %w", err)
	}
	pub := k.PublicKey().Bytes()
	return &Recipient{private: k, public: pub, id: KeyID(pub)}, nil
}

// Public returns the key that is announced to the gateway.
func (r *Recipient) Public() []byte { return slices.Clone(r.public) }

// KeyID names a recipient key: the base64url SHA-256 of its bytes.
func KeyID(public []byte) string {
	sum := sha256.Sum256(public)
	return b64.EncodeToString(sum[:])
}

// validRecipient takes a key in. X25519 has points with which every private key agrees on zero (RFC 7748 section 6.1); crypto/ecdh refuses the
// result, so one trial when the key is announced says so before a run depends on it.
func validRecipient(public []byte) (hpke.PublicKey, error) {
	pk, err := hpke.DHKEM(ecdh.X25519()).NewPublicKey(public)
	if err != nil {
		return nil, fmt.Errorf("recipient key: %w", err)
	}
	if _, _, err := hpke.NewSender(pk, hpke.HKDFSHA256(), hpke.ChaCha20Poly1305(), nil); err != nil {
		return nil, fmt.Errorf("recipient key: %w", err)
	}
	return pk, nil
}

// CheckRecipient says whether a node's announced key can be sealed to.
func CheckRecipient(kem uint32, public []byte) error {
	if kem != uint32(KEM) {
		return fmt.Errorf("recipient key of KEM 0x%04x; 0x%04x is spoken", kem, KEM)
	}
	_, err := validRecipient(public)
	return err
}

func newID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return b64.EncodeToString(id[:])
}
