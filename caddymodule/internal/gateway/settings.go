package gateway

import (
	"context"
	"crypto/ed25519"
	"net"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/tunnel"
)

// Settings are what one loaded configuration tells the hub and its handlers. They are not changed once a Hub has started with them.
type Settings struct {
	// Gateway is this gateway's name, TrustDomain its SPIFFE trust domain.
	Gateway     string
	TrustDomain string
	// Software is the program's version, for people.
	Software string
	// Grace is how long a drain waits for running streams.
	Grace time.Duration
	// Keys admit principals; several may name the same one.
	Keys []Key
	// Identity returns the gateway's current leaf.
	Identity func() (*pki.Identity, error)
	// Authority issues leaves to nodes; nil where an outside PKI does, and then there are no join tokens.
	Authority *pki.Authority
	// JoinKey signs join tokens.
	JoinKey ed25519.PrivateKey
	// Log is this configuration's logger.
	Log *zap.Logger
	// Embedded is the node inside this process; nil for none.
	Embedded *Embedded

	tunnel *tunnel.Settings // made by Hub.Start
}

// Embedded runs a node inside the gateway's process.
type Embedded struct {
	// Key tells one configuration of the node from another: with the same one it is kept over a reload.
	Key string
	// Run serves until ctx ends; addr is the listener's own address.
	Run func(ctx context.Context, addr *net.UDPAddr) error
}
