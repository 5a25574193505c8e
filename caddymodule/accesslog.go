package caddymodule

import (
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/fairway-edge/fairway/caddymodule/internal/gateway"
)

// accessLog gives Caddy's access log our fields. Caddy copies a request for its log
// before any handler sees it, so the line of a request with a key in the path, the
// query, a header with an address or one that Caddy does not know for a credential's would have the key in clear: such a line is skipped, and an
// equal one written here.
type accessLog struct {
	server *caddyhttp.Server
	log    *zap.Logger
	keys   []gateway.Key
}

// accessLogModule makes ctx.Logger give the logger that the http app writes access
// logs with, so that the operator's `log` options hold for ours.
type accessLogModule struct{}

// CaddyModule implements caddy.Module.
func (accessLogModule) CaddyModule() caddy.ModuleInfo { return caddy.ModuleInfo{ID: "http"} }

// redacted stands where a secret was.
const redacted = "REDACTED"

// begin notes what the line of r needs. The function it returns is called when the
// answer is out.
func (l accessLog) begin(r *http.Request, acc *gateway.Account) (finish func(answer http.Header)) {
	keys, shows := l.shownKeys(r)
	if !shows {
		return func(http.Header) { publish(r, acc) }
	}
	shown := l.redact(r, keys) // before anyone changes r
	body := &countedBody{ReadCloser: r.Body}
	if r.Body != nil {
		r.Body = body
	}
	return func(answer http.Header) {
		fields := publish(r, acc)
		skipped, _ := caddyhttp.GetVar(r.Context(), caddyhttp.LogSkipVar).(bool)
		caddyhttp.SetVar(r.Context(), caddyhttp.LogSkipVar, true)
		if !skipped && l.wants(r) {
			l.write(shown, acc, answer, body.n, fields)
		}
	}
}

// publish sets log fields and placeholders.
func publish(r *http.Request, acc *gateway.Account) []zap.Field {
	fields := []zap.Field{
		zap.String("fairway_run", acc.Run), zap.String("fairway_node", acc.Node), zap.String("fairway_route", acc.Route),
		zap.String("fairway_model", acc.Model), zap.String("fairway_outcome", acc.Outcome),
	}
	if extra, ok := r.Context().Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields); ok {
		for _, f := range fields {
			extra.Set(f)
		}
	}
	if repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok {
		repl.Set("http.fairway.run", acc.Run)
		repl.Set("http.fairway.node", acc.Node)
		repl.Set("http.fairway.route", acc.Route)
		repl.Set("http.fairway.model", acc.Model)
		repl.Set("http.fairway.principal", acc.Principal)
		repl.Set("http.fairway.outcome", acc.Outcome)
		repl.Set("http.fairway.code", acc.Code)
	}
	return fields
}

// keyInPath is the path prefix by which clients that cannot send headers show a
// key. Slashes may be doubled and anything may be escaped.
var keyInPath = regexp.MustCompile(`(?i)/+(?:k|%6b)/+([^/?#]+)`)

// keyInQuery are the query parameters in which clients send keys, in lower case and
// with _ for -. The gateway takes no key from there.
var keyInQuery = map[string]bool{"key": true, "api_key": true, "apikey": true, "x_api_key": true, "token": true, "access_token": true}

// addressHeaders hold an address: where the request came from, or what a proxy was asked
// for. A key in one may be this gateway's.
var addressHeaders = []string{"Referer", "X-Original-Uri", "X-Original-Url", "X-Rewrite-Url", "X-Forwarded-Uri"}

// leastSecret is the length from which what a query shows as a key is looked for
// elsewhere in the request: replacing shorter ones would garble the line.
const leastSecret = 6

// secretPair tells whether one NAME=VALUE of a query shows a key, and as what.
func (l accessLog) secretPair(pair string) (raw, value string, secret bool) {
	rawName, raw, _ := strings.Cut(pair, "=")
	name, value := unescape(rawName), unescape(raw)
	if value == "" {
		return "", "", false
	}
	name = strings.ReplaceAll(strings.ToLower(name), "-", "_")
	return raw, value, keyInQuery[name] || l.isKey(value)
}

func unescape(s string) string {
	if out, err := url.QueryUnescape(s); err == nil {
		return strings.TrimSpace(out)
	}
	return s
}

// isKey tells whether v is a key of the configuration.
func (l accessLog) isKey(v string) bool {
	hash := gateway.HashKey(v)
	return slices.ContainsFunc(l.keys, func(k gateway.Key) bool { return k.Hash == hash })
}

// cleanQuery is an address without the keys in its query.
func (l accessLog) cleanQuery(address string) string {
	path, query, ok := strings.Cut(address, "?")
	if !ok {
		return address
	}
	pairs := strings.Split(query, "&")
	for i, p := range pairs {
		if _, _, secret := l.secretPair(p); secret {
			name, _, _ := strings.Cut(p, "=")
			pairs[i] = name + "=" + redacted
		}
	}
	return path + "?" + strings.Join(pairs, "&")
}

