package nodeclient

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/fairway-edge/fairway/tunnel"
)

// Status is what a running node sees.
type Status struct {
	Node     string          `json:"node"` // empty until it has joined
	Version  string          `json:"version"`
	Gateways []GatewayStatus `json:"gateways"`
	Targets  []TargetStatus  `json:"targets"`
	Runs     int             `json:"runs"`
}

// GatewayStatus is one session, or the attempt to have one: one for each gateway, and one more while addresses are left of which it is not known whose
// they are.
type GatewayStatus struct {
	Addr       string    `json:"addr"`    // as the owner gave it
	Remote     string    `json:"remote"`  // the address of the session, or of the gateway that refuses this node; else empty
	Gateway    string    `json:"gateway"` // its name; empty without a session
	State      string    `json:"state"`   // connecting, registered, ready, draining, waiting, spare, refused, stopped
	Generation uint64    `json:"generation"`
	Lanes      int       `json:"lanes"`
	Since      time.Time `json:"since"` // of State
	LastError  string    `json:"last_error"`
}

// TargetStatus is one provider.
type TargetStatus struct {
	Name      string        `json:"name"`
	Adapter   string        `json:"adapter"`
	Reachable bool          `json:"reachable"`
	Locked    bool          `json:"locked"`     // lists its models only for a credential
	LastError string        `json:"last_error"` // why the last probe failed; empty if it did not
	Models    []string      `json:"models"`
	Credits   CreditsStatus `json:"credits"`
}

// CreditsStatus counts inference runs.
type CreditsStatus struct {
	Granted int `json:"granted"`
	Free    int `json:"free"`
}

// Ready tells whether at least one session is ready.
func (s Status) Ready() bool {
	for _, g := range s.Gateways {
		if g.State == stateReady {
			return true
		}
	}
	return false
}

// Status returns what the node sees now.
func (c *Client) Status() Status {
	s := Status{Version: c.cfg.Software, Runs: int(c.runs.Load()), Gateways: []GatewayStatus{}, Targets: []TargetStatus{}}
	if name := c.name.Load(); name != nil {
		s.Node = *name
	}
	for _, l := range c.links() {
		s.Gateways = append(s.Gateways, l.status()...)
	}
	for _, t := range c.targets {
		v := t.view()
		if v.withdrawn {
			continue
		}
		ts := TargetStatus{
			Name: t.name, Adapter: t.kind, Reachable: v.reachable, Locked: v.locked, LastError: t.lastError(), Models: []string{},
			Credits: CreditsStatus{Granted: t.credits.perTarget, Free: t.credits.perTarget - t.credits.inUse()},
		}
		for _, m := range v.Models {
			ts.Models = append(ts.Models, m.Name)
		}
		s.Targets = append(s.Targets, ts)
	}
	return s
}

// status returns where the link stands. While a gateway leaves, its session is what there is to see until the next one is there.
func (l *link) status() (rows []GatewayStatus) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leaving == nil || l.session != nil {
		g := GatewayStatus{Addr: l.addr, State: l.state, Since: l.since.UTC(), LastError: l.lastErr}
		g.of(l.session, l.remote)
		rows = append(rows, g)
	}
	if d := l.leaving; d != nil {
		g := GatewayStatus{Addr: l.addr, State: stateDraining, Since: d.since.UTC(), LastError: l.lastErr}
		g.of(d.session, d.remote)
		rows = append(rows, g)
	}
	return rows
}

// of fills in what a session is; there may be none.
func (g *GatewayStatus) of(s *tunnel.NodeSession, remote netip.AddrPort) {
	if remote.IsValid() {
		g.Remote = remote.String()
	}
	if s != nil {
		g.Gateway, g.Generation, g.Lanes = s.Gateway(), s.Generation(), 1
	}
}

// live tells whether the link has a session.
func (l *link) live() bool {
	s, _ := l.current()
	return s != nil
}

const (
	statusTimeout = 2 * time.Second
	maxStatus     = 8 << 20
)

// serveStatus answers whoever connects with the status as JSON: on a Unix socket in the state directory, or, where that cannot be, on a
// loopback port whose number and password stand in a file that only the owner reads. stop ends it.
func (c *Client) serveStatus(st *state) (stop func(), err error) {
	socket, port := filepath.Join(st.dir, socketFile), filepath.Join(st.dir, portFile)
	_, _ = os.Remove(socket), os.Remove(port) // of a process that was killed; the lock says that it is gone
	secret := ""
	ln, err := listenSocket(socket)
	if err != nil {
		secret = rand.Text()
		if ln, err = listenConfig.Listen(context.Background(), "tcp", "127.0.0.1:0"); err != nil {
			return nil, &StateError{Dir: st.dir, Err: fmt.Errorf("listening for `fairway-node status`: %w", err)}
		}
		if err := st.write(portFile, []byte(ln.Addr().String()+"\n"+secret+"\n")); err != nil {
			_ = ln.Close()
			return nil, &StateError{Dir: st.dir, Err: err}
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { c.answerStatus(conn, secret) })
		}
	})
	return func() {
		_ = ln.Close()
		_, _ = os.Remove(socket), os.Remove(port)
		wg.Wait()
	}, nil
}

var listenConfig net.ListenConfig

// listenSocket makes the socket for its owner alone; the directory, mode 0700, closes the moment before.
func listenSocket(path string) (net.Listener, error) {
	ln, err := listenConfig.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = ln.Close()
		return nil, err
	}
	return ln, nil
}

func (c *Client) answerStatus(conn net.Conn, secret string) {
	defer conn.Close() //nolint:errcheck // answered
	_ = conn.SetDeadline(time.Now().Add(statusTimeout))
	if secret != "" {
		line, err := bufio.NewReaderSize(conn, 256).ReadSlice('\n')
		if err != nil || strings.TrimSpace(string(line)) != secret {
			return
		}
	}
	s := c.Status()
	if err := json.NewEncoder(conn).Encode(&s); err != nil {
		c.log.Debug("answering status", zap.Error(err))
	}
}

// ErrNotRunning says that no node runs on the state directory.
var ErrNotRunning = errors.New("no node is running")

// ReadStatus asks the node that runs on dir.
func ReadStatus(ctx context.Context, dir string) (*Status, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	conn, err := dialStatus(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // only read
	_ = conn.SetDeadline(time.Now().Add(statusTimeout))
	s := new(Status)
	if err := json.NewDecoder(conn).Decode(s); err != nil {
		return nil, fmt.Errorf("reading the status of the node in %s: %w", dir, err)
	}
	return s, nil
}

func dialStatus(ctx context.Context, dir string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", filepath.Join(dir, socketFile))
	if err == nil {
		return conn, nil
	}
	data, readErr := os.ReadFile(filepath.Join(dir, portFile))
	if readErr != nil {
		if errors.Is(err, fs.ErrPermission) {
			return nil, err
		}
		return nil, fmt.Errorf("%w on the state directory %s", ErrNotRunning, dir)
	}
	addr, secret, _ := strings.Cut(strings.TrimSpace(string(data)), "\n")
	if conn, err = d.DialContext(ctx, "tcp", addr); err != nil {
		return nil, fmt.Errorf("%w on the state directory %s", ErrNotRunning, dir)
	}
	_, err = fmt.Fprintln(conn, secret)
	return conn, err
}
