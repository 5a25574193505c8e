package openai

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"unicode"
)

const maxVersion = 64 // bytes

// version asks what the server is: /version is vLLM's, /props llama.cpp's.
// Neither belongs to OpenAI's API, so a server that knows neither is not asked
// again until it was away. A server whose API is not at /v1 is a cloud.
func (a *Adapter) version(ctx context.Context) string {
	if a.base != prefix || a.nameless.Load() {
		return ""
	}
	for _, path := range []string{"/version", "/props"} {
		status, body, err := a.Get(ctx, path)
		if err != nil {
			return "" // nothing is known
		}
		var said struct {
			Version string `json:"version"`
			Build   string `json:"build_info"`
		}
		if status != http.StatusOK || json.Unmarshal(body, &said) != nil {
			continue
		}
		if v := cmp.Or(said.Version, said.Build); v != "" && len(v) <= maxVersion && !strings.ContainsFunc(v, unprintable) {
			return v
		}
	}
	a.nameless.Store(true)
	return ""
}

func unprintable(c rune) bool { return c == unicode.ReplacementChar || !unicode.IsPrint(c) }
