package lease

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"sync"
)

// Ref is an object of the configuration at one revision.
type Ref struct {
	ID  string `json:"id"`
	Rev uint64 `json:"rev"`
}

// TargetRef is where the credential may be used.
type TargetRef struct {
	Adapter string `json:"ad"`
	ID      string `json:"id"`
	Origin  string `json:"org"` // scheme://host:port
}

// Scope is everything that a lease is bound to: who, for what, where. The gateway freezes it when the lane is chosen; the node rebuilds it from what it
// sees itself.
type Scope struct {
	Issuer    string // the gateway's SPIFFE id
	Audience  string // the node's
	Principal string // opaque; never a key
	Run       string
	Attempt   uint32
	Kind      string // tunnel | edge
	Route     Ref
	Slot      Ref
	Profile   Ref
	Version   uint64 // of the credential in the slot
	Target    TargetRef
	Request   [sha256.Size]byte // SHA-256 of the exact RunOpen frame
	Header    string            // that the value goes into
	PGN       uint64            // projection generation
	CGN       uint64            // the session's generation
	Epoch     uint64            // the gateway process
	Exporter  []byte            // TLS exporter value of the lane, 32 bytes
	Leaf      [sha256.Size]byte // SHA-256 of the node's leaf on the lane
}

// claims is the payload, in canonical order. Its JSON encoding is the only accepted one.
type claims struct {
	V   int       `json:"v"`
	Iss string    `json:"iss"`
	Aud string    `json:"aud"`
	Sub string    `json:"sub"`
	Jti string    `json:"jti"`
	Iat int64     `json:"iat"`
	Nbf int64     `json:"nbf"`
	Exp int64     `json:"exp"`
	Run string    `json:"run"`
	Att uint32    `json:"att"`
	Knd string    `json:"knd"`
	Rte Ref       `json:"rte"`
	Slt Ref       `json:"slt"`
	Prf Ref       `json:"prf"`
	Crv uint64    `json:"crv"`
	Tgt TargetRef `json:"tgt"`
	Req string    `json:"req"`
	Hdr string    `json:"hdr"`
	Pgn uint64    `json:"pgn"`
	Cgn uint64    `json:"cgn"`
	Gep uint64    `json:"gep"`
	Cnf cnf       `json:"cnf"`
	Box box       `json:"box"`
}

type cnf struct {
	Leaf string `json:"x5t#S256"`
	TLSX string `json:"tlsx"`
}

type box struct {
	KEM  uint16 `json:"kem"`
	KDF  uint16 `json:"kdf"`
	AEAD uint16 `json:"aead"`
	RK   string `json:"rk"`
	EK   string `json:"ek"`
	CT   string `json:"ct"`
}

var b64 = base64.RawURLEncoding.Strict()

const maxInteger = 1 << 53

// channel is the hash of a lane's exporter value that stands in a token; the value itself is never sent.
func channel(exporter []byte) string {
	h := sha256.Sum256(append([]byte("fairway-lease-cb/v1\x00"), exporter...))
	return b64.EncodeToString(h[:])
}

// scratch is working memory for one lease. It holds nothing secret: the value goes in sealed.
type scratch struct {
	json bytes.Buffer
	enc  *json.Encoder // to json
	text []byte        // a transcript
}

var scratches = sync.Pool{New: func() any {
	s := &scratch{text: make([]byte, 0, 1024)}
	s.enc = json.NewEncoder(&s.json)
	s.enc.SetEscapeHTML(false)
	return s
}}

// encode gives the canonical payload, valid until the next use of w.
func (c *claims) encode(w *scratch) ([]byte, error) {
	w.json.Reset()
	if err := w.enc.Encode(c); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(w.json.Bytes(), []byte("\n")), nil
}

// decode reads a payload, and takes none but the canonical form: re-encoded it must be the same bytes. That rules out duplicates, other cases and
// orders, white space, escapes, other spellings of numbers, and members that nobody knows.
func decode(payload []byte) (*claims, error) {
	c := new(claims)
	if json.Unmarshal(payload, c) != nil {
		return nil, refuse(CodeMalformed)
	}
	w := scratches.Get().(*scratch) //nolint:forcetypeassert // of its own kind
	defer scratches.Put(w)
	again, err := c.encode(w)
	if err != nil || !bytes.Equal(again, payload) || !c.plausible() {
		return nil, refuse(CodeMalformed)
	}
	return c, nil
}

// plausible checks what every lease has, whatever it is for.
func (c *claims) plausible() bool {
	for _, n := range []uint64{c.Rte.Rev, c.Slt.Rev, c.Prf.Rev, c.Crv, c.Pgn, c.Cgn, c.Gep} {
		if n >= maxInteger {
			return false
		}
	}
	for _, s := range []string{c.Iss, c.Aud, c.Sub, c.Run, c.Rte.ID, c.Slt.ID, c.Prf.ID, c.Tgt.Adapter, c.Tgt.ID, c.Tgt.Origin, c.Hdr} {
		if s == "" || len(s) > 512 {
			return false
		}
	}
	id, err := b64.DecodeString(c.Jti)
	return err == nil && len(id) == 16 && c.V == 1 && c.Att >= 1 && (c.Knd == "tunnel" || c.Knd == "edge") &&
		c.Iat > 0 && c.Iat < maxInteger && c.Exp < maxInteger && c.Nbf == c.Iat && c.Exp > c.Iat
}

// transcript writes to w what the box is bound to: the scope as the caller sees it, and of the token the id and the times alone. Valid until the next
// use of w.
func (s *Scope) transcript(w *scratch, jti string, iat, exp int64, key string) []byte {
	b := w.text[:0]
	defer func() { w.text = b }()
	b = append(b, "fairway-lease/v1/aad\x00"...)
	text := func(v string) { b = append(binary.BigEndian.AppendUint32(b, uint32(len(v))), v...) } //nolint:gosec // bounded by plausible
	number := func(v uint64) { b = binary.BigEndian.AppendUint64(b, v) }
	number(1)
	text(s.Issuer)
	text(s.Audience)
	text(s.Principal)
	text(jti)
	number(uint64(iat)) //nolint:gosec // positive
	number(uint64(exp)) //nolint:gosec // positive
	text(s.Run)
	number(uint64(s.Attempt))
	text(s.Kind)
	for _, r := range []Ref{s.Route, s.Slot, s.Profile} {
		text(r.ID)
		number(r.Rev)
	}
	number(s.Version)
	text(s.Target.Adapter)
	text(s.Target.ID)
	text(s.Target.Origin)
	text(string(s.Request[:]))
	text(s.Header)
	number(s.PGN)
	number(s.CGN)
	number(s.Epoch)
	text(string(s.Leaf[:]))
	text(channel(s.Exporter))
	for _, id := range []uint16{kemID, kdfID, aeadID} {
		number(uint64(id))
	}
	text(key)
	return b
}

// info binds the box to the suite, the recipient key, the node's leaf and the connection.
func (s *Scope) info(publicKey []byte) []byte {
	b := make([]byte, 0, 192)
	b = append(b, "fairway-lease/v1/info\x00"...)
	for _, id := range []uint16{kemID, kdfID, aeadID} {
		b = binary.BigEndian.AppendUint16(b, id)
	}
	for _, p := range [][]byte{publicKey, s.Leaf[:], s.Exporter} {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(p))), p...) //nolint:gosec // 32 bytes each
	}
	return b
}
