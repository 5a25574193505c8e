package ollama

import (
	"encoding/json"
	"net/http"
)

// The codes that this package gives, of the contract's list.
const (
	codeBadRequest          = "bad_request"
	codeAmbiguousBody       = "ambiguous_body"
	codeNoSuchModel         = "no_such_model"
	codeBodyTooLarge        = "body_too_large"
	codeUnsupportedEncoding = "unsupported_encoding"
)

// Error is a refusal, not yet in any family's shape.
type Error struct {
	Status int
	// Code is one of the gateway's codes, or "" if the words are all Ollama's own.
	Code    string
	Message string
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

type openAIError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

type anthropicError struct {
	Type  string             `json:"type"` // always "error"
	Error anthropicErrorBody `json:"error"`
}

type anthropicErrorBody struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

type edgeError struct {
	Error string `json:"error"`
	Code  string `json:"code,omitempty"`
}

// ErrorBody is the JSON body of an error answer. Native clients get the message
// alone, OpenAI's also the code (null if it is ""). There is no newline at the end.
// Anthropic's request_id is left out: the run's id is in a header.
func (f Family) ErrorBody(status int, code, message string) []byte {
	switch f {
	case OpenAI:
		return encode(map[string]openAIError{"error": newOpenAIError(status, code, message)})
	case Anthropic:
		return encode(anthropicError{Type: "error", Error: anthropicErrorBody{Type: anthropicType(status), Message: message}})
	case Edge:
		return encode(edgeError{Error: message, Code: code})
	}
	return encode(edgeError{Error: message})
}

// StreamError is what ends a stream that was cut: an error in the endpoint's own
// format, and never an end that looks complete, such as [DONE]. It has to start at
// the beginning of a line (NDJSON) or of an event (SSE); if the cut left half a one,
// the caller ends that first. A blank line in NDJSON breaks clients.
func (f Family) StreamError(endpoint *Endpoint, code, message string) []byte {
	const status = http.StatusBadGateway // only its error type shows
	switch {
	case endpoint != nil && endpoint.Name == "v1.responses":
		return sse("response.failed", encode(newResponseFailed(code, message)))
	case f == OpenAI:
		return sse("", f.ErrorBody(status, code, message))
	case f == Anthropic:
		return sse("error", f.ErrorBody(status, code, message))
	}
	return append(f.ErrorBody(status, code, message), '\n')
}

func sse(event string, data []byte) []byte {
	var b []byte
	if event != "" {
		b = append(append(append(b, "event: "...), event...), '\n')
	}
	return append(append(append(b, "data: "...), data...), "\n\n"...)
}

func newOpenAIError(status int, code, message string) openAIError {
	e := openAIError{Message: message, Type: "api_error"}
	switch status {
	case http.StatusBadRequest:
		e.Type = "invalid_request_error"
	case http.StatusNotFound:
		e.Type = "not_found_error"
	}
	if code != "" {
		e.Code = &code
	}
	return e
}

func anthropicType(status int) string {
	switch status {
	case http.StatusBadRequest:
		return "invalid_request_error"
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable, 529:
		return "overloaded_error"
	}
	return "api_error"
}

// responseFailed is the event of the Responses API. The response's id and the
// sequence number went by in the stream that was cut and are not known here.
type responseFailed struct {
	Type     string         `json:"type"`
	Response failedResponse `json:"response"`
}

type failedResponse struct {
	Object string        `json:"object"`
	Status string        `json:"status"`
	Error  responseError `json:"error"`
	Output []struct{}    `json:"output"`
}

type responseError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func newResponseFailed(code, message string) responseFailed {
	if code == "" {
		code = "server_error"
	}
	return responseFailed{Type: "response.failed", Response: failedResponse{
		Object: "response", Status: "failed", Error: responseError{Code: code, Message: message}, Output: []struct{}{},
	}}
}

// encode marshals a value of this package's own types, which cannot fail.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("ollama: " + err.Error())
	}
	return b
}
