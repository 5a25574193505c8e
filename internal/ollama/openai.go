package ollama

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// maxOpenAIName and maxOwner bound what is kept of an entry of GET /v1/models, in bytes. Ids are chosen by who runs the server: a path of a file,
// an account's resource name.
const (
	maxOpenAIName = 512
	maxOwner      = 128
)

// foreignMark begins the keys of names that are none of Ollama's. No [Name.Key] begins with it.
const foreignMark = "#"

// ModelKey is the key under which a model is held, whatever its provider calls it: that of [Name.Key] if it is a name, so that a model of that name
// is one model at every provider; else the string itself, marked.
func ModelKey(name string) string {
	n, err := ParseName(name)
	if err != nil {
		return foreignMark + name
	}
	return n.Key()
}

// openAIDetails is what clients of Ollama are told of a model that is not Ollama's. They show or ignore it.
type openAIDetails struct {
	ParentModel       string   `json:"parent_model"`
	Format            string   `json:"format"`
	Family            string   `json:"family"`
	Families          []string `json:"families"`
	ParameterSize     string   `json:"parameter_size"`
	QuantizationLevel string   `json:"quantization_level"`
}

// openAITags is an entry of /api/tags with all that strict clients want.
type openAITags struct {
	Name       string        `json:"name"`
	Model      string        `json:"model"`
	ModifiedAt time.Time     `json:"modified_at"`
	Size       int64         `json:"size"`
	Digest     string        `json:"digest"`
	Details    openAIDetails `json:"details"`
}

// ParseOpenAIModel reads one entry of an OpenAI-compatible provider's GET /v1/models. It may come from a hostile node: it must be one JSON object of at
// most 64 KiB whose id, given once, can be shown: at most 512 bytes of printable characters. What else it says is believed if it is of the usual type.
// The Raw of the result is an entry of /api/tags for the same model, of family "openai".
func ParseOpenAIModel(raw []byte) (Model, error) {
	var entry struct {
		ID      text            `json:"id"`
		Created json.RawMessage `json:"created"`
		OwnedBy json.RawMessage `json:"owned_by"`
	}
	if _, err := parseEntry(raw, &entry); err != nil {
		return Model{}, err
	}
	id := entry.ID
	switch {
	case id.seen > 1 || id.wrong != "" || id.long || len(id.value) > maxOpenAIName:
		return Model{}, errors.New("its id is ambiguous, no string, or too long")
	case strings.TrimSpace(id.value) == "" || !printable(id.value):
		return Model{}, fmt.Errorf("its id %q cannot be shown", id.value)
	}
	name, _ := ParseName(id.value)
	sum := sha256.Sum256([]byte("openai:" + id.value))
	m := Model{
		Name: id.value, ModifiedAt: created(entry.Created), Digest: hex.EncodeToString(sum[:]),
		Remote: name.Cloud, OpenAI: true, OwnedBy: owner(entry.OwnedBy),
	}
	m.Raw = encode(openAITags{
		Name: m.Name, Model: m.Name, ModifiedAt: m.ModifiedAt, Digest: m.Digest,
		Details: openAIDetails{Family: "openai", Families: []string{"openai"}},
	})
	return m, nil
}

// printable reports whether s can be shown in a list: no control or format characters, which terminals obey.
func printable(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }) < 0
}

// created reads Unix seconds; zero time for what is none. Some providers send a fraction.
func created(raw json.RawMessage) time.Time {
	var seconds float64
	if json.Unmarshal(raw, &seconds) != nil || seconds <= 0 || seconds > math.MaxUint32 {
		return time.Time{}
	}
	return time.Unix(int64(seconds), 0).UTC()
}

func owner(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) != nil || len(s) > maxOwner || !printable(s) {
		return ""
	}
	return s
}
