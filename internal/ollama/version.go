package ollama

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Version is X.Y.Z as numbers: 0.9 is older than 0.10. The zero Version is an unknown
// one, and what a build without a version says of itself.
type Version [3]int

// ParseVersion reads X.Y.Z as Ollama's /api/version has it; zero if it is none.
func ParseVersion(s string) Version {
	v, _ := parseVersion(s)
	return v
}

// AtLeast reports whether an Ollama of this version has what came with version min.
// An unknown version has everything: the node's answer will tell. So has every version
// if min is unknown.
func (v Version) AtLeast(min Version) bool {
	return v == (Version{}) || slices.Compare(v[:], min[:]) >= 0
}

// parseVersion reads X.Y.Z with an optional "v" before and anything that begins with
// '-' or '+' behind: a release candidate has the endpoints of its release.
func parseVersion(s string) (v Version, ok bool) {
	s = strings.TrimPrefix(strings.TrimSpace(s), "v")
	if i := strings.IndexAny(s, "-+"); i >= 0 {
		s = s[:i]
	}
	for i := range v {
		var part string
		var more bool
		part, s, more = strings.Cut(s, ".")
		if more != (i < len(v)-1) || len(part) == 0 || len(part) > 6 || strings.Trim(part, "0123456789") != "" {
			return Version{}, false
		}
		v[i], _ = strconv.Atoi(part) // at most six digits
	}
	return v, true
}

// LowestVersion is what /api/version answers for a fleet: the lowest of the nodes'
// versions as plain X.Y.Z, which clients compare with a minimum. What is no version is
// passed over. So is 0.0.0, which a build without a version says of itself and at
// which some clients refuse to work, unless there is nothing else. Without any
// version it is "".
func LowestVersion(versions []string) string {
	var lowest Version
	found := false
	for _, s := range versions {
		v, ok := parseVersion(s)
		if !ok {
			continue
		}
		known := v != Version{}
		if !found || known && (lowest == Version{} || slices.Compare(v[:], lowest[:]) < 0) {
			lowest = v
		}
		found = true
	}
	if !found {
		return ""
	}
	return fmt.Sprintf("%d.%d.%d", lowest[0], lowest[1], lowest[2])
}
