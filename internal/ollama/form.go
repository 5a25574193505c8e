package ollama

import (
	"bytes"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
)

const (
	// maxForm is the size of a form that Ollama keeps in memory, in bytes.
	maxForm = 25 << 20
	// maxParts is net/http's own bound for the parts of a form.
	maxParts = 1000

	formFailed = "failed to parse multipart form: "
)

// decodeForm finds the field "model" of a multipart form. Ollama reads the form with
// mime/multipart too; what is refused beyond that is a second "model", of whatever
// kind, since which one counts is the reader's choice.
func decodeForm(e *Endpoint, contentType string, body []byte) (Request, *Error) {
	media, params, err := mime.ParseMediaType(contentType)
	switch {
	case err != nil || media != "multipart/form-data":
		return Request{}, badRequest(formFailed + "request Content-Type isn't multipart/form-data")
	case params["boundary"] == "":
		return Request{}, badRequest(formFailed + "no multipart boundary param in Content-Type")
	case len(body) > maxForm:
		return Request{}, &Error{Status: http.StatusRequestEntityTooLarge, Code: codeBodyTooLarge, Message: formFailed + "multipart: message too large"}
	}
	var model text
	form := multipart.NewReader(bytes.NewReader(body), params["boundary"])
	for n := 0; ; n++ {
		part, err := form.NextPart()
		if err == io.EOF { //nolint:errorlint // a wrapped EOF is a form that was cut off
			break
		}
		if err == nil && n == maxParts {
			err = multipart.ErrMessageTooLarge
		}
		if err != nil {
			return Request{}, badRequest(formFailed + err.Error())
		}
		if part.FormName() != "model" {
			continue
		}
		value, err := io.ReadAll(io.LimitReader(part, maxNameText+1))
		if err != nil {
			return Request{}, badRequest(formFailed + err.Error())
		}
		if part.FileName() != "" {
			return Request{}, ambiguous(`"model" is a file`)
		}
		model.take(value)
	}
	if refused := model.check(e, "model"); refused != nil {
		return Request{}, refused
	}
	return e.named(Request{}, model)
}
