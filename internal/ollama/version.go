package ollama

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// version is X.Y.Z as numbers. 0.9 is older than 0.10.
type version [3]int

// parseVersion reads X.Y.Z with an optional "v" before and anything that begins with
// '-' or '+' behind: a release candidate has the endpoints of its release.
func parseVersion(s string) (v version, ok bool) {
	s = strings.TrimPrefix(strings.TrimSpace(s), "v")
	if i := strings.IndexAny(s, "-+"); i >= 0 {
		s = s[:i]
	}
	parts := strings.Split(s, ".")
	if len(parts) != len(v) {
		return version{}, false
	}
	for i, part := range parts {
		if len(part) == 0 || len(part) > 6 || strings.Trim(part, "0123456789") != "" {
			return version{}, false
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
	var lowest version
	found := false
	for _, s := range versions {
		v, ok := parseVersion(s)
		if !ok {
			continue
		}
		known := v != version{}
		if !found || known && (lowest == version{} || slices.Compare(v[:], lowest[:]) < 0) {
			lowest = v
		}
		found = true
	}
	if !found {
		return ""
	}
	return fmt.Sprintf("%d.%d.%d", lowest[0], lowest[1], lowest[2])
}

// VersionAtLeast reports whether an Ollama of version v has what came with version
// min. An unknown version, 0.0.0 too, has everything: the node's answer will tell.
// So has every version if min is "".
func VersionAtLeast(v, min string) bool {
	has, ok := parseVersion(v)
	needs, known := parseVersion(min)
	if !ok || !known || has == (version{}) {
		return true
	}
	return slices.Compare(has[:], needs[:]) >= 0
}
