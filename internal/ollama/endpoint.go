package ollama

import (
	"net/http"
	"slices"
)

// Endpoint is one row of the catalogue. Rows are shared: never change one.
type Endpoint struct {
	// Name is stable and meant for logs and spans: "chat", "v1.responses".
	Name string
	// Method and Path are matched exactly. Path may end in a parameter, in braces.
	Method, Path string
	// Head says that HEAD is served as well, with the header of the GET.
	Head bool

	Family  Family
	Class   Class
	Action  Action
	ModelIn ModelIn

	// Streams says that the body's "stream" is read, StreamByDefault what its
	// absence means: true on /api, false on /v1.
	Streams, StreamByDefault bool
	// Zstd says that Ollama accepts Content-Encoding: zstd here.
	Zstd bool
	// Blob says that the body is gigabytes and must stream, never be buffered.
	Blob bool
	// Foreign says that Ollama has no such endpoint, and only OpenAI-compatible
	// providers do. Where there is none the path is as unknown as it is to Ollama:
	// see [Match.Unknown].
	Foreign bool
	// Since is the first Ollama version that has the endpoint, "" for always. Older
	// nodes answer a bare 404 and must not be asked; see [Version.AtLeast].
	Since string

	// request is the Go type that Ollama binds the body to. It shows in Ollama's
	// error texts.
	request string
	// Held says that a management endpoint is about a model that is there already, and Changes that another one is there afterwards, or none.
	Held, Changes bool
	// loads is the body field whose emptiness turns the request into a mere load.
	loads string
	// plainName says that Ollama takes the name without looking for a source
	// suffix, so that :cloud and :local are ordinary tags.
	plainName bool
	missing   missingModel
	absent    absentModel
}

// ServedBy reports whether a provider with this adapter, "ollama" or "openai", may have
// the endpoint.
func (e *Endpoint) ServedBy(adapter string) bool {
	switch adapter {
	case "ollama":
		return !e.Foreign
	case "openai":
		return e.Class == Inference && (e.Family == OpenAI || e.Family == Anthropic)
	}
	return false
}

// missingModel is how an endpoint words a request without a model.
type missingModel uint8

const (
	missingRequired missingModel = iota // 400 model is required
	missingNotFound                     // 404 model '' not found
	missingInvalid                      // 400 invalid model name
)

// absentModel is how an endpoint words a model that nobody has.
type absentModel uint8

const (
	absentQuoted  absentModel = iota // model 'X' not found
	absentDisplay                    // the same, with the displayed name
	absentDouble                     // model "X" not found
	absentPull                       // model "X" not found, try pulling it first
)

// Endpoints returns the catalogue.
func Endpoints() []Endpoint { return slices.Clone(catalogue) }

