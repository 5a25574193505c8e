package gateway

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"

	"github.com/fairway-edge/fairway/internal/ollama"
	"github.com/fairway-edge/fairway/internal/store"
)

// Anonymous is the principal of a site with AuthNone.
const Anonymous = "anonymous"

// Key admits a principal by the SHA-256 of an API key.
type Key struct {
	Principal string
	Hash      [sha256.Size]byte
}

// HashKey hashes an API key.
func HashKey(key string) [sha256.Size]byte { return sha256.Sum256([]byte(key)) }

// identify finds the principal. The liveness text is for everyone: clients ask for it before they show a key.
func (x *exchange) identify() error {
	if err := checkHeaders(x.r.Header); err != nil {
		return err
	}
	if x.match.Endpoint.Class == ollama.Liveness {
		return nil
	}
	switch x.h.opts.Auth {
	case AuthNone:
		x.principal = Anonymous
	case AuthCaddy:
		x.principal = x.acc.User
	default:
		x.principal = x.h.settings.principal(x.presented())
	}
	if x.principal == "" || x.h.hub.lender.view.Revoked(store.Subject(store.SubjectPrincipal, x.principal)) {
		x.w.Header().Set("WWW-Authenticate", `Bearer realm="fairway"`)
		return fail(codeUnauthorized, "missing or unknown API key")
	}
	x.acc.Principal = x.principal
	return nil
}

// presented returns the key that the client shows: in the path, as a bearer token, or as x-api-key.
func (x *exchange) presented() string {
	if x.acc.token != "" {
		return x.acc.token
	}
	if scheme, key, ok := strings.Cut(x.r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(key)
	}
	return x.r.Header.Get("X-Api-Key")
}

// principal finds whose key this is. Every hash is compared, in constant time.
func (st *Settings) principal(key string) string {
	if key == "" {
		return ""
	}
	hash := HashKey(key)
	found := ""
	for _, k := range st.Keys {
		if subtle.ConstantTimeCompare(hash[:], k.Hash[:]) == 1 {
			found = k.Principal
		}
	}
	return found
}

// checkHeaders refuses what could make two readers see two requests.
func checkHeaders(h http.Header) error {
	if len(h.Values("Authorization")) > 1 || len(h.Values("X-Api-Key")) > 1 {
		return fail(codeBadRequest, "more than one credential header")
	}
	for _, v := range h.Values("Connection") {
		for name := range strings.SplitSeq(v, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			switch {
			case name == "Authorization", name == "X-Api-Key", name == "Content-Length", name == "Content-Type", name == "Host", strings.HasPrefix(name, "X-Fairway-"):
				return fail(codeBadRequest, "Connection may not name %s", name)
			}
		}
	}
	return nil
}
