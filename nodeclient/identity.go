package nodeclient

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/internal/pki"
)

// StateIdentity keeps a node's identity in its state directory, and joins with a token when there is none yet.
type StateIdentity struct {
	dir, token string
	gateways   []string
	log        *zap.Logger
	clock      atomic.Bool // the warning about clocks was given
	otherFleet bool        // the token names another CA than id's

	mu   sync.Mutex
	id   *pki.Identity // guarded by mu; nil until joined
	lost error         // guarded by mu; the token is spent, and what it gave could not be kept
}

var (
	// ErrNoIdentity says that a node has neither an identity nor a token to get one.
	ErrNoIdentity = errors.New("no identity and no token")
	// ErrOtherNode says that the token is for another node than the identity.
	ErrOtherNode = errors.New("the token is for another node")
	// ErrOtherFleet says that the token is of another CA than the identity, though trust domain and node have the same names.
	ErrOtherFleet = errors.New("the token is of another CA than this node's identity")
)

// NewStateIdentity reads the identity in dir. Without one it needs a token, with which Current then joins at the first of gateways that
// lets it; gateways of another CA than the token's are passed over while there are others. A token beside an identity of the same node is ignored, with a warning if it is of another CA; for another node it is ErrOtherNode.
// A directory or file that cannot be used is a *StateError.
func NewStateIdentity(dir, token string, gateways []string, log *zap.Logger) (*StateIdentity, error) {
	s := &StateIdentity{dir: dir, token: token, gateways: gateways, log: log}
	var t pki.JoinToken
	var err error
	if token != "" {
		if t, err = pki.ReadJoinToken(token); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, &StateError{Dir: dir, Err: err}
	}
	s.id, err = pki.LoadIdentity(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) && token == "":
		return nil, ErrNoIdentity
	case errors.Is(err, fs.ErrNotExist):
		return s, checkWritable(dir)
	case err != nil:
		return nil, &StateError{Dir: dir, Err: err}
	case token == "":
	case t.Node != s.id.ID.Name || t.Issuer.TrustDomain != s.id.ID.TrustDomain:
		return nil, fmt.Errorf("%w: it names %s of %s, and %s holds the identity of %s of %s", ErrOtherNode,
			t.Node, t.Issuer.TrustDomain, dir, s.id.ID.Name, s.id.ID.TrustDomain)
	case !trusts(s.id, t.CA):
		s.otherFleet = true
		log.Warn("this node has joined before, and the token is of another CA than its identity; the token is not used. If the gateway's storage is new, "+
			"move the state directory away and start again with the token", zap.String("node", s.id.ID.Name), zap.String("state_dir", dir))
	default:
		log.Info("this node has joined before; the token is not used", zap.String("node", s.id.ID.Name))
	}
	return s, nil
}

// trusts tells whether the root that a token names by its pin is one of id's.
func trusts(id *pki.Identity, pin string) bool {
	return slices.ContainsFunc(id.RootDER, func(der []byte) bool {
		root, err := x509.ParseCertificate(der)
		return err == nil && pki.RootPin(root) == pin
	})
}

// Current returns the identity, and joins first if there is none. It is not joined with a token that would be spent in vain: when the state
// directory cannot keep the identity, before or after, that is a *FinalError with a *StateError in it.
func (s *StateIdentity) Current(ctx context.Context) (*pki.Identity, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id != nil {
		return s.id, nil
	}
	if s.lost == nil {
		s.lost = checkWritable(s.dir)
	}
	if s.lost != nil {
		return nil, &FinalError{Err: s.lost}
	}
	var errs, foreign []error
	for _, gateway := range s.gateways {
		id, err := enroll(ctx, gateway, s.token, s.log, &s.clock)
		if err == nil {
			s.log.Info("joined", zap.String("node", id.ID.Name), zap.String("trust_domain", id.ID.TrustDomain), zap.String("address", gateway))
			if err := pki.SaveIdentity(s.dir, id); err != nil {
				s.lost = &StateError{Dir: s.dir, Err: fmt.Errorf("%w; the token may be spent: get a new one when the directory can be written", err)}
				return nil, &FinalError{Err: s.lost}
			}
			s.id = id
			return id, nil
		}
		var ve *pki.VerifyError
		switch {
		case isFinal(err) && errors.As(err, &ve):
			foreign = append(foreign, err)
			err = fmt.Errorf("%s: %w", gateway, ve) // is not of the token's fleet, and has not seen the token; another one may be
		case isFinal(err):
			return nil, &FinalError{Err: fmt.Errorf("joining: %w", err)}
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	if len(foreign) == len(s.gateways) {
		return nil, &FinalError{Err: fmt.Errorf("joining: %w", errors.Join(foreign...))}
	}
	return nil, fmt.Errorf("joining: %w", errors.Join(errs...))
}

// Renewed makes id current, and writes it to the state directory. It stays current if it cannot be written: the one on disk can be renewed
// again.
func (s *StateIdentity) Renewed(id *pki.Identity) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.id = id
	if err := pki.SaveIdentity(s.dir, id); err != nil {
		return &StateError{Dir: s.dir, Err: err}
	}
	return nil
}

// Join gets an identity into dir and returns its node's name, for `fairway-node enroll`. It locks dir, and fails where one is already.
func Join(ctx context.Context, dir, token string, gateways []string, log *zap.Logger) (node string, err error) {
	st, err := openState(dir)
	if err != nil {
		return "", err
	}
	defer st.close()
	s, err := NewStateIdentity(dir, token, gateways, log)
	if err != nil {
		return "", err
	}
	switch {
	case s.otherFleet:
		return "", fmt.Errorf("%w in %s", ErrOtherFleet, dir)
	case s.id != nil:
		return s.id.ID.Name, ErrJoined
	}
	id, err := s.Current(ctx)
	if err != nil {
		return "", err
	}
	return id.ID.Name, nil
}

// ErrJoined says that the state directory already holds this node's identity.
var ErrJoined = errors.New("this node has joined before")
