package ollama

import (
	"net/http"
	"net/url"
	"strings"
)

// Match is what a method and a path turned out to be.
type Match struct {
	// Endpoint is nil unless Status is 200.
	Endpoint *Endpoint
	Family   Family
	// Path is the one to authorise and to forward: canonical, plain ASCII, without
	// percent-encoding when Status is 200. The query is not part of it, and should
	// not be forwarded: Ollama reads none, save that on v1.audio.transcriptions a
	// "model" in the query would win over the one in the form.
	Path string
	// Param is the model of /v1/models/{model} or the digest of /api/blobs/{digest},
	// decoded. Whether it is a valid name or digest is not checked here.
	Param string
	// Status is 200, 404 or 405, Allow the header that goes with 405.
	Status int
	Allow  string
}

// route holds the endpoints that share a path.
type route struct {
	get, head, post, del *Endpoint
	allow                string
	foreign              bool // all of them are
}

var routes = func() map[string]*route {
	m := make(map[string]*route)
	for i := range catalogue {
		e := &catalogue[i]
		key := e.Path
		if open, shut := strings.IndexByte(key, '{'), strings.IndexByte(key, '}'); open >= 0 {
			key = key[:open] + key[shut+1:]
		}
		r := m[key]
		if r == nil {
			r = new(route)
			m[key] = r
		}
		switch e.Method {
		case http.MethodGet:
			r.get = e
			if e.Head {
				r.head = e
			}
		case http.MethodHead:
			r.head = e
		case http.MethodPost:
			r.post = e
		case http.MethodDelete:
			r.del = e
		default:
			panic("ollama: no place for method " + e.Method)
		}
	}
	for _, r := range m {
		r.allow, r.foreign = r.methods()
	}
	return m
}()

// methods lists what the path allows, in the order in which Ollama lists it, and says
// whether Ollama has none of that.
func (r *route) methods() (allow string, foreign bool) {
	var allowed []string
	foreign = true
	for _, m := range []struct {
		name string
		e    *Endpoint
	}{{http.MethodHead, r.head}, {http.MethodGet, r.get}, {http.MethodPost, r.post}, {http.MethodDelete, r.del}} {
		if m.e != nil {
			allowed = append(allowed, m.name)
			foreign = foreign && m.e.Foreign
		}
	}
	return strings.Join(allowed, ", "), foreign
}

// Lookup finds the endpoint for a method and a path as [url.URL.EscapedPath] gives
// it. Leading slashes count as one and one trailing slash is dropped, because base
// URLs are saved with either and Ollama's own redirect loses the body; an empty path
// is the root. Nothing else is cleaned: dot segments, doubled slashes, ';', another
// case and percent-encoded slashes or dots stay unknown, for two readers of such a
// path could disagree. It is safe for concurrent use and does not allocate unless a
// path parameter is percent-encoded.
func Lookup(method, escapedPath string) Match {
	path := foldPath(escapedPath)
	r, param, path := findRoute(path)
	if r == nil {
		return Match{Family: familyOf(path), Path: path, Status: http.StatusNotFound}
	}
	var e *Endpoint
	switch method {
	case http.MethodGet:
		e = r.get
	case http.MethodHead:
		e = r.head
	case http.MethodPost:
		e = r.post
	case http.MethodDelete:
		e = r.del
	}
	switch {
	case e == nil && r.foreign:
		return Match{Family: familyOf(path), Path: path, Status: http.StatusNotFound}
	case e == nil:
		return Match{Family: familyOf(path), Path: path, Status: http.StatusMethodNotAllowed, Allow: r.allow}
	}
	return Match{Endpoint: e, Family: e.Family, Path: path, Param: param, Status: http.StatusOK}
}

// Unknown is the match of the same path where nobody has its endpoint.
func (m Match) Unknown() Match {
	return Match{Family: m.Family, Path: m.Path, Status: http.StatusNotFound}
}

func foldPath(path string) string {
	if path == "" {
		return "/"
	}
	for len(path) > 1 && path[0] == '/' && path[1] == '/' {
		path = path[1:]
	}
	if len(path) > 1 && path[len(path)-1] == '/' {
		path = path[:len(path)-1]
	}
	return path
}

// findRoute returns the route of a folded path, its parameter, and the path in its
// canonical form.
func findRoute(path string) (r *route, param, canonical string) {
	var prefix string
	switch {
	case strings.HasPrefix(path, modelsPrefix):
		prefix = modelsPrefix
	case strings.HasPrefix(path, blobsPrefix):
		prefix = blobsPrefix
	case strings.HasPrefix(path, keysPrefix):
		prefix = keysPrefix
	case strings.HasPrefix(path, edgePrefix):
		prefix = edgePrefix
	default:
		return routes[path], "", path
	}
	raw, suffix := path[len(prefix):], ""
	if rest, ok := strings.CutSuffix(raw, cancelSuffix); ok && prefix == edgePrefix {
		raw, suffix = rest, cancelSuffix
	}
	// hf.co/Foo/Bar is a model's name, though Ollama itself takes no slash here.
	param, ok := plainParam(raw, prefix == modelsPrefix)
	if !ok {
		return nil, "", path
	}
	if param != raw {
		path = prefix + param + suffix
	}
	return routes[prefix+suffix], param, path
}

// plainParam decodes a path parameter and accepts it only if it is made of the
// characters of model names and digests, so that it needs no encoding again. Some
// clients encode the ':' of a tag; a '/' or '.' that was encoded is refused.
func plainParam(raw string, slashes bool) (string, bool) {
	param := raw
	if strings.IndexByte(raw, '%') >= 0 {
		for i := 0; i+2 < len(raw); i++ {
			if raw[i] != '%' {
				continue
			}
			switch code := raw[i+1 : i+3]; {
			case code == "2e", code == "2E", code == "2f", code == "2F":
				return "", false
			}
		}
		var err error
		if param, err = url.PathUnescape(raw); err != nil {
			return "", false
		}
	}
	segment := 0 // where the current segment starts
	for i := 0; i <= len(param); i++ {
		if i == len(param) || param[i] == '/' {
			s := param[segment:i]
			if s == "" || s == "." || s == ".." || i < len(param) && !slashes {
				return "", false
			}
			segment = i + 1
			continue
		}
		if c := param[i]; !isWordByte(c) && c != '-' && c != '.' && c != ':' {
			return "", false
		}
	}
	return param, true
}

// familyOf gives an unknown path the family whose clients are likely to have sent it.
func familyOf(path string) Family {
	switch {
	case strings.HasPrefix(path, "/v1/messages"):
		return Anthropic
	case path == "/v1" || strings.HasPrefix(path, "/v1/"):
		return OpenAI
	case path == "/api/v1/edge" || strings.HasPrefix(path, "/api/v1/edge/"):
		return Edge
	}
	return Native
}
