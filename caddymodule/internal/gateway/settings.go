package gateway

import (
	"context"
	"crypto/ed25519"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/lease"
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
	// Slots are the credentials, Profiles the provider profiles, in the configuration's order. Without profiles there is a slotless one for every
	// target with adapter ollama.
	Slots    []Slot
	Profiles []Profile
	// Audit takes one record for each step in the life of a lease; nil: none is kept. An error means that the record is not safe: the lease is not
	// issued. It must be safe for concurrent use.
	Audit func(*AuditRecord) error
	// Advertise is where the other gateways of a fleet reach this one, as host:port; empty without a shared store.
	Advertise string
	// ServeOwned lets runs without a credential go on while a shared store cannot be reached; otherwise they are refused once the sessions are no
	// longer known to be this gateway's.
	ServeOwned bool
	// Gates are what typed runs have to pass here.
	Gates edge.Gates
	// Embedded is the node inside this process; nil for none.
	Embedded *Embedded

	tunnel     *tunnel.Settings // made by Hub.Start
	projection *projection      // as Hub.Start has published it
	filterOnce sync.Once
	made       filters // guarded by filterOnce
}

// Slot is a credential that this gateway keeps and lends.
type Slot struct {
	Name  string
	Value lease.Value
	// Drain lets running runs end when the slot is revoked or removed; otherwise they are canceled.
	Drain bool
}

// Profile says how to use a target: with which credential, if any.
type Profile struct {
	Name    string
	Adapter string // ollama | openai | goals
	Target  string // the target's name on its node
	Slot    string // "": none
	// Header is what the credential goes into; Value is its template, in which {slot} stands once, as in "Bearer {slot}".
	Header, Value string
	// Nodes are the labels that a node must have. The label "node" stands for the node's name, which its certificate proves; all others are its own word.
	Nodes map[string]string
}

// Embedded runs a node inside the gateway's process.
type Embedded struct {
	// Key tells one configuration of the node from another: with the same one it is kept over a reload.
	Key string
	// Run serves until ctx ends; addr is the listener's own address.
	Run func(ctx context.Context, addr *net.UDPAddr) error
}
