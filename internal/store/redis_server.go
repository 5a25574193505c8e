package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// layout names the form of the keys and values in lua/prelude.lua.
const layout = "1"

// lagPause is how long after a replica has not kept up only those wait for it who must.
const lagPause = 5 * time.Second

// serverInfo is what INFO tells, as far as it matters.
type serverInfo map[string]string

func parseInfo(text string) serverInfo {
	info := serverInfo{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimRight(line, "\r\n"), ":"); ok {
			info[name] = value
		}
	}
	return info
}

func (i serverInfo) replicas() int {
	n, _ := strconv.Atoi(i["connected_slaves"])
	return n
}

// inspect looks at the server that a new connection leads to.
func (r *Redis) inspect(ctx context.Context, c *redis.Conn) error {
	text, err := c.Info(ctx, "server", "memory", "replication").Result()
	if err != nil {
		return fmt.Errorf("ask the server what it is: %w", err)
	}
	info := parseInfo(text)
	if info["redis_mode"] == "sentinel" {
		return nil
	}
	if err := info.check(); err != nil {
		return err
	}
	// The keys' form is that of the gateways which came first: of versions side by side the later one has to know it.
	form, err := c.Do(ctx, "set", r.base[0]+"layout", layout, "nx", "get").Text()
	if err != nil && !errors.Is(err, redis.Nil) {
		return fmt.Errorf("ask for the form of the data: %w", err)
	}
	if err == nil && form != layout {
		return fmt.Errorf("the data under the prefix has form %.20q, want %s: another version of Fairway uses it", form, layout)
	}
	r.primary.met(info)
	return nil
}

// check refuses a server that the store cannot rely on.
func (i serverInfo) check() error {
	if i["role"] != "master" {
		return errors.New("the server is a replica: what it knows may be old")
	}
	version := i["redis_version"]
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err != nil || n < 7 {
		return fmt.Errorf("the server is version %.20q, want 7 or later", version)
	}
	if p := i["maxmemory_policy"]; p != "" && p != "noeviction" && i["maxmemory"] != "0" {
		return fmt.Errorf("the server's maxmemory-policy is %.20q, want noeviction: it would forget revocations", p)
	}
	return nil
}

// primary is what is known of the server's data: which it is, whether it may have lost something since gateways last told
// it what they know, and whether anything follows it.
type primary struct {
	mu       sync.Mutex
	known    bool      // guarded by mu: whether there was a connection
	data     string    // guarded by mu: random name of the data, made when there was none; empty: not asked yet
	line     string    // guarded by mu: replication id of the server; another one after a failover or restart
	episode  uint64    // guarded by mu: how often either was another one than before
	vouched  uint64    // guarded by mu: the episode for which gateways have told what they know
	replicas int       // guarded by mu
	lagUntil time.Time // guarded by mu
}

// met is told of the server at the other end of a new connection.
func (p *primary) met(info serverInfo) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.see(p.data, info)
}

// see is called with mu held.
func (p *primary) see(data string, info serverInfo) {
	line := info["master_replid"]
	if p.known && (line != p.line || p.data != "" && data != p.data) {
		p.episode++
	}
	p.known, p.data, p.line, p.replicas = true, data, line, info.replicas()
}

// beat is told the name of the data, and gives the incarnation. It has the episode in it, so that it is another one also
// when a server is back that was another's for a while.
func (p *primary) beat(data string, info serverInfo) (incarnation string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.see(data, info)
	return fmt.Sprintf("%s.%s.%d", p.data, p.line, p.episode)
}

func (p *primary) now() (episode uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.episode
}

var errDoubt = fmt.Errorf("%w: the server may have lost data, which gateways have yet to tell it again", ErrUnavailable)

// vouch says that the server was told all that it may have lost, since an episode began. It fails when another has begun.
func (p *primary) vouch(episode uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if episode != p.episode {
		return errDoubt
	}
	p.vouched = episode
	return nil
}

// doubt is nil unless the server may lack a revocation or a registration that it has confirmed before.
func (p *primary) doubt() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.vouched != p.episode {
		return errDoubt
	}
	return nil
}

func (p *primary) replication() (met bool, replicas int, lagging bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known, p.replicas, time.Now().Before(p.lagUntil)
}

func (p *primary) lagged(is bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lagUntil = time.Time{}
	if is {
		p.lagUntil = time.Now().Add(lagPause)
	}
}
