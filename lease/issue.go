package lease

import (
	"crypto/ed25519"
	"crypto/hpke"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Issuer signs leases with a key ring that turns: the newest key signs once it has been announced, and the one before is good until
// its last lease has expired. Safe for concurrent use.
type Issuer struct {
	now func() time.Time

	mu   sync.RWMutex
	ring []issuerKey // guarded by mu; newest last, at most 2
}

type issuerKey struct {
	private ed25519.PrivateKey
	header  string
	thumb   string
	signs   time.Time // from here on
}

// Adoption is how long a new key is announced before it signs, for nodes that have not acknowledged it.
const Adoption = 5 * time.Second

// NewIssuer returns an issuer with a fresh key. now is the gateway's time: the wall clock at start plus what the monotonic clock has measured.
func NewIssuer(now func() time.Time) (*Issuer, error) {
	i := &Issuer{now: now}
	if err := i.Rotate(); err != nil {
		return nil, err
	}
	i.ring[0].signs = time.Time{}
	return i, nil
}

// Rotate makes a new key. Announce Keys to every node afterwards.
func (i *Issuer) Rotate() error {
	pub, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return fmt.Errorf("making an issuer key: %w", err)
	}
	thumb := Thumbprint(pub)
	k := issuerKey{private: private, header: header(thumb), thumb: thumb, signs: i.now().Add(Adoption)}
	i.mu.Lock()
	defer i.mu.Unlock()
	if n := len(i.ring); n == 2 && i.now().Before(i.ring[1].signs) {
		return errors.New("the newest issuer key does not sign yet")
	}
	i.ring = append(i.ring, k)
	if len(i.ring) > 2 {
		i.ring = i.ring[len(i.ring)-2:]
	}
	return nil
}

// Retire drops the older key; call it TTL after Rotate.
func (i *Issuer) Retire() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.ring) == 2 && !i.now().Before(i.ring[1].signs.Add(TTL+leeway)) {
		i.ring = i.ring[1:]
	}
}

// Keys returns the public keys to announce.
func (i *Issuer) Keys() []IssuerKey {
	i.mu.RLock()
	defer i.mu.RUnlock()
	out := make([]IssuerKey, len(i.ring))
	for n, k := range i.ring {
		out[n] = IssuerKey{Thumbprint: k.thumb, Public: k.private.Public().(ed25519.PublicKey)} //nolint:forcetypeassert // of its own kind
	}
	return out
}

func (i *Issuer) signing() issuerKey {
	i.mu.RLock()
	defer i.mu.RUnlock()
	k := i.ring[len(i.ring)-1]
	if len(i.ring) == 2 && i.now().Before(k.signs) {
		k = i.ring[0]
	}
	return k
}

// Issued is one lease as the gateway keeps it: never the value.
type Issued struct {
	ID      string
	Token   []byte
	Expires time.Time
}

// ErrValue says that a header value cannot be sent.
var ErrValue = errors.New("a header value is 1 to 4096 printable ASCII characters, without a space at either end")

// Issue seals value for the recipient key on the lane that scope describes.
func (i *Issuer) Issue(scope *Scope, recipient []byte, value []byte) (Issued, error) {
	if !ValidValue(value) {
		return Issued{}, ErrValue
	}
	pk, err := hpke.NewKEM(kemID)
	if err != nil {
		return Issued{}, err
	}
	public, err := pk.NewPublicKey(recipient)
	if err != nil {
		return Issued{}, fmt.Errorf("recipient key: %w", err)
	}
	iat := i.now().Unix()
	c := scope.claims(newID(), iat, iat+int64(TTL/time.Second), KeyID(recipient))
	enc, sender, err := hpke.NewSender(public, hpke.HKDFSHA256(), hpke.ChaCha20Poly1305(), scope.info(recipient))
	if err != nil {
		return Issued{}, fmt.Errorf("sealing a lease: %w", err)
	}
	w := scratches.Get().(*scratch) //nolint:forcetypeassert // of its own kind
	defer scratches.Put(w)
	plain := pad(value)
	ct, err := sender.Seal(scope.transcript(w, c.Jti, c.Iat, c.Exp, c.Box.RK), plain)
	clear(plain)
	if err != nil {
		return Issued{}, fmt.Errorf("sealing a lease: %w", err)
	}
	c.Box.EK, c.Box.CT = b64.EncodeToString(enc), b64.EncodeToString(ct)
	payload, err := c.encode(w)
	if err != nil {
		return Issued{}, err
	}
	token, err := sign(i.signing(), payload)
	if err != nil {
		return Issued{}, err
	}
	if len(token) > MaxToken {
		return Issued{}, fmt.Errorf("lease of %d bytes, at most %d", len(token), MaxToken)
	}
	return Issued{ID: c.Jti, Token: token, Expires: time.Unix(c.Exp, 0)}, nil
}

