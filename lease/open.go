package lease

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hpke"
	"crypto/subtle"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Opener takes in the leases of one session on its node. Safe for concurrent use.
type Opener struct {
	// Issuers are the keys that the gateway has announced on this session.
	Issuers *Issuers
	// Recipients returns the session's live keys: the current one, and for a while the one before.
	Recipients func() []*Recipient
	// Now returns gateway time; false when the node cannot tell it well enough.
	Now func() (time.Time, bool)
	// View is what is revoked, and the least projection.
	View *View

	replay replay
}

// Checked is a lease that has passed every check that needs no secret. It was not opened and not burned.
type Checked struct {
	c         *claims
	scope     Scope
	recipient *Recipient
}

// ID returns the lease's id.
func (k *Checked) ID() string { return k.c.Jti }

// Header returns the header that the value goes into.
func (k *Checked) Header() string { return k.scope.Header }

// Check verifies token for the run that want describes, as the node itself sees it; of want only Principal and Epoch may be empty, they are taken from the
// token. The order is the written one, the first failure is the answer, and none of it depends on a secret.
func (o *Opener) Check(token []byte, want Scope) (*Checked, error) {
	c, err := o.verify(token)
	if err != nil {
		return nil, err
	}
	k := &Checked{c: c, scope: want}
	k.scope.Principal = c.Sub
	if want.Epoch == 0 {
		k.scope.Epoch = c.Gep
	}
	if c.Iss != want.Issuer || c.Aud != want.Audience {
		return nil, refuse(CodeWrongRecipient)
	}
	for _, r := range o.Recipients() {
		if r.id == c.Box.RK {
			k.recipient = r
		}
	}
	if k.recipient == nil {
		return nil, refuse(CodeWrongRecipient)
	}
	if c.Cgn != want.CGN || c.Gep != k.scope.Epoch {
		return nil, refuse(CodeStaleGeneration)
	}
	if !equal(c.Cnf.Leaf, b64.EncodeToString(want.Leaf[:])) || !equal(c.Cnf.TLSX, channel(want.Exporter)) {
		return nil, refuse(CodeWrongConnection)
	}
	if err := o.times(c); err != nil {
		return nil, err
	}
	if !k.matches() {
		return nil, refuse(CodeMismatch)
	}
	if c.Rte != want.Route || c.Slt != want.Slot || c.Prf != want.Profile || c.Crv != want.Version {
		return nil, refuse(CodeStaleProjection)
	}
	if err := o.View.check(c); err != nil {
		return nil, err
	}
	return k, nil
}

// verify parses and checks the signature: steps 1 to 4.
func (o *Opener) verify(token []byte) (*claims, error) {
	if len(token) == 0 || len(token) > MaxToken || bytes.Count(token, []byte(".")) != 2 {
		return nil, refuse(CodeMalformed)
	}
	first := bytes.IndexByte(token, '.')
	last := bytes.LastIndexByte(token, '.')
	payload, err := decodeSegment(token[first+1 : last])
	if err != nil {
		return nil, err
	}
	sig, err := decodeSegment(token[last+1:])
	if err != nil {
		return nil, err
	}
	key, ok := o.Issuers.key(string(token[:first]))
	if !ok {
		return nil, refuse(CodeUnknownKey)
	}
	if len(sig) != ed25519.SignatureSize || jwt.SigningMethodEdDSA.Verify(string(token[:last]), sig, key) != nil {
		return nil, refuse(CodeBadSignature)
	}
	return decode(payload)
}

// decodeSegment takes one spelling only: no padding, no other alphabet, no trailing bits, no line breaks.
func decodeSegment(s []byte) ([]byte, error) {
	if bytes.ContainsAny(s, "\r\n") {
		return nil, refuse(CodeMalformed)
	}
	b := make([]byte, b64.DecodedLen(len(s)))
	n, err := b64.Decode(b, s)
	if err != nil {
		return nil, refuse(CodeMalformed)
	}
	return b[:n], nil
}

func equal(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// times is step 8, in gateway time.
func (o *Opener) times(c *claims) error {
	now, ok := o.Now()
	if !ok {
		return refuse(CodeClockUnavailable)
	}
	switch t := now.Unix(); {
	case c.Exp-c.Iat > int64(maxTTL/time.Second):
		return refuse(CodeTTLExcessive)
	case c.Nbf > t+int64(leeway/time.Second):
		return refuse(CodeNotYetValid)
	case c.Exp <= t:
		return refuse(CodeExpired)
	}
	return nil
}

// matches is step 9: every field of the scope against the node's own view, but for revisions, which are step 10.
func (k *Checked) matches() bool {
	c, s := k.c, &k.scope
	return c.Run == s.Run && c.Att == s.Attempt && c.Knd == s.Kind && c.Req == b64.EncodeToString(s.Request[:]) && c.Rte.ID == s.Route.ID &&
		c.Slt.ID == s.Slot.ID && c.Prf.ID == s.Profile.ID && c.Tgt == s.Target && c.Hdr == s.Header && c.Pgn == s.PGN &&
		c.Box.KEM == kemID && c.Box.KDF == kdfID && c.Box.AEAD == aeadID
}

// Open burns the lease and opens it into secret, after the checks that can have changed since Check. current says whether the session still is current. A lease
// that failed to open stays burned.
func (o *Opener) Open(k *Checked, current func() bool, secret *Secret) error {
	if !current() {
		return refuse(CodeStaleGeneration)
	}
	if err := o.times(k.c); err != nil {
		return err
	}
	if err := o.View.check(k.c); err != nil {
		return err
	}
	now, _ := o.Now()
	if err := o.replay.burn(k.c.Jti, time.Unix(k.c.Exp, 0), now); err != nil {
		return err
	}
	enc, err1 := b64.DecodeString(k.c.Box.EK)
	ct, err2 := b64.DecodeString(k.c.Box.CT)
	if err1 != nil || err2 != nil {
		return refuse(CodeOpenFailed)
	}
	r, err := hpke.NewRecipient(enc, k.recipient.private, hpke.HKDFSHA256(), hpke.ChaCha20Poly1305(), k.scope.info(k.recipient.public))
	if err != nil {
		return refuse(CodeOpenFailed)
	}
	w := scratches.Get().(*scratch) //nolint:forcetypeassert // of its own kind
	defer scratches.Put(w)
	scrub()
	plain, err := r.Open(k.scope.transcript(w, k.c.Jti, k.c.Iat, k.c.Exp, k.c.Box.RK), ct)
	scrub()
	defer clear(plain)
	if err != nil {
		return refuse(CodeOpenFailed)
	}
	value, ok := unpad(plain)
	if !ok {
		return refuse(CodePayloadInvalid)
	}
	return secret.set(value)
}
