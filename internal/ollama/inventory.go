package ollama

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// Bounds of what is believed of an inventory. A real entry has about 600 bytes and
// three levels.
const (
	MaxModels     = 4096     // entries of one node
	MaxEntry      = 64 << 10 // bytes of one entry
	maxInventory  = 32 << 20 // bytes of one list
	maxEntryDepth = 32       // nesting of one entry
)

// Model is one entry of /api/tags.
type Model struct {
	Name string
	// Raw is the entry as Ollama wrote it, without white space between tokens.
	// Fields that are unknown today reach the client in it. For a model of another
	// provider it is made up: see [ParseOpenAIModel].
	Raw        json.RawMessage
	ModifiedAt time.Time
	Digest     string
	// Remote says that the entry stands for a model at ollama.com: its prompts would
	// leave the fleet on the node owner's account. [DropRemote] leaves it out.
	Remote bool
	// OpenAI says that an OpenAI-compatible provider has it, which knows it by Name
	// alone, to the letter. OwnedBy is that provider's word.
	OpenAI  bool
	OwnedBy string
}

// Loaded is one entry of /api/ps.
type Loaded struct {
	Name          string
	Raw           json.RawMessage // as in Model
	ExpiresAt     time.Time       // in the past while busy or being unloaded
	SizeVRAM      int64           // bytes; 0 on a CPU
	ContextLength int64           // tokens, the runner's num_ctx; 0 before Ollama 0.10
}

// ParseTags reads an answer of /api/tags. Entries that cannot be used, for their size
// or name, are left out and reported: the models are good also when err is not nil.
func ParseTags(body []byte) ([]Model, error) { return parseList(body, "tags", ParseModel) }

// ParsePS reads an answer of /api/ps, as [ParseTags] does.
func ParsePS(body []byte) ([]Loaded, error) { return parseList(body, "ps", ParseLoaded) }

func parseList[T any](body []byte, what string, parse func([]byte) (T, error)) ([]T, error) {
	if len(body) > maxInventory {
		return nil, fmt.Errorf("ollama %s: %d bytes are too many", what, len(body))
	}
	var list struct {
		Models []json.RawMessage `json:"models"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("ollama %s: %w", what, err)
	}
	var errs []error
	if len(list.Models) > MaxModels {
		errs = append(errs, fmt.Errorf("ollama %s: %d models, only %d are taken", what, len(list.Models), MaxModels))
		list.Models = list.Models[:MaxModels]
	}
	models := make([]T, 0, len(list.Models))
	for i, raw := range list.Models {
		m, err := parse(raw)
		if err != nil {
			errs = append(errs, fmt.Errorf("ollama %s: entry %d: %w", what, i, err))
			continue
		}
		models = append(models, m)
	}
	return models, errors.Join(errs...)
}

// entryName is how both lists name a model: "name" for eyes, "model" for requests.
type entryName struct {
	Name  text `json:"name"`
	Model text `json:"model"`
}

// ParseModel reads one entry of /api/tags. It may come from a hostile node: it must be
// one JSON object of at most 64 KiB whose name is a model's name, given once.
func ParseModel(raw []byte) (Model, error) {
	var entry struct {
		entryName
		ModifiedAt time.Time `json:"modified_at"`
		Digest     string    `json:"digest"`
		RemoteHost string    `json:"remote_host"`
	}
	compact, err := parseEntry(raw, &entry)
	if err != nil {
		return Model{}, err
	}
	name, n, err := entry.read()
	if err != nil {
		return Model{}, err
	}
	return Model{
		Name: name, Raw: compact, ModifiedAt: entry.ModifiedAt, Digest: entry.Digest,
		Remote: entry.RemoteHost != "" || n.Cloud,
	}, nil
}

// ParseLoaded reads one entry of /api/ps, as [ParseModel] does.
func ParseLoaded(raw []byte) (Loaded, error) {
	var entry struct {
		entryName
		ExpiresAt     time.Time `json:"expires_at"`
		SizeVRAM      int64     `json:"size_vram"`
		ContextLength int64     `json:"context_length"`
	}
	compact, err := parseEntry(raw, &entry)
	if err != nil {
		return Loaded{}, err
	}
	name, _, err := entry.read()
	if err != nil {
		return Loaded{}, err
	}
	if entry.SizeVRAM < 0 || entry.ContextLength < 0 {
		return Loaded{}, errors.New("a size is negative")
	}
	return Loaded{
		Name: name, Raw: compact, ExpiresAt: entry.ExpiresAt,
		SizeVRAM: entry.SizeVRAM, ContextLength: entry.ContextLength,
	}, nil
}

func parseEntry(raw []byte, v any) (json.RawMessage, error) {
	raw = trimSpace(raw)
	switch {
	case len(raw) > MaxEntry:
		return nil, fmt.Errorf("%d bytes are too many", len(raw))
	case len(raw) == 0 || raw[0] != '{':
		return nil, errors.New("not a JSON object")
	case !utf8.Valid(raw):
		return nil, errors.New("not UTF-8")
	case depth(raw) > maxEntryDepth:
		return nil, errors.New("nested too deeply")
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return nil, err
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return nil, err
	}
	return compact.Bytes(), nil
}

// depth is how deeply raw nests, if it is JSON.
func depth(raw []byte) int {
	level, deepest, quoted := 0, 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			level++
			deepest = max(deepest, level)
		case c == '}' || c == ']':
			level--
		}
	}
	return deepest
}

// read returns the entry's name. Both spellings have to mean the same model: the list
// is authorised and merged by one, and clients may send the other.
func (e *entryName) read() (string, Name, error) {
	for _, t := range []*text{&e.Name, &e.Model} {
		if t.seen > 1 || t.wrong != "" || t.long {
			return "", Name{}, errors.New("its name is ambiguous, no string, or too long")
		}
	}
	name := e.Name.value
	if name == "" {
		name = e.Model.value
	}
	n, err := ParseName(name)
	if err != nil {
		return "", Name{}, fmt.Errorf("%w: %q", err, name)
	}
	if e.Model.value != "" {
		if other, err := ParseName(e.Model.value); err != nil || other.Key() != n.Key() {
			return "", Name{}, fmt.Errorf("name %q and model %q differ", name, e.Model.value)
		}
	}
	return name, n, nil
}

// DropRemote returns the models that run where they are listed. It does not change
// its argument.
func DropRemote(models []Model) []Model {
	kept := make([]Model, 0, len(models))
	for _, m := range models {
		if !m.Remote {
			kept = append(kept, m)
		}
	}
	return kept
}
