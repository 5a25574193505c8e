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

// eachAddress tries the addresses of a gateway in turn, until try succeeds or refuses for good.
func (look lookup) eachAddress(ctx context.Context, gateway string, try func(context.Context, netip.AddrPort) error) error {
	addrs, err := look.resolve(ctx, gateway)
	if err != nil {
		return err
	}
	return tryEach(ctx, addrs, try)
}

// tryEach tries addresses in turn until try succeeds or refuses for good. That a gateway is another link's is no failure: it is errTaken when nothing else
// was wrong.
func tryEach(ctx context.Context, addrs []netip.AddrPort, try func(context.Context, netip.AddrPort) error) error {
	var errs []error
	taken := false
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
		if errors.Is(err, errTaken) {
			taken = true
			continue
		}
		errs = append(errs, err)
	}
	if len(errs) == 0 && taken {
		return errTaken
	}
	return errors.Join(errs...)
}

// errNowhere says that other links look after all addresses that the name has.
var errNowhere = errors.New("no address that is not another session's")

// dial opens and registers a session with a gateway of which no other link has one.
func (l *link) dial(ctx context.Context, id *pki.Identity, v *vault, events tunnel.Events) (s *tunnel.NodeSession, err error) {
	addrs, err := l.e.resolve(ctx)
	if err == nil {
		if addrs = l.e.open(l, addrs); len(addrs) == 0 {
			err = errNowhere
		} else {
			l.set(stateConnecting, nil, nil)
			err = tryEach(ctx, addrs, func(ctx context.Context, addr netip.AddrPort) error {
				s, err = l.try(ctx, addr, id, v, events)
				return err
			})
		}
	}
	l.noteSilence(err)
	return s, l.otherFleet(id, err)
}

// try dials one address.
func (l *link) try(ctx context.Context, addr netip.AddrPort, id *pki.Identity, v *vault, events tunnel.Events) (*tunnel.NodeSession, error) {
	l.at, l.seat = addr, pki.ID{}
	s, err := tunnel.Dial(ctx, tunnel.DialConfig{
		Identity: id, Addr: net.UDPAddrFromAddrPort(addr), Register: l.register(id, v), Handler: v, Events: events,
		Accept: func(gateway pki.ID) error {
			l.e.met(addr, gateway)
			if err := l.c.seats.take(gateway, l); err != nil {
				return err
			}
			l.seat = gateway
			return nil
		},
	})
	if err == nil {
		l.good = addr
		l.e.settle(l, addr, l.seat)
		return s, nil
	}
	l.c.seats.release(l.seat, l)
	if isDuplicate(err) && !l.e.wasIn.Load() {
		// A second process of the same name is refused when it starts, by all addresses at once, while a node that was there before tries on.
		return nil, &FinalError{Err: err}
	}
	if !errors.Is(err, errTaken) && !errors.Is(ctx.Err(), context.Canceled) {
		l.e.missed(addr)
	}
	return nil, err
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
	if !noAnswer(err) || !l.wasUp && l.e.served(l) { // one more address of a gateway that is reached, or a gateway that may be away: complain says it
		l.silentSince, l.saidBlocked = time.Time{}, false
		return
	}
	if l.saidBlocked || time.Since(l.silentSince) < blockedAfter {
		return
	}
	l.saidBlocked = true
	l.log.Warn("UDP to "+l.addr+" looks blocked: no answer for "+time.Since(l.silentSince).Round(time.Second).String()+
		". Check that the gateway runs and listens on that UDP port, and that firewalls on both sides let UDP through (out of here, and in there). Trying on.",
		l.which(), zap.Error(err))
}
