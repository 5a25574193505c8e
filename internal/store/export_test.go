package store

import "time"

// NewRedisAt makes a store with another budget, for machines that are busy with tests, and with a clock of the test's if
// now is not nil: then every script is given the time, where those of production ask the server.
func NewRedisAt(o RedisOptions, budget time.Duration, now func() time.Time) (*Redis, error) {
	return newRedis(o, budget, now)
}

// Mind is what a store believes of its server.
type Mind struct {
	Known            bool
	Data, Line       string
	Episode, Vouched uint64
}

func (r *Redis) Mind() Mind {
	p := &r.primary
	p.mu.Lock()
	defer p.mu.Unlock()
	return Mind{p.known, p.data, p.line, p.episode, p.vouched}
}

func (r *Redis) SetMind(m Mind) {
	p := &r.primary
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known, p.data, p.line, p.episode, p.vouched = m.Known, m.Data, m.Line, m.Episode, m.Vouched
}

// Reconnected is a new connection to a server of that replication id.
func (r *Redis) Reconnected(line string) { r.primary.met(serverInfo{"master_replid": line}) }

// Primary is what a store knows of its server's data.
type Primary = primary

func (p *primary) Met(line string) { p.met(serverInfo{"master_replid": line}) }
func (p *primary) Beat(data, line string) string {
	return p.beat(data, serverInfo{"master_replid": line})
}
func (p *primary) Episode() uint64            { return p.now() }
func (p *primary) Vouch(episode uint64) error { return p.vouch(episode) }
func (p *primary) Doubt() error               { return p.doubt() }

// CheckServer judges what INFO has told.
func CheckServer(info string) error { return parseInfo(info).check() }

// Breaker is the breaker alone.
type Breaker = breaker

var NewBreaker = newBreaker

func (b *breaker) Allow() error     { return b.allow() }
func (b *breaker) Succeeded()       { b.succeeded() }
func (b *breaker) Failed(err error) { b.failed(err) }
func (b *breaker) Close()           { b.close() }

// In is a store in another namespace that shares r's connections and knows nothing. It is not closed.
func (r *Redis) In(prefix string, now func() time.Time) *Redis {
	base := "{" + prefix + "}:"
	in := &Redis{base: []string{base}, channel: base + "changed", budget: r.budget, scripts: r.scripts, now: now, breaker: r.breaker, observe: r.observe}
	in.connect = r.connect
	in.client.Store(r.client.Load())
	return in
}
