package rig

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Node is a fairway-node.
type Node struct {
	*Process
	g    *Gateway
	Name string
	Dir  string // state directory
	args []string
}

// NewNode joins a node to g by a token and waits until it is ready. Args are further flags of `fairway-node run`; without an --ollama
// among them it has the demo provider alone.
func (g *Gateway) NewNode(name string, args ...string) *Node {
	g.t.Helper()
	return g.NodeWith(name, g.JoinToken(name), args...)
}

// NodeWith is NewNode with a token that is there already.
func (g *Gateway) NodeWith(name, token string, args ...string) *Node {
	g.t.Helper()
	n := g.node(g.t, name, args...)
	n.start("--token", token)
	g.WaitNode(name, "ready")
	return n
}

// TryNode starts a node that may be turned away.
func (g *Gateway) TryNode(name string, args ...string) *Node {
	g.t.Helper()
	n := g.node(g.t, name, args...)
	n.start()
	return n
}

// NodeOf joins a node that serves the Ollama at url.
func (g *Gateway) NodeOf(name, url string, args ...string) *Node {
	g.t.Helper()
	return g.NewNode(name, append([]string{"--ollama", url}, args...)...)
}

func (g *Gateway) node(t testing.TB, name string, args ...string) *Node {
	t.Helper()
	if !strings.Contains(strings.Join(args, " "), "--ollama") {
		args = append(args, "--ollama", "off", "--demo", "on")
	}
	return &Node{g: g, Name: name, Dir: filepath.Join(t.TempDir(), "state"), args: args}
}

// JoinToken asks the gateway for a join token.
func (g *Gateway) JoinToken(name string, args ...string) string {
	g.t.Helper()
	out := g.Fairway(append([]string{"token", "--node", name}, args...)...)
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); strings.Count(line, ".") == 2 && strings.HasPrefix(line, "ey") {
			return line
		}
	}
	g.t.Fatalf("no token in %q", out)
	return ""
}

func (n *Node) start(extra ...string) {
	n.g.t.Helper()
	args := append([]string{"run", "--gateway", n.g.Addr(), "--state-dir", n.Dir, "--log-level", "debug"}, n.args...)
	n.Process = start(n.g.t, "node "+n.Name, nil, n.g.bins.Node, append(args, extra...)...)
}

// Restart starts the node again with its identity, after it has ended.
func (n *Node) Restart() { n.start() }

// Command returns the path of the node's binary.
func (n *Node) Command() string { return n.g.bins.Node }

// Clone starts a second process from a copy of the node's identity, as a cloned machine would.
func (g *Gateway) Clone(n *Node) *Node {
	g.t.Helper()
	twin := &Node{g: g, Name: n.Name, Dir: filepath.Join(g.t.TempDir(), "state"), args: n.args}
	if err := os.Mkdir(twin.Dir, 0o700); err != nil {
		g.t.Fatal(err)
	}
	files, err := os.ReadDir(n.Dir)
	if err != nil {
		g.t.Fatal(err)
	}
	for _, f := range files {
		if !f.Type().IsRegular() {
			continue // the status socket of the running one
		}
		b, err := os.ReadFile(filepath.Join(n.Dir, f.Name()))
		if err != nil {
			g.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(twin.Dir, f.Name()), b, 0o600); err != nil {
			g.t.Fatal(err)
		}
	}
	twin.start()
	return twin
}
