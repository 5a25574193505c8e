package edge

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"unicode/utf8"
)

// Bounds of a result, both ways.
const (
	maxAnswer       = 1 << 20 // bytes of an output
	maxAnswerDepth  = 64      // levels of it
	maxAnswerValues = 20000   // values in it
	maxResult       = maxAnswer + 2<<20
	maxEvidence     = 1024
	maxName         = 128 // code points of a source's or a field's name
	maxModel        = 512 // bytes of a model's name or version
	maxDetail       = 512 // code points
	maxSnippet      = 1e6 // bytes; a contract's cap is lower
	localModel      = "edge-local"
	noVersion       = "0"
)

var resultLimits = limits{bytes: maxResult, depth: maxAnswerDepth + 4, values: maxAnswerValues + 5*maxEvidence}

// wireResult is a result's JSON: every member is always there.
type wireResult struct {
	Status        Status          `json:"status"`
	ModelID       string          `json:"model_id"`
	ModelVersion  string          `json:"model_version"`
	LatencyMS     float64         `json:"latency_ms"`
	Output        json.RawMessage `json:"output"`
	Confidence    *float64        `json:"confidence"`
	Evidence      []Evidence      `json:"evidence"`
	DegradeReason *DegradeReason  `json:"degrade_reason"`
	DegradeDetail *string         `json:"degrade_detail"`
}

// MarshalJSON implements [json.Marshaler]. A result that breaks a rule of [ModelResult] is an error, not JSON.
func (r ModelResult) MarshalJSON() ([]byte, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	w := wireResult{
		Status: r.Status, ModelID: r.ModelID, ModelVersion: r.ModelVersion, LatencyMS: r.LatencyMS,
		Output: r.Output, Confidence: r.Confidence, Evidence: r.Evidence,
	}
	if w.Evidence == nil {
		w.Evidence = []Evidence{}
	}
	if r.DegradeReason != "" {
		w.DegradeReason = &r.DegradeReason
	}
	if r.DegradeDetail != "" {
		w.DegradeDetail = &r.DegradeDetail
	}
	return plainJSON(w)
}

// plainJSON is json.Marshal without the escapes for HTML, which nobody here embeds anything into.
func plainJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// check holds a result to what its status allows.
func (r ModelResult) check() error {
	answered := r.Status == Success || r.Status == Uncertain
	switch {
	case !answered && r.Status != Unavailable && r.Status != Invalid:
		return &FieldError{"status", "is not one of success, uncertain, unavailable, invalid"}
	case badName(r.ModelID):
		return &FieldError{"model_id", "is empty, too long or not UTF-8"}
	case badName(r.ModelVersion):
		return &FieldError{"model_version", "is empty, too long or not UTF-8"}
	case math.IsNaN(r.LatencyMS) || math.IsInf(r.LatencyMS, 0) || r.LatencyMS < 0:
		return &FieldError{"latency_ms", "is not a duration"}
	case r.Confidence != nil && (!answered || !(*r.Confidence >= 0 && *r.Confidence <= 1)):
		return &FieldError{"confidence", "is not from 0 to 1, or belongs to no answer"}
	case r.Status == Success && r.Output == nil:
		return &FieldError{"output", "is missing from a success"}
	case !answered && r.Output != nil:
		return &FieldError{"output", "belongs to no answer"}
	case len(r.Output) > maxAnswer:
		return &FieldError{"output", "is too long"}
	case r.Output != nil && (!json.Valid(r.Output) || bytes.Equal(bytes.TrimSpace(r.Output), []byte("null"))):
		return &FieldError{"output", "is not a JSON value"}
	case len(r.Evidence) > maxEvidence || !answered && len(r.Evidence) > 0:
		return &FieldError{"evidence", "is too much, or belongs to no answer"}
	}
	for i, e := range r.Evidence {
		if e.Source == "" || len(e.Source) > maxModel || !utf8.ValidString(e.Source) || e.Offset != nil && *e.Offset < 0 ||
			e.Snippet != nil && (len(*e.Snippet) > maxSnippet || !utf8.ValidString(*e.Snippet)) {
			return under("evidence", within(i, problem("has no source, or is out of bounds")))
		}
	}
	return r.checkReason()
}

func (r ModelResult) checkReason() error {
	switch r.DegradeReason {
	case "":
	case ServerUnreachable, DeadlineExceeded, OutputUnparseable, OtherError:
		if r.Status != Unavailable {
			return &FieldError{"degrade_reason", "belongs to unavailable only"}
		}
	default:
		return &FieldError{"degrade_reason", "is not one of server_unreachable, deadline_exceeded, output_unparseable, error"}
	}
	if r.DegradeDetail != "" && (r.Status == Success || length(r.DegradeDetail) > maxDetail+1 || !utf8.ValidString(r.DegradeDetail)) {
		return &FieldError{"degrade_detail", "is too long, not UTF-8, or belongs to no success"}
	}
	return nil
}

func badName(s string) bool { return s == "" || len(s) > maxModel || !utf8.ValidString(s) }

// UnmarshalJSON implements [json.Unmarshaler], as strictly as the result is written: a member that is not known, that is missing though
// required, of another type or out of range is an error that names it.
func (r *ModelResult) UnmarshalJSON(data []byte) error {
	n, refused := readJSON(data, resultLimits)
	if refused != nil {
		return refused
	}
	f := read(n)
	got := ModelResult{
		Status:        Status(f.needText("status", 16)),
		ModelID:       f.needText("model_id", maxModel),
		ModelVersion:  f.needText("model_version", maxModel),
		LatencyMS:     f.float("latency_ms", f.need("latency_ms", jsonNumber)),
		DegradeReason: DegradeReason(f.text("degrade_reason", 32)),
		DegradeDetail: f.text("degrade_detail", 4*(maxDetail+1)),
	}
	if v := f.get("output"); v != nil {
		got.Output = v.compact()
	}
	if v := f.typed("confidence", jsonNumber); v != nil {
		c := f.float("confidence", v)
		got.Confidence = &c
	}
	if v := f.typed("evidence", jsonList); v != nil {
		got.Evidence = readEvidence(f, v)
	}
	if refused := f.done(); refused != nil {
		return refused
	}
	if err := got.check(); err != nil {
		return err
	}
	*r = got
	return nil
}

func readEvidence(f *fields, v *node) []Evidence {
	if len(v.items) > maxEvidence {
		f.fail("evidence", "has more than %d entries", maxEvidence)
		return nil
	}
	var all []Evidence
	for i, item := range v.items {
		g := read(item)
		e := Evidence{Source: g.needText("source", maxModel)}
		if s := g.typed("snippet", jsonText); s != nil {
			e.Snippet = &s.text
		}
		if g.get("offset") != nil {
			offset := g.integer("offset", 0, math.MaxInt32, 0)
			e.Offset = &offset
		}
		if refused := g.done(); refused != nil {
			f.keep(under("evidence", within(i, refused)))
		}
		all = append(all, e)
	}
	return all
}

func (f *fields) float(name string, v *node) float64 {
	x, err := strconv.ParseFloat(v.text, 64)
	if err != nil && !errors.Is(err, strconv.ErrSyntax) { // the literal is empty where the member was missing
		f.fail(name, "is out of range")
	}
	return x
}
