package caddymodule

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/fairway-edge/fairway/caddymodule/internal/gateway"
)

func TestListenHasOneSpelling(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"127.0.0.1:4433":     "udp/127.0.0.1:4433",
		"udp/127.0.0.1:4433": "udp/127.0.0.1:4433",
		"127.0.0.1":          "udp/127.0.0.1:4433",
		":4433":              "udp/:4433",
		"LOCALHOST:4433":     "udp/localhost:4433",
		"[::1]:4433":         "udp/[::1]:4433",
		"udp6/:4433":         "udp6/:4433",
	} {
		if na, err := parseListen(in); err != nil || na.String() != want {
			t.Errorf("%s: got %s, %v, want %s", in, na, err, want)
		}
	}
	for _, in := range []string{"tcp/:4433", "unix//run/x", "udp/:1-2", ":70000", "fd/3", "4433"} {
		if na, err := parseListen(in); err == nil {
			t.Errorf("%s: got %s", in, na)
		}
	}
}

func TestClash(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ours, theirs string
		want         bool
	}{
		{":8443", ":8443", true},
		{"127.0.0.1:8443", ":8443", true},
		{":8443", "127.0.0.1:8443", true},
		{"127.0.0.1:8443", "localhost:8443", true},
		{"127.0.0.1:8443", "192.0.2.1:8443", false},
		{":8443", ":8440-8450", true},
		{":8443", ":8444", false},
		{"[::]:8443", "0.0.0.0:8443", true},
		{":8443", "unix//run/x", false},
		{":80", ":80", false}, // no TLS, so no HTTP/3, on the HTTP port
		{":0", ":0", false},
	} {
		ours, err := parseListen(c.ours)
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := caddy.ParseNetworkAddress(c.theirs)
		if err != nil {
			t.Fatal(err)
		}
		if got := clash(ours, theirs, 80); got != c.want {
			t.Errorf("%s and %s: got %t", c.ours, c.theirs, got)
		}
	}
}

func TestOnLoopback(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string]bool{
		"127.0.0.1:80": true, "127.9.9.9:80": true, "[::1]:80": true, "localhost:80": true, "unix//run/x": true,
		":80": false, "0.0.0.0:80": false, "192.0.2.1:80": false, "example.com:80": false, "fd/3": false, "": false,
		"127.0.0.1:80 :80": false, "127.0.0.1:80 [::1]:80": true,
	} {
		if got := onLoopback(&caddyhttp.Server{Listen: strings.Fields(listen)}); got != want {
			t.Errorf("%s: got %t", listen, got)
		}
	}
	if onLoopback(nil) {
		t.Error("an unknown server is taken for loopback")
	}
}

func TestRedact(t *testing.T) {
	t.Parallel()
	const key = "sk-test-alpha-0001"
	log := accessLog{keys: []gateway.Key{{Principal: "alice", Hash: gateway.HashKey(key)}}}
	for _, c := range []struct{ url, header, value, want string }{
		{"/k/" + key + "/api/tags", "Referer", "http://x/k/" + key + "/", "/k/REDACTED/api/tags"},
		{"/n/gpu/k/" + key + "/api/tags?a=" + key, "X-Custom", "Key " + key, "/n/gpu/k/REDACTED/api/tags?a=REDACTED"},
		{"//k//" + key + "/api/tags", "Cookie", key, "/k/REDACTED/api/tags"},
		{"/k/sk%2dtest-alpha-0001", "X-Custom", key, "/k/REDACTED"},
		{"/ollama/k/" + key, "X-Api-Key", "another", "/ollama/k/REDACTED"},
		{"/api/tags", "X-Api-Key", key, "/api/tags"},
		{"/api/tags", "Api-Key", "another", "/api/tags"},
		{"/api/tags", "Referer", "http://x/k/" + key + "/", "/api/tags"},
		{"/api/tags", "Referer", "http://x/?a=1&api_key=another-alpha", "/api/tags"},
		{"/api/tags", "X-Forwarded-Uri", "/n/gpu/k/" + key + "/api/tags", "/api/tags"},
		{"/api/tags?x=alpha-9", "X-Authorization", "Bearer alpha-9", "/api/tags?x=REDACTED"},
		{"/api/tags", "X-Auth-Token", "a", "/api/tags"},
		{"/api/tags?key=" + key, "X-Custom", key, "/api/tags?key=REDACTED"},
		{"/api/tags?a=1&Api-Key=another-alpha&b=", "Referer", "http://x/?api_key=another-alpha", "/api/tags?a=1&Api-Key=REDACTED&b="},
		{"/api/tags?%6bey=alpha&access_token=1", "User-Agent", "curl/1", "/api/tags?%6bey=REDACTED&access_token=REDACTED"},
		{"/api/tags?x=sk%2dtest-alpha-0001", "X-Custom", key, "/api/tags?x=REDACTED"},
	} {
		r := httptest.NewRequest(http.MethodGet, c.url, nil)
		r.Header.Set(c.header, c.value)
		keys, shows := log.shownKeys(r)
		if !shows {
			t.Errorf("%s: no key seen", c.url)
		}
		got := log.redact(r, keys)
		if got.RequestURI != c.want {
			t.Errorf("%s: got %s, want %s", c.url, got.RequestURI, c.want)
		}
		if v := got.Header.Get(c.header); strings.Contains(v, "alpha") || v == "another" || v == "a" {
			t.Errorf("%s: %s: %s", c.url, c.header, v)
		}
		if r.Header.Get(c.header) != c.value || !strings.Contains(r.RequestURI, "/") {
			t.Error("the request itself was changed")
		}
	}
	for _, plain := range []string{"/api/kv/x", "/api/tags?key=&monkey=x&tokens=1"} {
		r := httptest.NewRequest(http.MethodGet, plain, nil)
		r.Header.Set("Referer", "http://x/api/kv?monkey=x")
		if keys, shows := log.shownKeys(r); shows {
			t.Errorf("keys in %s: %v", plain, keys)
		}
	}
}
