package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// parseListen reads the address for nodes in its one spelling, which is the hub's
// key: network, host in lower case, one port.
func parseListen(v string) (caddy.NetworkAddress, error) {
	na, err := caddy.ParseNetworkAddressWithDefaults(v, "udp", defaultPort)
	if err != nil {
		return na, fmt.Errorf("'%s' is not an address: %w", v, err)
	}
	switch {
	case na.Network != "udp" && na.Network != "udp4" && na.Network != "udp6":
		return na, fmt.Errorf("'%s' is on network %s: nodes dial in over UDP, want [udp/][HOST]:PORT", v, na.Network)
	case na.PortRangeSize() != 1:
		return na, fmt.Errorf("'%s' is a range of ports: want one", v)
	case na.Host != "" && strings.Trim(na.Host, "0123456789") == "":
		return na, fmt.Errorf("'%s' is not an address: want [HOST]:PORT, such as :%s", v, na.Host)
	}
	na.Host = strings.ToLower(na.Host)
	return na, nil
}

func checkListen(v string) error {
	_, err := parseListen(v)
	return err
}

// listenUDP opens the socket for its process alone. Caddy's own Listen would set
// SO_REUSEPORT, with which a second process of the same user takes packets away
// in silence.
func listenUDP(ctx context.Context, na caddy.NetworkAddress) (net.PacketConn, error) {
	var lc net.ListenConfig
	pc, err := lc.ListenPacket(ctx, na.Network, na.JoinHostPort(0))
	if err != nil {
		if other := portHolder(na); other != "" {
			return nil, fmt.Errorf("%w; the gateway on %s in this process holds the port until it has ended: "+
				"moving between addresses of one port needs a restart of Caddy, or give listen another port", err, other)
		}
	}
	return pc, err
}

// portHolder is the address of another hub of this process on na's port, empty if
// there is none.
func portHolder(na caddy.NetworkAddress) (listen string) {
	hubs.Range(func(key, value any) bool {
		h, ok := value.(*sharedHub)
		if !ok || key == na.String() {
			return true
		}
		_, port, err := net.SplitHostPort(h.listen)
		if err == nil && port == fmt.Sprint(na.StartPort) {
			listen = h.listen
		}
		return listen == ""
	})
	return listen
}

// checkPort refuses a port that one of this config's HTTP/3 servers listens on too:
// one socket of the two would get the other's packets, or none. The http app sets
// SO_REUSEPORT and opens its sockets before or after us, so that the system's own
// error would not say what is wrong. Every app is provisioned by now.
func (a *App) checkPort() error {
	mod, err := a.ctx.AppIfConfigured("http")
	if errors.Is(err, caddy.ErrNotConfigured) {
		return nil
	}
	if err != nil {
		return err
	}
	app, ok := mod.(*caddyhttp.App)
	if !ok {
		return nil
	}
	httpPort := uint(caddyhttp.DefaultHTTPPort)
	if app.HTTPPort > 0 {
		httpPort = uint(app.HTTPPort)
	}
	for name, srv := range app.Servers {
		for i, addr := range srv.Listen {
			na, err := caddy.ParseNetworkAddress(addr)
			if err != nil || !servesHTTP3(srv, i) {
				continue
			}
			if clash(a.values.listen, na, httpPort) {
				return fmt.Errorf("UDP port %d is wanted twice: by fairway's listen %s and by HTTP/3 of the server %s on %s; "+
					"give listen another port, or take h3 from that server's protocols",
					a.values.listen.StartPort, a.values.listen.JoinHostPort(0), name, addr)
			}
		}
	}
	return nil
}

// servesHTTP3 follows what the http app does in Start.
func servesHTTP3(srv *caddyhttp.Server, i int) bool {
	protocols := srv.Protocols
	if i < len(srv.ListenProtocols) && srv.ListenProtocols[i] != nil {
		protocols = srv.ListenProtocols[i]
	}
	return slices.Contains(protocols, "h3") && len(srv.TLSConnPolicies) > 0
}

// clash tells whether a server's address, unless it is the plain HTTP port, holds
// the port of ours on an interface that ours covers too.
func clash(ours, theirs caddy.NetworkAddress, httpPort uint) bool {
	if theirs.IsUnixNetwork() || theirs.IsFdNetwork() || ours.StartPort == 0 || ours.StartPort == httpPort {
		return false
	}
	if ours.StartPort < theirs.StartPort || ours.StartPort > theirs.EndPort {
		return false
	}
	x, y := bindHost(ours.Host), bindHost(theirs.Host)
	return x == "" || y == "" || x == y
}

// bindHost is a listener's host in one spelling; a wildcard is empty.
func bindHost(host string) string {
	if strings.EqualFold(host, "localhost") {
		return "127.0.0.1"
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	switch {
	case ip == nil:
		return host
	case ip.IsUnspecified():
		return ""
	}
	return ip.String()
}
