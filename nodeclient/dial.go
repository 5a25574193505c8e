package nodeclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/tunnel"
)

// Bounds of a dial. While there is another address to try, one gets 4 s, so that a black-holed IPv6 costs no more; the last one gets QUIC's
// own time for a handshake (5 s) and the gateway's to probe an older instance (2 s).
const (
	resolveTimeout = 5 * time.Second
	dialTimeout    = 4 * time.Second
	lastDial       = 10 * time.Second
	// blockedAfter is the silence after which a firewall is the likely cause. Two dials have failed by then.
	blockedAfter = 8 * time.Second
)

// lookup resolves a name, as net.Resolver.LookupNetIP does.
type lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)

// resolve returns the addresses of a gateway, families alternating. It is asked anew for each dial: a gateway may move.
func (look lookup) resolve(ctx context.Context, gateway string) ([]netip.AddrPort, error) {
	host, portText, err := net.SplitHostPort(gateway)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	ips, err := look(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("resolving %s: %w", host, err)
	}
	addrs := make([]netip.AddrPort, 0, len(ips))
	for _, ip := range alternate(ips) {
		addrs = append(addrs, netip.AddrPortFrom(ip, uint16(port)))
	}
	return addrs, nil
}

// alternate orders addresses so that the families take turns, beginning with the resolver's first (RFC 8305, section 4).
func alternate(ips []netip.Addr) []netip.Addr {
	var first, second []netip.Addr
	for _, ip := range ips {
		ip = ip.Unmap()
		if len(first) == 0 || ip.Is4() == first[0].Is4() {
			first = append(first, ip)
		} else {
			second = append(second, ip)
		}
	}
	out := make([]netip.Addr, 0, len(ips))
	for i := range max(len(first), len(second)) {
		if i < len(first) {
			out = append(out, first[i])
		}
		if i < len(second) {
			out = append(out, second[i])
		}
	}
	return slices.Compact(out)
}

// eachAddress tries the addresses of a gateway in turn, prefer first if it is among them, until try succeeds or refuses for good.
func (look lookup) eachAddress(ctx context.Context, gateway string, prefer netip.AddrPort, try func(context.Context, netip.AddrPort) error) error {
	addrs, err := look.resolve(ctx, gateway)
	if err != nil {
		return err
	}
	if i := slices.Index(addrs, prefer); i > 0 {
		addrs = slices.Insert(slices.Delete(addrs, i, i+1), 0, prefer)
	}
	var errs []error
	for i, addr := range addrs {
		limit := dialTimeout
		if i == len(addrs)-1 {
			limit = lastDial
		}
		one, cancel := context.WithTimeout(ctx, limit)
		err := try(one, addr)
		cancel()
		if err == nil || isFinal(err) || ctx.Err() != nil {
			return err
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// dial opens and registers a session.
func (l *link) dial(ctx context.Context, id *pki.Identity, v *vault, events tunnel.Events) (s *tunnel.NodeSession, err error) {
	err = l.c.lookup.eachAddress(ctx, l.addr, l.good, func(ctx context.Context, addr netip.AddrPort) error {
		s, err = tunnel.Dial(ctx, tunnel.DialConfig{
			Identity: id, Addr: net.UDPAddrFromAddrPort(addr), Register: l.register(id, v), Handler: v, Events: events,
		})
		if err == nil {
			l.good = addr
		}
		return err
	})
	l.noteSilence(err)
	return s, l.otherFleet(id, err)
}

// otherFleet says what it means that this node does not trust the gateway's certificate, and what to do. Other errors pass unchanged.
func (l *link) otherFleet(id *pki.Identity, err error) error {
	var ce *tunnel.CloseError
	if !errors.As(err, &ce) || ce.Remote || ce.Code != tunnel.CloseIdentity || !strings.Contains(ce.Reason, "refused: "+pki.ReasonUntrusted) {
		return err
	}
	if l.c.cfg.StateDir == "" {
		return fmt.Errorf("the gateway's certificate is not of this node's fleet: %w", err)
	}
	return fmt.Errorf("the gateway's certificate is not of this node's fleet; if the gateway's storage is new, so that it has another CA, move the state directory %s "+
		"away and join with a new token, `caddy fairway token --node %s`: %w", l.c.cfg.StateDir, id.ID.Name, err)
}

func (l *link) register(id *pki.Identity, v *vault) *tunnel.Register {
	r := &tunnel.Register{
		Node: id.ID.Name, Instance: l.c.instance, Watermark: l.c.marks.of(l.addr), Software: l.c.cfg.Software, Labels: l.c.cfg.Labels,
		RecipientKey: v.key(),
	}
	for _, t := range l.c.targets {
		r.Adapters = append(r.Adapters, &tunnel.Adapter{Target: t.name, Kind: t.kind})
	}
	return r
}

// noAnswer tells whether a dial failed because nothing came back at all.
func noAnswer(err error) bool {
	return errors.Is(err, tunnel.ErrUDPBlocked) || errors.Is(err, context.DeadlineExceeded)
}

// noteSilence says once per outage, in one line, that UDP is likely blocked.
func (l *link) noteSilence(err error) {
	if !noAnswer(err) {
		l.silentSince, l.saidBlocked = time.Time{}, false
		return
	}
	if l.saidBlocked || time.Since(l.silentSince) < blockedAfter {
		return
	}
	l.saidBlocked = true
	l.log.Warn("UDP to "+l.addr+" looks blocked: no answer for "+time.Since(l.silentSince).Round(time.Second).String()+
		". Check that the gateway runs and listens on that UDP port, and that firewalls on both sides let UDP through (out of here, and in there). Trying on.",
		zap.Error(err))
}
