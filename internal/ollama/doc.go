// Package ollama is the catalogue of the HTTP API that Ollama speaks: which
// endpoints there are, where each carries its model's name, what a model's name
// means, how each family of clients expects an error, and how the inventories of
// several Ollamas become one.
//
// It opens no socket and holds no state. The gateway asks it what a request is;
// the node asks it what its own Ollama said. Four questions, in the order in which
// a request meets them:
//
//   - [Lookup]: which [Endpoint] do this method and path name? The match is exact.
//     A path that would need cleaning is unknown, for the path that is authorised
//     has to be the path that travels.
//   - [Decode]: which model does the body ask for? The answer is what Ollama itself
//     would read. A body in which two readers could see two models is refused.
//   - [ParseName]: which model does that string mean? tiny, TINY and
//     registry.ollama.ai/library/tiny:latest are one: they share a [Name.Key].
//   - [MergeTags], [MergePS], [MergeV1Models]: what do all nodes together offer?
//
// A refusal is an [*Error]; [Family.ErrorBody] writes it in the shape of the path's
// family, and [Family.StreamError] ends a stream that was cut.
//
// # Fidelity
//
// Texts and rules are those of Ollama v0.32.15, observed on a running server and,
// where that says nothing, read from its source. Clients match on these texts: the
// ollama command looks for "not found", editors probe for "Ollama is running".
// Bodies are read by the rules of encoding/json (v1): Ollama binds with it, and a second
// JSON reader with other rules for case, duplicates or trailing bytes is how one model
// is authorised and another one run. The scanner that finds the few members which
// matter is a second reader, for speed, and is compared with encoding/json byte for
// byte, by tests and FuzzDecodeAgainstJSON.
//
// # Other providers
//
// Servers that speak OpenAI's API alone have a place in the catalogue: endpoints say by
// [Endpoint.ServedBy] who may have them, [ParseOpenAIModel] reads an entry of their
// GET /v1/models, and [ModelKey] tells which of their models is the same as Ollama's.
//
// # Trust
//
// [Lookup] and [Decode] read what callers send, [ParseModel], [ParseLoaded] and
// [ParseOpenAIModel] what nodes send, [ParseTags] and [ParsePS] what a node's Ollama
// sends. All are bounded and fuzzed. None changes a byte of what it reads, save that
// inventory entries lose the white space between tokens.
package ollama
