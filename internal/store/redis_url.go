package store

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// target is what a URL names. No error of parsing quotes the URL: it may hold a password, in the wrong place even.
type target struct {
	addrs              []string // of the server, or of the Sentinels
	master             string   // the name that Sentinels know the server by; empty: no Sentinels
	tls                bool
	username, password string
	db                 int
}

var errURL = errors.New("store URL: want redis://[USER:PASSWORD@]HOST[:PORT][/DB] or " +
	"redis-sentinel://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]]…/MASTER[/DB], or the same with rediss for TLS; " +
	"in user and password everything but letters, digits and ._~- is percent-encoded")

// parseURL reads the URL of a store. It takes no parameters: what a URL could set, this package has decided.
func parseURL(text string) (*target, error) {
	scheme, rest, ok := strings.Cut(text, "://")
	scheme, sentinel := strings.CutSuffix(scheme, "-sentinel")
	if !ok || scheme != "redis" && scheme != "rediss" || strings.ContainsAny(rest, "?# \t\r\n") {
		return nil, errURL
	}
	t := &target{tls: scheme == "rediss"}
	hosts, path, _ := strings.Cut(rest, "/")
	if user, after, is := strings.Cut(hosts, "@"); is {
		hosts = after
		name, password, _ := strings.Cut(user, ":")
		var err1, err2 error
		t.username, err1 = url.PathUnescape(name)
		t.password, err2 = url.PathUnescape(password)
		if err1 != nil || err2 != nil {
			return nil, errURL
		}
	}
	port := "6379"
	if sentinel {
		port = "26379"
		if t.master, path, _ = strings.Cut(path, "/"); t.master == "" {
			return nil, errURL
		}
	}
	if path != "" {
		db, err := strconv.ParseUint(path, 10, 16)
		if err != nil {
			return nil, errURL
		}
		t.db = int(db)
	}
	for host := range strings.SplitSeq(hosts, ",") {
		addr, err := address(host, port)
		if err != nil {
			return nil, err
		}
		t.addrs = append(t.addrs, addr)
	}
	if len(t.addrs) > 1 && !sentinel {
		return nil, errURL
	}
	return t, nil
}

// address completes HOST[:PORT]. An IPv6 host stands in brackets.
func address(text, port string) (string, error) {
	host := text
	if i := strings.LastIndexByte(text, ':'); i >= 0 && !strings.HasSuffix(text, "]") {
		host, port = text[:i], text[i+1:]
	}
	if inner, is := strings.CutPrefix(host, "["); is {
		host, is = strings.CutSuffix(inner, "]")
		if !is {
			return "", errURL
		}
	} else if strings.ContainsAny(host, ":[]") {
		return "", errURL
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || host == "" || strings.ContainsAny(host, "@/") {
		return "", errURL
	}
	return net.JoinHostPort(host, port), nil
}

// String names the server without its credentials.
func (t *target) String() string {
	scheme := "redis"
	if t.tls {
		scheme = "rediss"
	}
	if t.master != "" {
		return fmt.Sprintf("%s-sentinel://%s/%s/%d", scheme, strings.Join(t.addrs, ","), t.master, t.db)
	}
	return fmt.Sprintf("%s://%s/%d", scheme, t.addrs[0], t.db)
}
