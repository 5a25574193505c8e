package rig

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Fleet is several gateways on one Redis and one storage.
type Fleet struct {
	Redis    *Redis
	Gateways []*Gateway
	Ways     []*Way   // from each gateway to Redis
	Relays   []*Relay // from the other gateways to each
}

// NewFleet starts n gateways, gw1 and so on, the first one alone (Caddy's own pki app makes its CA in a new storage without a lock, so of two that start
// at once one may find half of it and exit), and waits until each serves and executes for each other. The word GATEWAY in the options' lines becomes
// the name.
func NewFleet(t testing.TB, n int, o Options) *Fleet {
	t.Helper()
	f := &Fleet{Redis: NewRedis(t)}
	storage := t.TempDir()
	for i := range n {
		o := o
		o.Name, o.Storage = fmt.Sprintf("gw%d", i+1), storage
		named := strings.NewReplacer("GATEWAY", o.Name)
		o.Global, o.SiteLines = named.Replace(o.Global), named.Replace(o.SiteLines)
		f.Ways = append(f.Ways, f.Redis.NewWay())
		o.Redis = f.Ways[i].URL()
		g := Unstarted(t, o)
		f.Relays = append(f.Relays, NewRelay(t, g.Addr()))
		g.Opts.Advertise = f.Relays[i].Port()
		g.Write(g.Caddyfile())
		f.Gateways = append(f.Gateways, g)
	}
	f.Gateways[0].Start()
	for _, g := range f.Gateways[1:] {
		g.Launch()
	}
	for _, g := range f.Gateways[1:] {
		g.Await()
	}
	f.Meet()
	return f
}

// PeerRow is a gateway in a row of /fairway/status.
type PeerRow struct {
	Gateway, State string
	Serves, Uses   bool
	LagMS          int64 `json:"lag_ms"`
}

// StatusRow is a row of /fairway/status.
type StatusRow struct {
	Gateway string
	Epoch   uint64
	Store   struct {
		Type, Where string
		Up          bool
		LagMS       int64 `json:"lag_ms"`
	}
	Gateways []PeerRow
	Runs     int `json:"runs_in_flight"`
}

// Status is the gateway's own; nil when it does not answer.
func (g *Gateway) Status() *StatusRow {
	var rows []StatusRow
	if g.AdminGet("/fairway/status", &rows) != nil || len(rows) != 1 {
		return nil
	}
	return &rows[0]
}

// Meet waits until every gateway that runs executes for every other.
func (f *Fleet) Meet() {
	g := f.Gateways[0]
	g.t.Helper()
	Eventually(g.t, 20*time.Second, "the gateways are connected", func() bool {
		for _, g := range f.Gateways {
			s := g.Status()
			if s == nil || len(s.Gateways) != len(f.Gateways) {
				return false
			}
			for _, p := range s.Gateways {
				if p.Gateway != s.Gateway && !(p.Serves && p.Uses && p.State == "alive") {
					return false
				}
			}
		}
		return true
	})
}
