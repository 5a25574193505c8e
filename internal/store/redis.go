package store

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	// callBudget bounds a call, from the wait for a connection to the last byte of the answer.
	callBudget = 300 * time.Millisecond
	// poolSize bounds the connections of a gateway. A call takes well under a millisecond, so few are in use at once.
	poolSize = 16
	// defaultPrefix is that of one fleet that has the server to itself.
	defaultPrefix = "fairway"
)

// RedisOptions say where the fleet's Redis is: one server, version 7 or later, or one that Sentinels watch.
type RedisOptions struct {
	// URL is redis://[USER:PASSWORD@]HOST[:PORT][/DB], or
	// redis-sentinel://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]]…/MASTER[/DB] with the Sentinels' addresses and the name
	// that they know the server by; rediss for TLS, also to the Sentinels. The user is one of the server.
	URL string
	// SentinelUsername and SentinelPassword are for Sentinels that ask for them.
	SentinelUsername, SentinelPassword string
	// TLS is for rediss. Nil trusts the system's roots. The server's name is taken from the address unless it is set here.
	TLS *tls.Config
	// Prefix begins every key: one for each fleet, [A-Za-z0-9._-], at most 64 bytes. Empty is "fairway".
	Prefix string
	// Observe, if set, is told how long each call took, by the name of its script. It must not block.
	Observe func(op string, took time.Duration)
	// Changed, if set, is told when calls begin to be refused (up is false, with the cause) and when they no longer are:
	// one at a time, and no call to the store waits for it.
	Changed func(up bool, err error)
}

// String keeps the URL's password out of what is printed.
func (o RedisOptions) String() string {
	t, err := parseURL(o.URL)
	if err != nil {
		return "redis: no valid URL"
	}
	return t.String()
}

// GoString is String.
func (o RedisOptions) GoString() string { return o.String() }

// Redis is the store of a fleet. Every method is one script, run by the server as one step by its own clock, so that the
// gateways' clocks do not matter. A call that the server does not answer within 300 ms fails; after three of them in a row
// calls fail at once, until a probe finds it back.
//
// Nothing is tried again: a caller that gets ErrUnavailable does not know whether the change was made, and every method may
// be called again.
type Redis struct {
	base    []string // KEYS of every script
	channel string
	budget  time.Duration
	observe func(op string, took time.Duration)
	scripts map[op]*redis.Script
	now     func() time.Time // of tests; nil: the server's clock
	breaker *breaker
	watches watches

	client atomic.Pointer[redis.Client]

	aim     sync.Mutex           // held while another client is tried out, 300 ms at most
	options RedisOptions         // guarded by aim; those of connect
	connect func() *redis.Client // guarded by aim

	primary  primary
	attempts attempts
	sentinel bool // so replicas are expected
}

var _ Store = (*Redis)(nil)

var validPrefix = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

var quiet = sync.OnceFunc(logging.Disable)

// NewRedis makes a store. It does not connect: a server that is down is one that comes later. What it finds when it
// connects, a version or a setting that it cannot work with, fails the calls.
func NewRedis(o RedisOptions) (*Redis, error) {
	return newRedis(o, callBudget, nil)
}

func newRedis(o RedisOptions, budget time.Duration, now func() time.Time) (*Redis, error) {
	t, err := parseURL(o.URL)
	if err != nil {
		return nil, err
	}
	if o.Prefix == "" {
		o.Prefix = defaultPrefix
	}
	if err := CheckPrefix(o.Prefix); err != nil {
		return nil, err
	}
	// go-redis writes to standard error, a line for every connection that fails, and only as a whole can it be told not to.
	// What it has to say is in the errors.
	quiet()
	clock := serverClock
	if now != nil {
		clock = callersClock
	}
	base := "{" + o.Prefix + "}:"
	r := &Redis{
		base: []string{base}, channel: base + "changed", budget: budget, scripts: loadScripts(clock), now: now,
		sentinel: t.master != "",
	}
	r.observe = o.Observe
	if r.observe == nil {
		r.observe = func(string, time.Duration) {}
	}
	r.options, r.connect = o, func() *redis.Client { return r.newClient(t, &o) }
	r.client.Store(r.connect())
	changed := o.Changed
	if changed == nil {
		changed = func(bool, error) {}
	}
	r.breaker = newBreaker(r.probe, changed)
	r.watches.init()
	return r, nil
}

// connects reports whether p connects as o does.
func (o *RedisOptions) connects(p *RedisOptions) bool {
	if o.URL != p.URL || o.SentinelUsername != p.SentinelUsername || o.SentinelPassword != p.SentinelPassword || (o.TLS == nil) != (p.TLS == nil) {
		return false
	}
	return o.TLS == nil || o.TLS.ServerName == p.TLS.ServerName && o.TLS.RootCAs.Equal(p.TLS.RootCAs)
}

// Renew takes the credentials and TLS of o from now on, if the server takes them; else all stays as it was, and the error
// is ErrUnavailable. Where they are those in use nothing is asked. The server, the Sentinels and the prefix must be the same.
func (r *Redis) Renew(ctx context.Context, o RedisOptions) error {
	t, err := parseURL(o.URL)
	if err != nil {
		return err
	}
	changed, err := r.renew(ctx, t, &o)
	if err != nil || !changed {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*r.budget)
	defer cancel()
	return r.breaker.retry(ctx)
}

