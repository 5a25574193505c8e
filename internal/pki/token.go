package pki

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

var (
	// ErrTokenExpired is a join token that was good until its time ran out.
	ErrTokenExpired = errors.New("join token has expired")
	// ErrTokenInvalid is anything else: not a token, not ours, not what we mint.
	ErrTokenInvalid = errors.New("join token is not valid")
)

// How long a join token may be good.
const (
	MinTTL = time.Second
	MaxTTL = 30 * 24 * time.Hour
)

const (
	tokenType = "fairway-join+jwt"
	maxToken  = 4 << 10 // a minted one is about 400 bytes
	maxUses   = 1000
	jtiBytes  = 16
)

// JoinToken is what a join token says: Node may get an identity from Issuer's
// fleet, Uses times, until Expires.
type JoinToken struct {
	Issuer  ID        // the gateway that minted it; its trust domain is the fleet's
	Node    string    // the name that the identity will have
	ID      string    // jti, 128 random bits in base64url
	Expires time.Time // whole seconds, UTC
	Uses    int       // 1 to 1000; counted where it is redeemed
	CA      string    // RootPin of the CA that the node will trust
}

// joinClaims is the payload. The order of its fields is the order on the wire.
type joinClaims struct {
	jwt.RegisteredClaims        // iss, sub, exp, jti
	Uses                 int    `json:"uses"`
	CA                   string `json:"ca"`
}

// MintJoinToken makes a token for node, good from now for ttl (1 s to 30 days,
// whole seconds count) and uses (1 to 1000). caPin is [RootPin] of the CA. The
// token is a secret until it is spent.
func MintJoinToken(key ed25519.PrivateKey, issuer ID, node string, ttl time.Duration, uses int, caPin string, now time.Time) (token string, t JoinToken, err error) {
	switch {
	case len(key) != ed25519.PrivateKeySize:
		return "", JoinToken{}, errors.New("mint join token: no Ed25519 key")
	case ttl < MinTTL || ttl > MaxTTL:
		return "", JoinToken{}, fmt.Errorf("mint join token: ttl %s, want %s to %s", ttl, MinTTL, MaxTTL)
	}
	jti := make([]byte, jtiBytes)
	if _, err := rand.Read(jti); err != nil {
		return "", JoinToken{}, fmt.Errorf("mint join token: %w", err)
	}
	t = JoinToken{
		Issuer: issuer, Node: node, ID: base64.RawURLEncoding.EncodeToString(jti),
		Expires: now.Add(ttl).UTC().Truncate(time.Second), Uses: uses, CA: caPin,
	}
	if err := t.check(); err != nil {
		return "", JoinToken{}, fmt.Errorf("mint join token: %w", err)
	}
	token, err = t.unsigned().SignedString(key)
	if err != nil {
		return "", JoinToken{}, fmt.Errorf("mint join token: %w", err)
	}
	return token, t, nil
}

