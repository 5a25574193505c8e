package demo

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// maxBody bounds a request's body. The demo reads nothing of a prompt but
// whether there is one.
const maxBody = 64 << 20

func routes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/tags", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, object{"models": []any{entry()}})
	})
	mux.HandleFunc("GET /api/ps", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, object{"models": []any{}})
	})
	mux.HandleFunc("GET /api/version", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, object{"version": version})
	})
	mux.HandleFunc("POST /api/show", show)
	for _, path := range []string{"/api/chat", "/api/generate", "/v1/chat/completions", "/v1/completions"} {
		mux.HandleFunc("POST "+path, infer)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, r, http.StatusNotFound, fmt.Sprintf("the demo has no %s; an Ollama on a node serves it", r.URL.Path))
	})
	return mux
}

type object = map[string]any

// ask is what the demo reads of a request's body.
type ask struct {
	Model     string            `json:"model"`
	Name      string            `json:"name"`
	Prompt    any               `json:"prompt"`
	Messages  []json.RawMessage `json:"messages"`
	Stream    *bool             `json:"stream"`
	KeepAlive any               `json:"keep_alive"`
	MaxTokens int               `json:"max_tokens"`
	Options   struct {
		NumPredict int `json:"num_predict"`
	} `json:"options"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

// read decodes the body and finds the model, or answers and returns false.
func read(w http.ResponseWriter, r *http.Request) (a ask, ok bool) {
	err := json.NewDecoder(http.MaxBytesReader(nil, r.Body, maxBody)).Decode(&a)
	switch {
	case errors.Is(err, io.EOF):
		fail(w, r, http.StatusBadRequest, "missing request body")
	case err != nil:
		fail(w, r, http.StatusBadRequest, err.Error())
	case a.Model == "" && r.URL.Path == "/api/chat":
		fail(w, r, http.StatusBadRequest, "model is required")
	case !known(a.Model) && !(r.URL.Path == "/api/show" && a.Model == "" && known(a.Name)):
		fail(w, r, http.StatusNotFound, fmt.Sprintf("model '%s' not found", a.Model))
	default:
		return a, true
	}
	return a, false
}

// known accepts the spellings of the model's name that Ollama would.
func known(name string) bool {
	n := strings.ToLower(strings.TrimSpace(name))
	n = strings.TrimPrefix(n, "registry.ollama.ai/")
	n = strings.TrimSuffix(strings.TrimPrefix(n, "library/"), ":local")
	return n == "demo" || n == modelName
}

func show(w http.ResponseWriter, r *http.Request) {
	if _, ok := read(w, r); !ok {
		return
	}
	reply(w, http.StatusOK, object{
		"license": "", "modelfile": "# Fairway's demo: no model runs\n", "parameters": "", "template": "", "details": demoDetails,
		"model_info":   object{"general.architecture": "demo", "general.basename": "demo", "demo.context_length": 4096},
		"capabilities": []string{"completion"}, "modified_at": modifiedAt,
	})
}

// reply writes v as JSON. A failed write means that the caller has left.
func reply(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		status, b = http.StatusInternalServerError, []byte(`{"error":"encoding the answer"}`)
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Content-Length", fmt.Sprint(len(b)))
	w.WriteHeader(status)
	_, _ = w.Write(b)
}

// fail answers with an error in the shape of the path's family.
func fail(w http.ResponseWriter, r *http.Request, status int, msg string) {
	kind := map[int]string{http.StatusBadRequest: "invalid_request_error", http.StatusNotFound: "not_found_error"}[status]
	switch {
	case strings.HasPrefix(r.URL.Path, "/v1/messages"):
		reply(w, status, object{"type": "error", "error": object{"type": kind, "message": msg}})
	case strings.HasPrefix(r.URL.Path, "/v1/"):
		reply(w, status, object{"error": object{"message": msg, "type": kind, "param": nil, "code": nil}})
	default:
		reply(w, status, object{"error": msg})
	}
}
