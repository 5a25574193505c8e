package nodeclient

import (
	"fmt"
	"strings"

	"github.com/fairway-edge/fairway/internal/ollama"
)

// allowList is the set of management endpoints, by name, that the owner permits. What runs or lists models is always allowed; nothing
// outside the catalogue ever is.
type allowList map[string]bool

// parseAllow reads METHOD:PATH entries. A path with a parameter is written with * in its place. Permission to upload a blob includes asking
// whether it is there: `ollama create` does that first.
func parseAllow(entries []string) (allowList, error) {
	allow := make(allowList, len(entries))
	for _, entry := range entries {
		method, path, ok := strings.Cut(entry, ":")
		name := ""
		if ok {
			name = manageable(strings.ToUpper(method), path)
		}
		if name == "" {
			return nil, fmt.Errorf("allow %q: want one of %s", entry, strings.Join(manageableEntries(), ", "))
		}
		allow[name] = true
		if name == "blobs.create" {
			allow["blobs.head"] = true
		}
	}
	return allow, nil
}

// manageable returns the name of the management endpoint that an entry stands for, or "".
func manageable(method, path string) string {
	for _, e := range ollama.Endpoints() {
		if e.Class == ollama.Management && e.Action != ollama.Deny && e.Method == method && pattern(e.Path) == path {
			return e.Name
		}
	}
	return ""
}

// manageableEntries lists what may be allowed.
func manageableEntries() (entries []string) {
	for _, e := range ollama.Endpoints() {
		if e.Class == ollama.Management && e.Action != ollama.Deny {
			entries = append(entries, e.Method+":"+pattern(e.Path))
		}
	}
	return entries
}

func pattern(path string) string {
	if brace := strings.IndexByte(path, '{'); brace >= 0 {
		return path[:brace] + "*"
	}
	return path
}

// permits finds the endpoint that a run asks for; nil when the node does not serve it. A path that the catalogue would have to clean is none:
// what was authorised must be what travels.
func (a allowList) permits(method, target string) *ollama.Endpoint {
	path, _, _ := strings.Cut(target, "?")
	m := ollama.Lookup(method, path)
	if m.Endpoint == nil || m.Path != path || strings.ContainsAny(target, " #\r\n") {
		return nil
	}
	switch m.Endpoint.Class {
	case ollama.Inference, ollama.Inventory:
		return m.Endpoint
	case ollama.Management:
		if a[m.Endpoint.Name] {
			return m.Endpoint
		}
	}
	return nil
}