// cleanAddress is an address without the keys in its path and query.
func (l accessLog) cleanAddress(address string) string {
	return l.cleanQuery(keyInPath.ReplaceAllString(address, "/k/"+redacted))
}

// shownKeys are the keys that a request shows where Caddy's log would not hide them,
// as far as they are to be replaced wherever they stand; shows tells that there are
// any.
func (l accessLog) shownKeys(r *http.Request) (keys []string, shows bool) {
	for _, m := range keyInPath.FindAllStringSubmatch(r.URL.EscapedPath(), -1) {
		keys = append(keys, m[1])
	}
	for _, m := range keyInPath.FindAllStringSubmatch(r.URL.Path, -1) {
		keys = append(keys, m[1])
	}
	shows = len(keys) > 0
	for _, name := range gateway.CredentialHeaders {
		for _, v := range r.Header[name] {
			shows = true
			_, token, _ := strings.Cut(strings.TrimSpace(v), " ") // after a scheme
			for _, v := range []string{strings.TrimSpace(v), strings.TrimSpace(token)} {
				if len(v) >= leastSecret || l.isKey(v) {
					keys = append(keys, v)
				}
			}
		}
	}
	for _, name := range addressHeaders {
		for _, v := range r.Header[name] {
			shows = shows || l.cleanAddress(v) != v
		}
	}
	for p := range strings.SplitSeq(r.URL.RawQuery, "&") {
		raw, value, secret := l.secretPair(p)
		shows = shows || secret
		if secret && (len(value) >= leastSecret || l.isKey(value)) {
			keys = append(keys, raw, value)
		}
	}
	return keys, shows
}

// redact returns r as it may be logged: without keys in address, Referer or any header.
func (l accessLog) redact(r *http.Request, keys []string) *http.Request {
	clean := func(s string) string {
		s = l.cleanAddress(s)
		for _, k := range keys {
			s = strings.ReplaceAll(s, k, redacted)
		}
		return s
	}
	out := r.Clone(r.Context())
	if orig, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok {
		out.Method, out.RequestURI = orig.Method, orig.RequestURI
	}
	out.RequestURI = clean(out.RequestURI)
	for name, values := range out.Header {
		for i, v := range values {
			if values[i] = clean(v); slices.Contains(gateway.CredentialHeaders, name) {
				values[i] = redacted
			}
		}
	}
	return out
}

// wants tells whether the server logs this request; it follows Server.shouldLogRequest.
func (l accessLog) wants(r *http.Request) bool {
	if l.server == nil || l.server.Logs == nil {
		return false
	}
	logs, host := l.server.Logs, hostOf(r)
	for name := range logs.LoggerNames {
		if certmagic.MatchWildcard(host, name) {
			return true
		}
	}
	for _, skip := range logs.SkipHosts {
		if certmagic.MatchWildcard(host, skip) {
			return false
		}
	}
	return !logs.SkipUnmappedHosts
}

func hostOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		return r.Host
	}
	return host
}

// write writes the line that Caddy would have written; it follows Server.logRequest.
func (l accessLog) write(r *http.Request, acc *gateway.Account, answer http.Header, read int64, extra []zap.Field) {
	credentials := l.server.Logs.ShouldLogCredentials
	level := zapcore.InfoLevel
	if acc.Status >= http.StatusInternalServerError {
		level = zapcore.ErrorLevel
	}
	fields := append([]zap.Field{
		zap.Object("request", caddyhttp.LoggableHTTPRequest{Request: r, ShouldLogCredentials: credentials}),
		zap.Int64("bytes_read", read),
		zap.String("user_id", acc.User),
		zap.Duration("duration", time.Since(acc.Started)),
		zap.Uint64("size", acc.Bytes),
		zap.Int("status", acc.Status),
		zap.Object("resp_headers", caddyhttp.LoggableHTTPHeader{Header: answer, ShouldLogCredentials: credentials}),
	}, extra...)
	base := l.log.Named("log.access")
	for _, name := range loggerNames(l.server.Logs, r) {
		log := base
		if name != "" {
			log = base.Named(name)
		}
		log.Log(level, "handled request", fields...)
	}
}

// loggerNames follows ServerLogConfig.wrapLogger.
func loggerNames(logs *caddyhttp.ServerLogConfig, r *http.Request) []string {
	if names, ok := caddyhttp.GetVar(r.Context(), caddyhttp.AccessLoggerNameVarKey).([]any); ok {
		var out []string
		for _, n := range names {
			if s, ok := n.(string); ok {
				out = append(out, s)
			}
		}
		return out
	}
	host := strings.ToLower(hostOf(r))
	if names, ok := logs.LoggerNames[host]; ok {
		return names
	}
	labels := strings.Split(host, ".")
	for i := range labels {
		if labels[i] == "" {
			continue
		}
		labels[i] = "*"
		if names, ok := logs.LoggerNames[strings.Join(labels, ".")]; ok {
			return names
		}
	}
	return []string{logs.DefaultLoggerName}
}

// countedBody counts what was read of a body.
type countedBody struct {
	io.ReadCloser
	n int64
}

// Read implements io.Reader.
func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n += int64(n)
	return n, err
}