func (r *Redis) renew(ctx context.Context, t *target, o *RedisOptions) (changed bool, err error) {
	r.aim.Lock()
	defer r.aim.Unlock()
	if r.options.connects(o) {
		return false, nil
	}
	old, connect := r.client.Load(), func() *redis.Client { return r.newClient(t, o) }
	if err := r.try(ctx, connect()); err != nil {
		return false, err
	}
	r.options, r.connect = *o, connect
	old.Close() // calls under way fail: their callers ask again
	return true, nil
}

// CheckURL judges a URL, and CheckPrefix a prefix, before there is a store.
func CheckURL(url string) error {
	_, err := parseURL(url)
	return err
}

// CheckPrefix judges what keys are to begin with.
func CheckPrefix(prefix string) error {
	if !validPrefix.MatchString(prefix) {
		return fmt.Errorf("%q: want 1 to 64 letters, digits and ._-", prefix)
	}
	return nil
}

// newClient makes a client, which connects when it is first used. Nothing in it tries anything again: that is for those
// who know what they have asked for.
func (r *Redis) newClient(t *target, o *RedisOptions) *redis.Client {
	config := o.TLS
	switch {
	case !t.tls:
		config = nil
	case config == nil:
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	dial := dialer(r.budget, config)
	if t.master != "" {
		return redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: t.master, SentinelAddrs: t.addrs, SentinelUsername: o.SentinelUsername, SentinelPassword: o.SentinelPassword,
			Username: t.username, Password: t.password, DB: t.db,
			Dialer: dial, OnConnect: r.inspect, Protocol: 2, DisableIdentity: true,
			MaxRetries: -1, ContextTimeoutEnabled: true, DialTimeout: r.budget, DialerRetries: 1, ReadTimeout: r.budget, WriteTimeout: r.budget,
			PoolSize: poolSize, MaxActiveConns: poolSize, PipelinePoolSize: -1, PoolTimeout: r.budget,
		})
	}
	return redis.NewClient(&redis.Options{
		Addr: t.addrs[0], Username: t.username, Password: t.password, DB: t.db,
		Dialer: dial, OnConnect: r.inspect, Protocol: 2, DisableIdentity: true,
		MaxRetries: -1, ContextTimeoutEnabled: true, DialTimeout: r.budget, DialerRetries: 1, ReadTimeout: r.budget, WriteTimeout: r.budget,
		PoolSize: poolSize, MaxActiveConns: poolSize, PipelinePoolSize: -1, PoolTimeout: r.budget,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// dialer makes connections that end at once when they are closed: what the server has not taken by then it never gets. Else
// the system would go on to send for minutes, and a registration that its gateway has long given up could supersede the
// sessions of those that came after it. With a config it is TLS, and the certificate is checked for the address's host.
func dialer(timeout time.Duration, config *tls.Config) func(ctx context.Context, network, addr string) (net.Conn, error) {
	d := &net.Dialer{Timeout: timeout}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if tcp, ok := c.(*net.TCPConn); ok {
			err = tcp.SetLinger(0)
		}
		if config != nil && err == nil {
			own := config.Clone()
			if own.ServerName == "" {
				own.ServerName, _, err = net.SplitHostPort(addr)
			}
			secured := tls.Client(c, own)
			if err == nil {
				err = secured.HandshakeContext(ctx)
			}
			if err == nil {
				return secured, nil
			}
		}
		if err != nil {
			c.Close()
			return nil, err
		}
		return c, nil
	}
}

// probe tries a new client: the connections of the one before may each have to fail before they are found dead.
func (r *Redis) probe(ctx context.Context) error {
	r.aim.Lock()
	defer r.aim.Unlock()
	r.client.Load().Close() // who still waits on it need not
	return r.try(ctx, r.connect())
}

// try asks c for a write. If it is answered, c is the store's client. Its caller holds aim.
func (r *Redis) try(ctx context.Context, c *redis.Client) error {
	ctx, cancel := context.WithTimeout(ctx, r.budget)
	defer cancel()
	if _, err := r.run(ctx, c, opProbe, nil); err != nil {
		c.Close()
		return unavailable(err)
	}
	r.client.Store(c)
	return nil
}

// Close ends all connections. Calls after it fail.
func (r *Redis) Close() error {
	r.watches.close()
	r.breaker.close()
	if err := r.client.Load().Close(); err != nil && !errors.Is(err, redis.ErrClosed) { // an open breaker has closed it
		return fmt.Errorf("close the store: %w", err)
	}
	return nil
}

// Epoch implements [Sessions].
func (r *Redis) Epoch(ctx context.Context, gateway string) (uint64, error) {
	if err := named("gateway", gateway); err != nil {
		return 0, err
	}
	epoch, err := number(r.call(ctx, opEpoch, gateway))
	if err != nil {
		return 0, fmt.Errorf("begin epoch of gateway %s: %w", gateway, err)
	}
	return epoch, nil
}

// newName is a random name, for data or an attempt.
func newName() string { return rand.Text() }
