package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"time"
)

const (
	// plainTemplate passes the messages' text on, so that a test decides what the prompt ends in.
	plainTemplate = `{{- range .Messages }}{{ .Content }}{{- end }}`
	jinjaTemplate = `{% for m in messages %}{{ m['content'] }}{% endfor %}`
	// toolTemplate also names what Ollama looks for to find out that a model has tools, thinking and insertion.
	toolTemplate = `{{- range .Messages }}{{- if eq .Role "assistant" }}{{ if .Thinking }}<think>{{ .Thinking }}</think>{{ end }}{{ .Content }}` +
		`{{- range .ToolCalls }}<tool_call>{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}</tool_call>{{- end }}` +
		`{{- else }}{{ .Content }}{{- end }}{{- end }}{{- if false }}{{ .Tools }}{{ .Suffix }}{{- end }}`
)

// A model is one name in the store.
type model struct {
	name, tag string
	gguf      []byte
	template  string
	params    map[string]any
}

func models() []model {
	generate := map[string]any{"num_ctx": 2048, "temperature": 0, "num_thread": 1}
	plain := spec{seed: 1, layers: 1}.encode()
	return []model{
		{"tiny", "latest", plain, plainTemplate, generate},
		{"tiny", "jinja", spec{seed: 1, layers: 1, chatTemplate: jinjaTemplate}.encode(), "", generate},
		{"tiny-tools", "latest", plain, toolTemplate, generate},
		{"tiny-embed", "latest", spec{seed: 2, layers: 1, pooling: 1}.encode(), "", map[string]any{"num_ctx": 512}},
		{"tiny", "slow", spec{seed: 3, layers: 48}.encode(), plainTemplate, generate},
	}
}

// writeStore writes the models as Ollama keeps them, and tiny.gguf beside them for `ollama create`.
func writeStore(root string) error {
	// Distinct times, the same everywhere: /api/tags lists by them.
	made := time.Unix(1_700_000_000, 0)
	for _, m := range models() {
		made = made.Add(time.Minute)
		if err := m.write(root, made); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(root, "tiny.gguf"), models()[0].gguf, 0o600)
}

// layer is an entry of a manifest.
type layer struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int    `json:"size"`
}

type manifest struct {
	SchemaVersion int     `json:"schemaVersion"`
	MediaType     string  `json:"mediaType"`
	Config        layer   `json:"config"`
	Layers        []layer `json:"layers"`
}

func (m model) write(root string, made time.Time) error {
	parts := []struct {
		kind string
		data []byte
	}{
		{"application/vnd.ollama.image.model", m.gguf},
		{"application/vnd.ollama.image.template", []byte(m.template)},
		{"application/vnd.ollama.image.params", mustJSON(m.params)},
	}
	list := manifest{SchemaVersion: 2, MediaType: "application/vnd.docker.distribution.manifest.v2+json"}
	var digests []string
	for _, p := range parts {
		if len(p.data) == 0 {
			continue
		}
		l, err := writeBlob(root, p.kind, p.data)
		if err != nil {
			return err
		}
		list.Layers = append(list.Layers, l)
		digests = append(digests, l.Digest)
	}
	config := mustJSON(map[string]any{
		"model_format": "gguf", "model_family": "llama", "model_families": []string{"llama"}, "model_type": "400K", "file_type": "F32",
		"architecture": "amd64", "os": "linux", "rootfs": map[string]any{"type": "layers", "diff_ids": digests},
	})
	var err error
	if list.Config, err = writeBlob(root, "application/vnd.docker.container.image.v1+json", config); err != nil {
		return err
	}
	// The host that Ollama supplies when a name has none.
	path := filepath.Join(root, "manifests", "registry.ollama.ai", "library", m.name, m.tag)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, mustJSON(list), 0o600); err != nil {
		return err
	}
	return os.Chtimes(path, made, made)
}

func writeBlob(root, kind string, data []byte) (layer, error) {
	sum := sha256.Sum256(data)
	digest := hex.EncodeToString(sum[:])
	dir := filepath.Join(root, "blobs")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return layer{}, err
	}
	return layer{kind, "sha256:" + digest, len(data)}, os.WriteFile(filepath.Join(dir, "sha256-"+digest), data, 0o600)
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // of this file's own values
	}
	return b
}