var catalogue = []Endpoint{
	// What answers with no node at all. The ollama command sends HEAD / first.
	{Name: "root", Method: http.MethodGet, Path: "/", Head: true, Class: Liveness},
	{Name: "version", Method: http.MethodGet, Path: "/api/version", Head: true, Class: Liveness},
	{Name: "status", Method: http.MethodGet, Path: "/api/status", Class: Liveness, Since: "0.16.2"},

	{Name: "tags", Method: http.MethodGet, Path: "/api/tags", Head: true, Class: Inventory, Action: Aggregate},
	{Name: "ps", Method: http.MethodGet, Path: "/api/ps", Class: Inventory, Action: Aggregate, Since: "0.1.38"},
	{
		Name: "show", Method: http.MethodPost, Path: "/api/show", Class: Inventory, Action: Route,
		ModelIn: ModelBodyOrName, request: "api.ShowRequest", absent: absentDisplay,
	},
	{Name: "recommendations", Method: http.MethodGet, Path: "/api/experimental/model-recommendations", Class: Inventory, Since: "0.22.0"},

	{
		Name: "generate", Method: http.MethodPost, Path: "/api/generate", Class: Inference, Action: Route, ModelIn: ModelBody,
		Streams: true, StreamByDefault: true, request: "api.GenerateRequest", loads: "prompt", missing: missingNotFound,
	},
	{
		Name: "chat", Method: http.MethodPost, Path: "/api/chat", Class: Inference, Action: Route, ModelIn: ModelBody,
		Streams: true, StreamByDefault: true, request: "api.ChatRequest", loads: "messages",
	},
	{
		Name: "embed", Method: http.MethodPost, Path: "/api/embed", Class: Inference, Action: Route, ModelIn: ModelBody,
		Since: "0.2.6", request: "api.EmbedRequest", loads: "input", missing: missingNotFound, absent: absentPull,
	},
	{
		Name: "embeddings", Method: http.MethodPost, Path: "/api/embeddings", Class: Inference, Action: Route, ModelIn: ModelBody,
		request: "api.EmbeddingRequest", loads: "prompt", absent: absentPull,
	},

	{
		Name: "v1.chat.completions", Method: http.MethodPost, Path: "/v1/chat/completions", Family: OpenAI, Class: Inference, Action: Route,
		ModelIn: ModelBody, Streams: true, Zstd: true, Since: "0.1.24", request: "openai.ChatCompletionRequest",
	},
	{
		Name: "v1.completions", Method: http.MethodPost, Path: "/v1/completions", Family: OpenAI, Class: Inference, Action: Route,
		ModelIn: ModelBody, Streams: true, Zstd: true, Since: "0.2.0", request: "openai.CompletionRequest", missing: missingNotFound,
	},
	{
		Name: "v1.embeddings", Method: http.MethodPost, Path: "/v1/embeddings", Family: OpenAI, Class: Inference, Action: Route,
		ModelIn: ModelBody, Zstd: true, Since: "0.2.6", request: "openai.EmbedRequest", missing: missingNotFound, absent: absentPull,
	},
	{Name: "v1.models", Method: http.MethodGet, Path: "/v1/models", Family: OpenAI, Class: Inventory, Action: Aggregate, Since: "0.2.0"},
	{
		Name: "v1.model", Method: http.MethodGet, Path: modelsPrefix + "{model}", Family: OpenAI, Class: Inventory, Action: Aggregate,
		ModelIn: ModelPath, Since: "0.2.0", absent: absentDisplay,
	},
	{
		Name: "v1.responses", Method: http.MethodPost, Path: "/v1/responses", Family: OpenAI, Class: Inference, Action: Route,
		ModelIn: ModelBody, Streams: true, Zstd: true, Since: "0.13.3", request: "openai.ResponsesRequest",
	},
	{
		Name: "v1.audio.transcriptions", Method: http.MethodPost, Path: "/v1/audio/transcriptions", Family: OpenAI, Class: Inference, Action: Route,
		ModelIn: ModelMultipart, Since: "0.20.0",
	},
	{
		Name: "v1.messages", Method: http.MethodPost, Path: "/v1/messages", Family: Anthropic, Class: Inference, Action: Route,
		ModelIn: ModelBody, Streams: true, Zstd: true, Since: "0.14.0", request: "anthropic.MessagesRequest",
	},

	// What vLLM, llama.cpp and OpenAI serve beside that.
	{
		Name: "v1.rerank", Method: http.MethodPost, Path: "/v1/rerank", Family: OpenAI, Class: Inference, Action: Route,
		ModelIn: ModelBody, Foreign: true, request: "openai.RerankRequest",
	},
	{
		Name: "v1.score", Method: http.MethodPost, Path: "/v1/score", Family: OpenAI, Class: Inference, Action: Route,
		ModelIn: ModelBody, Foreign: true, request: "openai.ScoreRequest",
	},
	{
		Name: "v1.moderations", Method: http.MethodPost, Path: "/v1/moderations", Family: OpenAI, Class: Inference, Action: Route,
		ModelIn: ModelBody, Foreign: true, request: "openai.ModerationRequest",
	},
	{
		Name: "v1.audio.speech", Method: http.MethodPost, Path: "/v1/audio/speech", Family: OpenAI, Class: Inference, Action: Route,
		ModelIn: ModelBody, Foreign: true, request: "openai.SpeechRequest",
	},
	{
		Name: "v1.audio.translations", Method: http.MethodPost, Path: "/v1/audio/translations", Family: OpenAI, Class: Inference, Action: Route,
		ModelIn: ModelMultipart, Foreign: true,
	},
	{
		Name: "v1.images.generations", Method: http.MethodPost, Path: "/v1/images/generations", Family: OpenAI, Class: Inference, Action: Route,
		ModelIn: ModelBody, Streams: true, Foreign: true, request: "openai.ImageRequest",
	},
	{
		Name: "v1.messages.count_tokens", Method: http.MethodPost, Path: "/v1/messages/count_tokens", Family: Anthropic, Class: Inference, Action: Route,
		ModelIn: ModelBody, Foreign: true, request: "anthropic.CountTokensRequest",
	},

	// Fairway's own: typed runs.
	{Name: "edge.run", Method: http.MethodPost, Path: "/api/v1/edge/runs", Family: Edge, Class: EdgeRun, Action: Typed},
	{Name: "edge.get", Method: http.MethodGet, Path: edgePrefix + "{run_id}", Family: Edge, Class: EdgeRun, Action: Typed},
	{Name: "edge.cancel", Method: http.MethodPost, Path: edgePrefix + "{run_id}" + cancelSuffix, Family: Edge, Class: EdgeRun, Action: Typed},

	// What changes one node. Blobs and the create that uses them belong together:
	// a 200 for a blob on another node would make the client skip its upload.
	{
		Name: "pull", Method: http.MethodPost, Path: "/api/pull", Class: Management, Action: Pin, Changes: true, ModelIn: ModelBodyOrName,
		Streams: true, StreamByDefault: true, request: "api.PullRequest", missing: missingInvalid,
	},
	{
		Name: "push", Method: http.MethodPost, Path: "/api/push", Class: Management, Action: Pin, Held: true, ModelIn: ModelBodyOrName,
		Streams: true, StreamByDefault: true, request: "api.PushRequest", plainName: true,
	},
	{
		Name: "create", Method: http.MethodPost, Path: "/api/create", Class: Management, Action: Pin, Changes: true, ModelIn: ModelBodyOrName,
		Streams: true, StreamByDefault: true, request: "api.CreateRequest", plainName: true, missing: missingInvalid,
	},
	{Name: "blobs.head", Method: http.MethodHead, Path: blobsPrefix + "{digest}", Class: Management, Action: Pin},
	{Name: "blobs.create", Method: http.MethodPost, Path: blobsPrefix + "{digest}", Class: Management, Action: Pin, Blob: true},
	{
		Name: "copy", Method: http.MethodPost, Path: "/api/copy", Class: Management, Action: Pin, Changes: true, Held: true, ModelIn: ModelCopy,
		request: "api.CopyRequest", plainName: true, absent: absentDouble,
	},
	{
		Name: "delete", Method: http.MethodDelete, Path: "/api/delete", Class: Management, Action: Pin, Changes: true, Held: true, ModelIn: ModelBodyOrName,
		request: "api.DeleteRequest",
	},

	// What would speak with the node owner's ollama.com account, or end it.
	{Name: "me", Method: http.MethodPost, Path: "/api/me", Class: Management, Action: Deny, Since: "0.12.0"},
	{Name: "signout", Method: http.MethodPost, Path: "/api/signout", Class: Management, Action: Deny},
	{Name: "user.keys", Method: http.MethodDelete, Path: keysPrefix + "{key}", Class: Management, Action: Deny},
	{Name: "web_search", Method: http.MethodPost, Path: "/api/experimental/web_search", Class: Management, Action: Deny, Since: "0.18.0"},
	{Name: "web_fetch", Method: http.MethodPost, Path: "/api/experimental/web_fetch", Class: Management, Action: Deny, Since: "0.18.0"},
}

const (
	modelsPrefix = "/v1/models/"
	blobsPrefix  = "/api/blobs/"
	keysPrefix   = "/api/user/keys/"
	edgePrefix   = "/api/v1/edge/runs/"
	cancelSuffix = "/cancel"
)
