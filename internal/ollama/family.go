package ollama

// Family is the API whose clients call a path. It decides the shape of errors.
type Family uint8

const (
	Native    Family = iota // Ollama's own: / and /api/
	OpenAI                  // /v1/, but for /v1/messages
	Anthropic               // /v1/messages
	Edge                    // Fairway's typed runs: /api/v1/edge
)

// String returns the family's name as logs and metrics spell it.
func (f Family) String() string {
	return nameOf(f, "native", "openai", "anthropic", "edge")
}

// Class is what an endpoint is for. Routes allow and deny by class.
type Class uint8

const (
	Liveness   Class = iota // answers without any node: /, /api/version
	Inventory               // what models there are: tags, ps, show
	Inference               // runs a model
	Management              // changes a node, or speaks in its owner's name
	EdgeRun                 // typed runs
)

// String returns the class as the Caddyfile's "endpoints" option spells it.
func (c Class) String() string {
	return nameOf(c, "liveness", "inventory", "inference", "management", "edge")
}

// Action is who answers an endpoint.
type Action uint8

const (
	Self      Action = iota // the gateway, from what it knows without nodes
	Aggregate               // the gateway, from the directory of all nodes
	Route                   // one node that holds the model
	Pin                     // the one node that the caller names: state lives there
	Deny                    // nobody, whatever the configuration says
	Typed                   // the gateway, with a typed run on a node
)

// String returns the action's name for logs.
func (a Action) String() string {
	return nameOf(a, "self", "aggregate", "route", "pin", "deny", "typed")
}

// ModelIn is where a request carries its model's name.
type ModelIn uint8

const (
	ModelNone       ModelIn = iota
	ModelBody               // JSON "model"
	ModelBodyOrName         // JSON "model"; if that is empty, "name", its spelling of 2023
	ModelPath               // the last part of the path
	ModelCopy               // JSON "source" and "destination"
	ModelMultipart          // form field "model"
)

// String returns the place's name for logs.
func (m ModelIn) String() string {
	return nameOf(m, "none", "body", "body or name", "path", "copy", "multipart")
}

func nameOf[T ~uint8](v T, names ...string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return "unknown"
}
