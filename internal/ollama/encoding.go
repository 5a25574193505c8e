package ollama

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
)

const (
	// MaxDecoded is the size up to which Ollama decodes a compressed body, in bytes.
	MaxDecoded = 20 << 20
	// maxWindow is the largest zstd window that Ollama allows, in bytes.
	maxWindow = 8 << 20
)

// plainBody undoes the content encoding. Only the exact word zstd counts, for Ollama
// compares it so and would parse the compressed bytes of a body labelled ZSTD.
func plainBody(e *Endpoint, encoding string, body []byte) ([]byte, *Error) {
	encoding = strings.TrimSpace(encoding)
	switch {
	case encoding == "" || strings.EqualFold(encoding, "identity"):
		return body, nil
	case encoding == "zstd" && e.Zstd:
		return unzstd(body)
	}
	if len(encoding) > 64 {
		encoding = encoding[:64]
	}
	return nil, &Error{
		Status: http.StatusUnsupportedMediaType, Code: codeUnsupportedEncoding,
		Message: "content encoding " + strconv.Quote(encoding) + " is not supported here",
	}
}

// unzstd decodes at most MaxDecoded bytes. It does so twice, the first time only to
// count: a bomb then costs no memory, and a buffer of the right size half of one that
// grows. What a body claims to hold plays no part.
func unzstd(body []byte) ([]byte, *Error) {
	r, err := zstd.NewReader(bytes.NewReader(body),
		zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(maxWindow))
	if err != nil {
		return nil, badRequest("failed to decompress zstd body")
	}
	defer r.Close()
	size, err := io.Copy(io.Discard, io.LimitReader(r, MaxDecoded+1))
	switch {
	case size > MaxDecoded:
		return nil, &Error{
			Status: http.StatusRequestEntityTooLarge, Code: codeBodyTooLarge,
			Message: "http: request body too large",
		}
	case err != nil:
		return nil, badRequest("zstd body: " + err.Error())
	}
	plain := make([]byte, size)
	if err := r.Reset(bytes.NewReader(body)); err != nil {
		return nil, badRequest("zstd body: " + err.Error())
	}
	if _, err := io.ReadFull(r, plain); err != nil {
		return nil, badRequest("zstd body: " + err.Error())
	}
	return plain, nil
}
