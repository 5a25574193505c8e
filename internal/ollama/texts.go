package ollama

import (
	"net/http"
	"strconv"
	"strings"
)

// Content types and texts that clients compare with Ollama's, byte for byte.
const (
	ContentTypeJSON   = "application/json; charset=utf-8"
	ContentTypeText   = "text/plain"                // of 404 and 405
	ContentTypeRoot   = "text/plain; charset=utf-8" // of /
	ContentTypeNDJSON = "application/x-ndjson"
	ContentTypeSSE    = "text/event-stream"

	RunningText          = "Ollama is running"
	NotFoundText         = "404 page not found"
	MethodNotAllowedText = "405 method not allowed"
	MissingBodyText      = "missing request body"
	ModelRequiredText    = "model is required"
	InvalidNameText      = "invalid model name"
	InvalidDigestText    = "invalid digest format"

	// StatusBody is /api/status where cloud models are off, RecommendationsBody
	// /api/experimental/model-recommendations where there are none.
	StatusBody          = `{"cloud":{"disabled":true,"source":"config"}}`
	RecommendationsBody = `{"recommendations":[]}`
)

// ModelNotFound is the text of the endpoint's 404 for a model that nobody has. name
// is the string of the request. Clients decide by it whether to pull.
func (e *Endpoint) ModelNotFound(name string) string {
	switch e.absent {
	case absentDisplay:
		if n, err := ParseName(name); err == nil {
			name = n.String()
		}
	case absentDouble:
		return "model " + strconv.Quote(name) + " not found"
	case absentPull:
		return "model " + strconv.Quote(name) + " not found, try pulling it first"
	}
	return "model '" + name + "' not found"
}

// noModel is the endpoint's answer to a request that names no model; name is what
// stood in its place: nothing, or white space.
func (e *Endpoint) noModel(name string) *Error {
	switch e.missing {
	case missingNotFound:
		return &Error{Status: http.StatusNotFound, Code: codeNoSuchModel, Message: "model '" + name + "' not found"}
	case missingInvalid:
		return badRequest(InvalidNameText)
	}
	return badRequest(ModelRequiredText)
}

// maxEchoedPath bounds how much of a caller's path an error repeats, in bytes.
const maxEchoedPath = 256

// UnknownPath is the body for a [Match] with status 404 or 405. Under /api and /v1 a
// 404 is JSON that names the path: clients there parse JSON, and a base URL with one
// /v1 too many is the usual cause. Elsewhere, and for 405, it is Ollama's text.
func UnknownPath(m Match, path string) (contentType string, body []byte) {
	if m.Status == http.StatusMethodNotAllowed {
		return ContentTypeText, []byte(MethodNotAllowedText)
	}
	if m.Family == Native && m.Path != "/api" && !strings.HasPrefix(m.Path, "/api/") {
		return ContentTypeText, []byte(NotFoundText)
	}
	if len(path) > maxEchoedPath {
		path = path[:maxEchoedPath] + "…"
	}
	return ContentTypeJSON, m.Family.ErrorBody(http.StatusNotFound, "", NotFoundText+": "+path)
}

// APIVersion is the version whose endpoints the catalogue describes. A gateway says it while no provider's version is known: clients
// refuse a server that has none, and some refuse old ones.
const APIVersion = "0.32.15"
