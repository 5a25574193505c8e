package ollama

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// Request is what the gateway has to know of a body.
type Request struct {
	// Model is the string of the body, byte for byte; answers echo it. It is the
	// source of a copy.
	Model string
	Name  Name
	// Stream says that the answer to a success is a stream.
	Stream bool
	// Load and Unload say that nothing is generated: the model is only loaded, or,
	// with a keep_alive of zero, dropped from memory. At most one is set.
	Load, Unload bool
	// Destination is the new name of a copy.
	Destination string
}

// Decode reads a whole body as Ollama would and says what it asks for. It never
// changes body nor keeps it. For endpoints whose model is not in the body it returns
// the zero Request.
//
// Like Ollama it ignores contentType (except for a form), takes field names in any
// case, and takes null for absence. Unlike Ollama it refuses, with code
// ambiguous_body, what two readers could understand differently: a field that decides
// and is there twice, in whatever spelling; bytes after the JSON value; a model that
// is not UTF-8. Other refusals carry Ollama's own text and status. Values it does not
// need are left for Ollama to judge.
//
// A name that Ollama could not have is refused too, but where models are run the
// Request comes with it, filled in but for Name: another provider may have that model,
// under the [ModelKey] of the name.
//
// contentEncoding is the header's value. zstd is decoded where Ollama decodes it, up
// to 20 MiB, only to look inside: the body travels on as it came. Anything else but
// identity is a 415, for Ollama would take the compressed bytes for JSON.
//
// It is safe for concurrent use, and allocates a few hundred bytes whatever the
// body's size, unless that is compressed.
func Decode(e *Endpoint, contentType, contentEncoding string, body []byte) (Request, *Error) {
	if e.ModelIn == ModelNone || e.ModelIn == ModelPath {
		return Request{}, nil
	}
	body, refused := plainBody(e, contentEncoding, body)
	if refused != nil {
		return Request{}, refused
	}
	switch e.ModelIn {
	case ModelMultipart:
		return decodeForm(e, contentType, body)
	case ModelCopy:
		return decodeCopy(e, body)
	case ModelBodyOrName:
		return decodeNamed(e, body)
	}
	return decodeRun(e, body)
}

func decodeRun(e *Endpoint, body []byte) (Request, *Error) {
	var b runBody
	if refused := b.read(e, body); refused != nil {
		return Request{}, refused
	}
	if refused := b.Model.check(e, "model"); refused != nil {
		return Request{}, refused
	}
	if refused := b.Stream.check(e); refused != nil {
		return Request{}, refused
	}
	r := Request{Stream: e.streams(b.Stream)}
	if e.loads != "" {
		content := b.content(e.loads)
		if content.seen > 1 {
			return Request{}, twice(e.loads)
		}
		if b.KeepAlive.seen > 1 {
			return Request{}, twice("keep_alive")
		}
		if !content.filled {
			// embed and embeddings load the model before they look at keep_alive.
			r.Unload = b.KeepAlive.zero && e.Streams
			r.Load = !r.Unload
			r.Stream = false // one JSON object, whatever "stream" says
		}
	}
	return e.named(r, b.Model)
}

func decodeNamed(e *Endpoint, body []byte) (Request, *Error) {
	var b namedBody
	if refused := b.read(e, body); refused != nil {
		return Request{}, refused
	}
	if refused := b.Model.check(e, "model"); refused != nil {
		return Request{}, refused
	}
	if refused := b.Name.check(e, "name"); refused != nil {
		return Request{}, refused
	}
	if refused := b.Stream.check(e); refused != nil {
		return Request{}, refused
	}
	name := b.Model
	if name.value == "" && !name.long {
		name = b.Name
	}
	return e.named(Request{Stream: e.streams(b.Stream)}, name)
}

func decodeCopy(e *Endpoint, body []byte) (Request, *Error) {
	var b copyBody
	if refused := b.read(e, body); refused != nil {
		return Request{}, refused
	}
	if refused := b.Source.check(e, "source"); refused != nil {
		return Request{}, refused
	}
	if refused := b.Destination.check(e, "destination"); refused != nil {
		return Request{}, refused
	}
	name, err := parsePlainName(b.Source.value)
	if err != nil {
		return Request{}, badRequest(fmt.Sprintf("source %q is invalid", b.Source.value))
	}
	if _, err := parsePlainName(b.Destination.value); err != nil {
		return Request{}, badRequest(fmt.Sprintf("destination %q is invalid", b.Destination.value))
	}
	return Request{Model: b.Source.value, Name: name, Destination: b.Destination.value}, nil
}

// streams is the effective "stream": null and absence mean the endpoint's default.
func (e *Endpoint) streams(f flag) bool {
	if !e.Streams {
		return false
	}
	if !f.set {
		return e.StreamByDefault
	}
	return f.value
}

// named completes r with the model that the body names.
func (e *Endpoint) named(r Request, t text) (Request, *Error) {
	if t.long {
		return Request{}, badRequest(InvalidNameText)
	}
	r.Model = t.value
	empty := r.Model == "" || !e.plainName && strings.TrimSpace(r.Model) == ""
	if empty {
		return Request{}, e.noModel(r.Model)
	}
	parse := ParseName
	if e.plainName {
		parse = parsePlainName
	}
	name, err := parse(r.Model)
	if err != nil {
		refused, ok := err.(*Error) //nolint:errorlint // never wrapped
		if !ok || e.Name == "delete" && refused.Message == InvalidNameText {
			refused = badRequest(fmt.Sprintf("name %q is invalid", r.Model))
		}
		if e.Action != Route {
			return Request{}, refused // management is Ollama's alone
		}
		return r, refused
	}
	r.Name = name
	return r, nil
}

// unreadable says in Ollama's words what is wrong with a body that is no object.
// json.Unmarshal and the json.Decoder that Ollama uses differ at the end of the body
// alone; their words are put right here.
func unreadable(e *Endpoint, body []byte) *Error {
	err := json.Unmarshal(body, &struct{}{})
	if err == nil {
		if string(trimSpace(body)) == "null" {
			return nil // it sets nothing
		}
		return ambiguous("the body can be read in two ways") // cannot be: see FuzzDecodeAgainstJSON
	}
	var mismatch *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &mismatch):
		return badRequest("json: cannot unmarshal " + mismatch.Value + " into Go value of type " + cmp.Or(e.request, "object"))
	case !errors.As(err, &syntax):
		return badRequest(err.Error())
	case strings.HasSuffix(syntax.Error(), "after top-level value"):
		return ambiguous(syntax.Error())
	case syntax.Error() != "unexpected end of JSON input":
		return badRequest(syntax.Error())
	case len(trimSpace(body)) > 0:
		return badRequest("unexpected EOF")
	case e.Family == Native:
		return badRequest(MissingBodyText)
	}
	return badRequest("EOF") // all that Ollama says on /v1
}

func ambiguous(text string) *Error {
	return &Error{Status: http.StatusBadRequest, Code: codeAmbiguousBody, Message: text}
}

func twice(field string) *Error {
	return ambiguous(`"` + field + `" appears more than once`)
}
