package gateway

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
)

// corsPolicy is which browser origins may call. The gateway owns this: neither an Origin nor an Access-Control header ever travels.
type corsPolicy struct {
	any      bool
	origins  []string
	open     bool // no key is asked for (a browser sends a login by itself), so an origin that is not allowed must be refused, not just left without headers
	loopback bool
}

func newCORSPolicy(o Options) corsPolicy {
	p := corsPolicy{open: o.Auth != AuthKey, loopback: o.Loopback}
	for _, c := range o.CORS {
		if c == "*" {
			p.any = true
		}
		p.origins = append(p.origins, strings.ToLower(strings.TrimSuffix(c, "/")))
	}
	return p
}

func (p *corsPolicy) allows(origin string) bool {
	return p.any || slices.Contains(p.origins, strings.ToLower(origin))
}

// localSchemes are what desktop programs and editors send; Ollama trusts them too.
var localSchemes = []string{"app", "file", "tauri", "vscode-webview", "vscode-file"}

// local reports whether origin is one that a server without a key may trust: a program of this machine, or the page's own host. A page of a name that
// was rebound to loopback also claims its own host, so on a loopback listener that counts only for local names.
func (p *corsPolicy) local(origin, host string) bool {
	u, err := url.Parse(origin)
	if err != nil {
		return false
	}
	if slices.Contains(localSchemes, u.Scheme) {
		return true
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return false
	}
	if isLocalHost(u.Hostname()) {
		return true
	}
	return strings.EqualFold(u.Host, host) && !p.loopback
}

func isLocalHost(h string) bool {
	if h == "localhost" || strings.HasSuffix(h, ".localhost") {
		return true
	}
	a, err := netip.ParseAddr(h)
	return err == nil && (a.IsLoopback() || a.IsUnspecified())
}

// checkOrigin answers preflights, refuses origins that may not call, and sets the headers of those that may. done: the request is answered.
func (x *exchange) checkOrigin() (done bool, err error) {
	if x.h.opts.LocalHost && !localName(x.r.Host) {
		return true, fail(codeForbidden, "this site has no key and serves local host names only; add a key, or write auth none")
	}
	p, head := &x.h.cors, x.w.Header()
	origin := x.r.Header.Get("Origin")
	preflight := x.r.Method == http.MethodOptions
	if origin == "" {
		if preflight && x.match.Endpoint == nil && x.match.Status == http.StatusMethodNotAllowed {
			head.Set("Allow", x.match.Allow)
			x.empty()
			return true, nil
		}
		return false, nil
	}
	if len(p.origins) > 0 {
		head.Add("Vary", "Origin")
	}
	if !p.allows(origin) {
		if preflight || (p.open && !p.local(origin, hostOf(x.r))) {
			return true, fail(codeForbidden, "origin is not allowed; see the cors option")
		}
		return false, nil
	}
	if p.any {
		head.Set("Access-Control-Allow-Origin", "*")
	} else {
		head.Set("Access-Control-Allow-Origin", origin)
	}
	if !preflight {
		head.Set("Access-Control-Expose-Headers", strings.Join([]string{headerRun, headerSession, headerError, headerNode, "Retry-After"}, ", "))
		return false, nil
	}
	head.Add("Vary", "Access-Control-Request-Method, Access-Control-Request-Headers")
	head.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE, OPTIONS")
	if names := x.r.Header.Get("Access-Control-Request-Headers"); validHeaderList(names) {
		head.Set("Access-Control-Allow-Headers", names)
	}
	head.Set("Access-Control-Max-Age", "43200") // as Ollama
	x.empty()
	return true, nil
}

// hostOf returns the request's host with its port, if any.
func hostOf(r *http.Request) string {
	if h, port, err := net.SplitHostPort(r.Host); err == nil && (port == "80" || port == "443") {
		return h
	}
	return r.Host
}

func validHeaderList(s string) bool {
	if s == "" || len(s) > 4<<10 {
		return false
	}
	for name := range strings.SplitSeq(s, ",") {
		if !validHeaderName(strings.TrimSpace(name)) {
			return false
		}
	}
	return true
}

// localName reports whether a Host is one that an Ollama on loopback takes: none, an address that is not public, or a name that no public
// DNS resolves.
func localName(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	if a, err := netip.ParseAddr(host); err == nil {
		return a.IsLoopback() || a.IsPrivate() || a.IsUnspecified() || a.IsLinkLocalUnicast()
	}
	if host == "" || host == "localhost" {
		return true
	}
	if own, err := os.Hostname(); err == nil && strings.EqualFold(own, host) {
		return true
	}
	for _, suffix := range []string{".localhost", ".local", ".internal"} {
		if strings.HasSuffix(host, suffix) {
			return true
		}
	}
	return false
}
