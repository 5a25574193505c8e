package ollama

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"
)

const (
	defaultHost      = "registry.ollama.ai"
	defaultNamespace = "library"
	defaultTag       = "latest"

	maxHost = 350 // bytes
	maxPart = 80  // bytes, of namespace, model and tag
)

// Name is a model's name with its defaults filled in. Parts keep the spelling of
// the string they came from: compare names by [Name.Key].
type Name struct {
	Host, Namespace, Model, Tag string
	// Cloud says that the string asked for the model at ollama.com, by :cloud or
	// -cloud, which is no longer part of the tag. No node may run such a name: it
	// would send the prompt out on its owner's account.
	Cloud bool
}

// ParseName reads a model's name as Ollama does: white space around it is dropped,
// then a :cloud, :local or -cloud ending, then the last ':' after the last '/' cuts
// off the tag and the last two '/' the model and the namespace. An error is an
// [*Error] with status 400 and Ollama's text. Whatever it accepts is ASCII and at
// most 600 bytes long in [Name.Key].
func ParseName(s string) (Name, error) {
	s = strings.TrimSpace(s)
	if s == "" {
		return Name{}, badRequest(ModelRequiredText)
	}
	base, cloud, explicit := cutSource(s)
	if explicit {
		if _, _, twice := cutSource(base); twice {
			return Name{}, badRequest(fmt.Sprintf("use either :local or :cloud, not both: %q", s))
		}
	}
	n, err := parsePlainName(base)
	if err != nil {
		return Name{}, err
	}
	n.Cloud = cloud
	return n, nil
}

// cutSource cuts the ending that says where the model runs. explicit is true if
// there was one, also if it was :local.
func cutSource(s string) (base string, cloud, explicit bool) {
	colon := strings.LastIndexByte(s, ':')
	if colon < 0 {
		return s, false, false
	}
	source := strings.TrimSpace(s[colon+1:])
	switch {
	case strings.EqualFold(source, "cloud"):
		return s[:colon], true, true
	case strings.EqualFold(source, "local"):
		return s[:colon], false, true
	}
	const ending = "-cloud"
	cut := len(source) - len(ending)
	if cut >= 0 && strings.EqualFold(source[cut:], ending) && !strings.Contains(source, "/") {
		return s[:colon+1] + source[:cut], true, true
	}
	return s, false, false
}

// parsePlainName reads a name without a source ending; copy, create and push know none.
func parsePlainName(s string) (Name, error) {
	// A separator promises a part on both sides. broken is a part that no check
	// lets pass; an empty one would be filled with a default.
	const broken = "!"
	var n Name
	rest := s
	cut := func(sep byte) (part string, ok bool) {
		i := strings.LastIndexByte(rest, sep)
		if i < 0 {
			return "", false
		}
		part = cmp.Or(rest[i+1:], broken)
		rest = cmp.Or(rest[:i], broken)
		return part, true
	}
	if strings.LastIndexByte(s, ':') > strings.LastIndexByte(s, '/') {
		n.Tag, _ = cut(':')
	}
	var ok bool
	if n.Model, ok = cut('/'); !ok {
		n.Model = rest
	} else if n.Namespace, ok = cut('/'); !ok {
		n.Namespace = rest
	} else if _, host, ok := strings.Cut(rest, "://"); ok {
		n.Host = host // the scheme plays no part in what the model is
	} else {
		n.Host = rest
	}
	n.Host = cmp.Or(n.Host, defaultHost)
	n.Namespace = cmp.Or(n.Namespace, defaultNamespace)
	n.Tag = cmp.Or(n.Tag, defaultTag)
	if !validPart(n.Host, maxHost, ".:") || !validPart(n.Namespace, maxPart, "") ||
		!validPart(n.Model, maxPart, ".") || !validPart(n.Tag, maxPart, ".") {
		return Name{}, badRequest(InvalidNameText)
	}
	return n, nil
}

// validPart wants a letter, digit or '_' first, then also '-' and the extra bytes.
func validPart(s string, most int, extra string) bool {
	if s == "" || len(s) > most || !isWordByte(s[0]) {
		return false
	}
	for i := 1; i < len(s); i++ {
		if c := s[i]; !isWordByte(c) && c != '-' && strings.IndexByte(extra, c) < 0 {
			return false
		}
	}
	return true
}

func isWordByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_'
}

// cloudMark tells the keys of cloud names from those of local ones, so that a caller
// who forgets to look at Cloud finds no node. '#' is in no valid name.
const cloudMark = "#cloud"

// Key is the same string for all spellings of the same model: all four parts, case
// folded. It contains ':' and '/'.
func (n Name) Key() string {
	key := strings.ToLower(n.Host + "/" + n.Namespace + "/" + n.Model + ":" + n.Tag)
	if n.Cloud {
		key += cloudMark
	}
	return key
}

// String is the name as Ollama displays it: without default host and namespace,
// always with the tag. [ParseName] reads it back to the same [Name.Key].
func (n Name) String() string {
	s := n.Model + ":" + n.Tag
	switch {
	case !strings.EqualFold(n.Host, defaultHost):
		s = n.Host + "/" + n.Namespace + "/" + s
	case !strings.EqualFold(n.Namespace, defaultNamespace):
		s = n.Namespace + "/" + s
	}
	if n.Cloud {
		s += ":cloud"
	}
	return s
}

// ValidDigest reports whether s names a blob as Ollama accepts it: sha256, ':' or
// '-', 64 hexadecimal digits.
func ValidDigest(s string) bool {
	const algorithm = "sha256"
	if len(s) != len(algorithm)+1+64 || s[:len(algorithm)] != algorithm {
		return false
	}
	if sep := s[len(algorithm)]; sep != ':' && sep != '-' {
		return false
	}
	for i := len(algorithm) + 1; i < len(s); i++ {
		c := s[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
			return false
		}
	}
	return true
}

func badRequest(text string) *Error {
	return &Error{Status: http.StatusBadRequest, Code: codeBadRequest, Message: text}
}
