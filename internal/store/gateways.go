package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Gateways is the directory of those who share the store.
type Gateways interface {
	// Meet says what a gateway process is and has to do, and tells what all those are that have met within a day, itself included, by name. What a gateway
	// said is as old as its Age: those that are older than OwnerTTL are dead, frozen or cut off. ErrStaleEpoch when a later process goes by its name,
	// ErrInvalid when About is over its bounds.
	Meet(ctx context.Context, gateway string, epoch uint64, about About) ([]Gateway, error)
}

// About is what a gateway says of itself.
type About struct {
	// Advertise is where other gateways and nodes reach it, as host:port; at most 262 bytes.
	Advertise string `json:"advertise"`
	// Software is the program's version, for people; at most 64 bytes.
	Software string `json:"software"`
	// Nodes is how many sessions it holds, Runs how many of its callers' requests are in flight. They end with their gateway: one that
	// meets no more has none.
	Nodes int `json:"nodes"`
	Runs  int `json:"runs"`
}

const (
	maxAdvertise = 262 // a name of 255 bytes, a colon, six digits at most
	maxSoftware  = 64
	// maxGateways bounds how many Meet tells of.
	maxGateways = 256
)

// Gateway is one of those who share a store.
type Gateway struct {
	Name  string
	Epoch uint64
	About
	Age time.Duration // since it met, by the store's clock; never negative
}

// Alive reports whether it has met within OwnerTTL.
func (g Gateway) Alive() bool { return g.Age < OwnerTTL }

func checkAbout(gateway string, epoch uint64, a About) error {
	if err := checkGateway(gateway, epoch); err != nil {
		return err
	}
	if len(a.Advertise) > maxAdvertise || len(a.Software) > maxSoftware || a.Nodes < 0 || a.Runs < 0 {
		return fmt.Errorf("%w: what gateway %s says of itself", ErrInvalid, gateway)
	}
	return nil
}

func sortGateways(out []Gateway) []Gateway {
	slices.SortFunc(out, func(a, b Gateway) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Meet implements [Gateways].
func (m *Memory) Meet(_ context.Context, gateway string, epoch uint64, about About) ([]Gateway, error) {
	if err := checkAbout(gateway, epoch, about); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.enter(gateway, epoch)
	if g == nil {
		return nil, fmt.Errorf("gateway %s, epoch %d: %w", gateway, epoch, ErrStaleEpoch)
	}
	now := m.now()
	g.about, g.met = about, now
	var out []Gateway
	for name, g := range m.gateways {
		if age := max(now.Sub(g.met), 0); !g.met.IsZero() && age < forgetGateway && len(out) < maxGateways {
			out = append(out, Gateway{Name: name, Epoch: g.epoch, About: g.about, Age: age})
		}
	}
	return sortGateways(out), nil
}

// Meet implements [Gateways], in one round trip.
func (r *Redis) Meet(ctx context.Context, gateway string, epoch uint64, about About) ([]Gateway, error) {
	if err := checkAbout(gateway, epoch, about); err != nil {
		return nil, err
	}
	text, err := json.Marshal(about)
	if err != nil {
		return nil, err
	}
	answer, err := r.call(ctx, opMeet, gateway, epoch, string(text), maxGateways)
	if err != nil {
		return nil, fmt.Errorf("gateway %s, epoch %d: %w", gateway, epoch, err)
	}
	var out []Gateway
	for d := (decoder{rest: answer}); len(d.rest) > 0; {
		g := Gateway{Name: d.text(), Epoch: d.number(), Age: time.Duration(d.number()) * time.Millisecond}
		if text := d.text(); d.err != nil || json.Unmarshal([]byte(text), &g.About) != nil || checkAbout(g.Name, g.Epoch, g.About) != nil {
			return nil, errAnswer
		}
		out = append(out, g)
	}
	return sortGateways(out), nil
}
