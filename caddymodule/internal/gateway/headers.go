package gateway

import (
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/fairway-edge/fairway/tunnel"
)

// Headers of this gateway.
const (
	headerRun     = "X-Fairway-Run"
	headerSession = "X-Fairway-Session"
	headerNode    = "X-Fairway-Node"
	headerError   = "X-Fairway-Error"
)

// hopByHop are the headers of one connection (RFC 9110 section 7.6.1), which stop at each hop in both directions.
var hopByHop = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// CredentialHeaders are request headers that show a credential of the caller, besides those that Caddy's access log hides itself: Authorization and Cookie.
var CredentialHeaders = []string{
	"X-Authorization", "Api-Key", "Apikey", "X-Api-Key", "X-Api-Token", "X-Goog-Api-Key", "Ocp-Apim-Subscription-Key", "X-Auth-Token", "X-Auth-Key",
	"X-Access-Token", "X-Amz-Security-Token", "X-Functions-Key", "Cf-Aig-Authorization", "Cf-Access-Client-Secret", "Cf-Access-Token", "X-Vault-Token",
	"Private-Token", "Cookie2",
}

// notForwarded are request headers that end at the gateway: credentials of the caller and the account that they are for (the node has the same
// list, credential in nodeclient/adapter/http1), what the gateway owns (CORS, Host, lengths), and what says where a caller is. Ollama forwards
// credentials to its cloud, and refuses origins that it does not know.
var notForwarded = append(slices.Clip(CredentialHeaders),
	"Authorization", "Cookie", "X-Goog-User-Project", "X-Auth-Email", "Cf-Access-Client-Id", "Openai-Organization", "Openai-Project",
	"Host", "Content-Length", "Expect",
	"Origin", "Referer", "Access-Control-Request-Method", "Access-Control-Request-Headers", "Access-Control-Request-Private-Network",
	"Forwarded", "Via", "X-Real-Ip", "Early-Data", "Priority", "Alt-Used", "Upgrade-Insecure-Requests",
)

// requestHeaders selects what travels to the node.
func requestHeaders(r *http.Request) []*tunnel.Header {
	named := nominated(r.Header)
	out := make([]*tunnel.Header, 0, len(r.Header))
	for name, values := range r.Header {
		if slices.Contains(hopByHop, name) || slices.Contains(notForwarded, name) || named[name] || reserved(name) ||
			strings.HasPrefix(name, "X-Forwarded-") || strings.HasPrefix(name, "Sec-") || strings.HasPrefix(name, "Proxy-") {
			continue
		}
		for _, v := range values {
			out = append(out, &tunnel.Header{Name: name, Value: []byte(v)})
		}
	}
	return out
}

// reserved reports whether a name is this project's own, in any spelling that some server could fold into it.
func reserved(name string) bool {
	return len(name) >= len("X-Fairway") && strings.EqualFold(strings.ReplaceAll(name[:len("X-Fairway")], "_", "-"), "X-Fairway")
}

// nominated returns the headers that Connection names, in canonical form.
func nominated(h http.Header) map[string]bool {
	var out map[string]bool
	for _, v := range h.Values("Connection") {
		for name := range strings.SplitSeq(v, ",") {
			if name = textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name)); name != "" {
				if out == nil {
					out = make(map[string]bool)
				}
				out[name] = true
			}
		}
	}
	return out
}

// answerHeaders copies a provider's headers to the client's answer. It reports false, and has copied nothing, when one is malformed: then nothing
// of the answer can be trusted.
func answerHeaders(dst http.Header, hs []*tunnel.Header) bool {
	src := make(http.Header, len(hs))
	for _, h := range hs {
		if !validHeaderName(h.Name) || !httpguts.ValidHeaderFieldValue(string(h.Value)) {
			return false
		}
		src.Add(h.Name, string(h.Value))
	}
	if len(src["Content-Length"]) > 1 {
		return false
	}
	named := nominated(src)
	for name, values := range src {
		switch {
		case !passes(name) || named[name]:
		case name == "Vary":
			dst[name] = append(dst[name], values...)
		default:
			dst[name] = values
		}
	}
	return true
}

// passes reports whether a provider's header or trailer may reach a client: what belongs to one connection, to this project, or to who owns the
// connection to the client stops here.
func passes(name string) bool {
	switch name {
	case "Date", "Server", "Set-Cookie", "Alt-Svc", "Strict-Transport-Security":
		return false
	}
	return !slices.Contains(hopByHop, name) && !reserved(name) && !strings.HasPrefix(name, "Access-Control-")
}

func validHeaderName(s string) bool { return httpguts.ValidHeaderFieldName(s) }

// validSession reports whether a caller's correlation may be echoed: printable ASCII, at most 256 bytes.
func validSession(s string) bool {
	if len(s) > 256 {
		return false
	}
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return true
}
