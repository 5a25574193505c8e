package fakeollama

import (
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
)

// run answers the call: the key that is asked for and faults first, then Ollama's rules, then its endpoints.
func (c *call) run() error {
	if !c.paid() {
		return c.fail(http.StatusUnauthorized, "unauthorized")
	}
	if c.fault == nil {
		c.fault = knobFault(c.body)
	}
	if c.fault != nil {
		return c.fault.run(c)
	}
	if answered, err := c.gatekeep(); answered {
		return err
	}
	return c.route()
}

// paid tells whether the call has the key, or needs none, as what only reads does.
func (c *call) paid() bool {
	c.s.mu.Lock()
	key := c.s.key
	c.s.mu.Unlock()
	if key == "" || c.rec.Method != http.MethodPost {
		return true
	}
	got := c.rec.Header("Authorization")
	return len(got) == 1 && got[0] == "Bearer "+key
}

// gatekeep is what Ollama's middleware and router do before an endpoint.
func (c *call) gatekeep() (bool, error) {
	p := c.rec.Path
	switch {
	case !c.s.opts.AnyHost && !hostAllowed(c.rec.Host),
		c.rec.Origin != "" && !originAllowed(c.rec.Origin):
		return true, c.head(http.StatusForbidden, 0)
	case c.rec.Method == http.MethodOptions:
		return true, c.head(http.StatusNoContent, 0,
			header{"Access-Control-Allow-Methods", "GET,POST,PUT,PATCH,DELETE,HEAD,OPTIONS"},
			header{"Access-Control-Allow-Headers", "Authorization,Content-Type"})
	case strings.Contains(p, "//"):
		for strings.Contains(p, "//") {
			p = strings.ReplaceAll(p, "//", "/")
		}
		return true, c.head(http.StatusMovedPermanently, 0, header{"Location", p})
	case p != "/" && strings.HasSuffix(p, "/") && !strings.HasPrefix(p, "/v1/models"):
		status := http.StatusTemporaryRedirect
		if c.rec.Method == http.MethodGet {
			status = http.StatusMovedPermanently
		}
		return true, c.head(status, 0, header{"Location", strings.TrimRight(p, "/")})
	case slices.Contains(c.s.opts.Without, p):
		return true, c.text(http.StatusNotFound, "404 page not found")
	}
	return false, nil
}

type endpoint struct {
	methods string // as Allow lists them
	serve   func(*call) error
}

var endpoints map[string]endpoint

func init() {
	endpoints = map[string]endpoint{
		"/":                    {"GET, HEAD", func(c *call) error { return c.text(200, "Ollama is running") }},
		"/api/version":         {"GET, HEAD", (*call).version},
		"/api/tags":            {"GET, HEAD", (*call).tags},
		"/api/ps":              {"GET", (*call).ps},
		"/v1/models":           {"GET", (*call).v1Models},
		"/api/show":            {"POST", (*call).show},
		"/api/pull":            {"POST", (*call).pull},
		"/api/create":          {"POST", (*call).create},
		"/api/copy":            {"POST", (*call).copyModel},
		"/api/delete":          {"DELETE", (*call).deleteModel},
		"/api/chat":            {"POST", (*call).infer},
		"/api/generate":        {"POST", (*call).infer},
		"/v1/chat/completions": {"POST", (*call).infer},
		"/v1/completions":      {"POST", (*call).infer},
		"/v1/responses":        {"POST", (*call).infer},
		"/v1/messages":         {"POST", (*call).infer},
		"/api/embed":           {"POST", (*call).infer},
		"/api/embeddings":      {"POST", (*call).infer},
		"/v1/embeddings":       {"POST", (*call).infer},
	}
}

func (c *call) route() error {
	p := c.rec.Path
	e, ok := endpoints[p]
	switch {
	case strings.HasPrefix(p, "/v1/models/"):
		e, ok = endpoint{"GET", (*call).v1Model}, true
	case strings.HasPrefix(p, "/api/blobs/"):
		e, ok = endpoint{"HEAD, POST", (*call).blob}, true
	}
	switch {
	case !ok:
		return c.text(http.StatusNotFound, "404 page not found")
	case !slices.Contains(strings.Split(e.methods, ", "), c.rec.Method):
		return c.text(http.StatusMethodNotAllowed, "405 method not allowed", header{"Allow", e.methods})
	}
	return e.serve(c)
}

// hostAllowed is Ollama's rule on loopback: an empty or local name, or an
// address of this machine or a private network; the port does not matter.
func hostAllowed(h string) bool {
	u := url.URL{Host: h}
	name := strings.ToLower(u.Hostname())
	if name == "" || name == "localhost" {
		return true
	}
	for _, suffix := range []string{".localhost", ".local", ".internal"} {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	if ip, err := netip.ParseAddr(name); err == nil {
		return ip.IsLoopback() || ip.IsPrivate() || ip.IsUnspecified()
	}
	own, err := os.Hostname()
	return err == nil && name == strings.ToLower(own)
}

// originAllowed is Ollama's default list.
func originAllowed(o string) bool {
	u, err := url.Parse(o)
	if err != nil {
		return false
	}
	switch u.Scheme {
	case "app", "file", "tauri", "vscode-webview", "vscode-file":
		return true
	case "http", "https":
		return slices.Contains([]string{"localhost", "127.0.0.1", "0.0.0.0"}, u.Hostname())
	}
	return false
}
