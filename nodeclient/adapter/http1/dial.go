package http1

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
)

// connectTimeout bounds dialling, all addresses and TLS together.
const connectTimeout = 5 * time.Second

// Connect takes an idle connection or dials, for at most 5 s. With own it
// dials, and the connection is used for one request and by nobody else.
func (s *Server) Connect(ctx context.Context, own bool) (adapter.Conn, error) {
	if !own {
		if c := s.idle.take(); c != nil {
			return &exchange{s: s, c: c}, nil
		}
	}
	return s.connect(ctx, own)
}

func (s *Server) connect(ctx context.Context, own bool) (*exchange, error) {
	c, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	return &exchange{s: s, c: c, own: own}, nil
}

func (s *Server) dial(ctx context.Context) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	var errs []error
	for _, addr := range s.addrs {
		nc, err := s.dialer.DialContext(ctx, "tcp", addr)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if s.tls == nil {
			return newConn(nc, nc), nil
		}
		tc := tls.Client(nc, s.tls)
		if err := tc.HandshakeContext(ctx); err != nil {
			nc.Close()
			errs = append(errs, err)
			continue
		}
		return newConn(tc, nc), nil
	}
	return nil, fmt.Errorf("connecting to %s: %w: %w", s.origin, adapter.ErrNotSent, errors.Join(errs...))
}