// VerifyJoinToken is the gateway's check, on the gateway's clock: at most 4 KiB,
// EdDSA by key, and byte for byte what [MintJoinToken] makes of its content, so
// no claim can stand twice, in another spelling or besides the known ones.
// Errors are [ErrTokenExpired] for a token that would else be good, or
// [ErrTokenInvalid]. That the issuer is of the caller's trust domain and that
// uses are left is the caller's to ask.
func VerifyJoinToken(token string, key ed25519.PublicKey, now time.Time) (JoinToken, error) {
	t, err := readToken(token, func(p *jwt.Parser, c *joinClaims) (*jwt.Token, error) {
		return p.ParseWithClaims(token, c, func(*jwt.Token) (any, error) { return key, nil })
	})
	if err != nil {
		return JoinToken{}, err
	}
	if !now.Before(t.Expires) {
		return JoinToken{}, fmt.Errorf("%w: at %s, it is %s here", ErrTokenExpired, t.Expires.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return t, nil
}

// ReadJoinToken is the node's reading of a token that its operator gave it: the
// node's name, the trust domain, the root's pin. It cannot verify the signature
// and does not judge the time (the node's clock may be wrong); the form is
// checked as strictly as the gateway does. Errors are [ErrTokenInvalid].
func ReadJoinToken(token string) (JoinToken, error) {
	return readToken(token, func(p *jwt.Parser, c *joinClaims) (*jwt.Token, error) {
		t, _, err := p.ParseUnverified(token, c)
		if err == nil && t.Method != jwt.SigningMethodEdDSA {
			err = fmt.Errorf("signed by %s, want EdDSA", t.Method.Alg())
		}
		if err == nil && len(t.Signature) != ed25519.SignatureSize {
			err = errors.New("signature has a wrong length")
		}
		return t, err
	})
}

// readToken parses by parse and then compares with what minting gives. jwt
// judges the signature and the encoding; the claims are judged here, because it
// takes doubled and differently spelled names and knows optional ones only.
func readToken(token string, parse func(*jwt.Parser, *joinClaims) (*jwt.Token, error)) (JoinToken, error) {
	if len(token) > maxToken {
		return JoinToken{}, fmt.Errorf("%w: %d bytes, at most %d", ErrTokenInvalid, len(token), maxToken)
	}
	var c joinClaims
	parser := jwt.NewParser(jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}), jwt.WithStrictDecoding(), jwt.WithoutClaimsValidation())
	if _, err := parse(parser, &c); err != nil {
		return JoinToken{}, fmt.Errorf("%w: %w", ErrTokenInvalid, err)
	}
	if c.ExpiresAt == nil {
		return JoinToken{}, fmt.Errorf("%w: no exp", ErrTokenInvalid)
	}
	issuer, err := ParseID(c.Issuer)
	if err != nil {
		return JoinToken{}, fmt.Errorf("%w: iss: %w", ErrTokenInvalid, err)
	}
	t := JoinToken{Issuer: issuer, Node: c.Subject, ID: c.RegisteredClaims.ID, Expires: c.ExpiresAt.UTC(), Uses: c.Uses, CA: c.CA}
	if err := t.check(); err != nil {
		return JoinToken{}, fmt.Errorf("%w: %w", ErrTokenInvalid, err)
	}
	want, err := t.unsigned().SigningString()
	if got := token[:strings.LastIndexByte(token, '.')]; err != nil || got != want {
		return JoinToken{}, fmt.Errorf("%w: not in the form that a gateway mints", ErrTokenInvalid)
	}
	return t, nil
}

// unsigned is the one way that a token is written.
func (t JoinToken) unsigned() *jwt.Token {
	return &jwt.Token{
		Header: map[string]any{"alg": jwt.SigningMethodEdDSA.Alg(), "typ": tokenType},
		Method: jwt.SigningMethodEdDSA,
		Claims: joinClaims{
			RegisteredClaims: jwt.RegisteredClaims{
				Issuer: t.Issuer.String(), Subject: t.Node, ID: t.ID, ExpiresAt: jwt.NewNumericDate(t.Expires),
			},
			Uses: t.Uses, CA: t.CA,
		},
	}
}

func (t JoinToken) check() error {
	jti, err := base64.RawURLEncoding.Strict().DecodeString(t.ID)
	switch {
	case t.Issuer.Valid() != nil:
		return fmt.Errorf("issuer: %w", t.Issuer.Valid())
	case t.Issuer.Role != RoleGateway:
		return fmt.Errorf("issuer %s is not a gateway", t.Issuer)
	case !ValidName(t.Node):
		return fmt.Errorf("node name %q is not valid", clip(t.Node))
	case err != nil || len(jti) != jtiBytes:
		return errors.New("jti is not 128 bits in base64url")
	case t.Uses < 1 || t.Uses > maxUses:
		return fmt.Errorf("uses %d, want 1 to %d", t.Uses, maxUses)
	case !validPin(t.CA):
		return errors.New("ca is not a SHA-256 in base64url")
	}
	return nil
}