func sign(k issuerKey, payload []byte) ([]byte, error) {
	token := make([]byte, 0, len(k.header)+b64.EncodedLen(len(payload))+b64.EncodedLen(ed25519.SignatureSize)+2)
	token = b64.AppendEncode(append(append(token, k.header...), '.'), payload)
	sig, err := jwt.SigningMethodEdDSA.Sign(string(token), k.private)
	if err != nil {
		return nil, fmt.Errorf("signing a lease: %w", err)
	}
	return b64.AppendEncode(append(token, '.'), sig), nil
}

// claims fills in everything but the box's contents.
func (s *Scope) claims(jti string, iat, exp int64, key string) *claims {
	return &claims{
		V: 1, Iss: s.Issuer, Aud: s.Audience, Sub: s.Principal, Jti: jti, Iat: iat, Nbf: iat, Exp: exp, Run: s.Run, Att: s.Attempt, Knd: s.Kind,
		Rte: s.Route, Slt: s.Slot, Prf: s.Profile, Crv: s.Version, Tgt: s.Target, Req: b64.EncodeToString(s.Request[:]), Hdr: s.Header,
		Pgn: s.PGN, Cgn: s.CGN, Gep: s.Epoch, Cnf: cnf{Leaf: b64.EncodeToString(s.Leaf[:]), TLSX: channel(s.Exporter)},
		Box: box{KEM: kemID, KDF: kdfID, AEAD: aeadID, RK: key},
	}
}

// ValidValue reports whether a header value may be sealed: it goes into a request head byte by byte.
func ValidValue(v []byte) bool {
	if len(v) == 0 || len(v) > MaxValue || v[0] == ' ' || v[len(v)-1] == ' ' {
		return false
	}
	for _, c := range v {
		if c < 0x20 || c > 0x7e {
			return false
		}
	}
	return true
}

// Sizes of what is sealed.
const (
	minPlain = 256
	maxPlain = 4160 // holds MaxValue; twice 4096 would not fit a token
)

// pad hides the value's length: 0x01, two bytes of length, the value, zeros up to the next of 256, 512, … 4096, 4160 bytes.
func pad(value []byte) []byte {
	size := minPlain
	for size < 3+len(value) {
		size = min(2*size, maxPlain)
	}
	b := make([]byte, size)
	b[0] = 1
	binary.BigEndian.PutUint16(b[1:], uint16(len(value))) //nolint:gosec // at most MaxValue
	copy(b[3:], value)
	return b
}

// unpad returns the value inside b, which must be what pad made.
func unpad(b []byte) ([]byte, bool) {
	if len(b) < minPlain || len(b) > maxPlain || len(b)&(len(b)-1) != 0 && len(b) != maxPlain || b[0] != 1 {
		return nil, false
	}
	n := int(binary.BigEndian.Uint16(b[1:]))
	if 3+n > len(b) || !ValidValue(b[3:3+n]) {
		return nil, false
	}
	for _, c := range b[3+n:] {
		if c != 0 {
			return nil, false
		}
	}
	return b[3 : 3+n], true
}
