package nodeclient

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/fairway-edge/fairway/nodeclient/adapter/ollama"
)

const (
	// defaultLoaded is Ollama's OLLAMA_MAX_LOADED_MODELS on a CPU and for each GPU.
	defaultLoaded = 3
	maxCredits    = 4096 // per model and per target; the gateway takes 65536
	// OllamaTarget is the name of the target that --ollama gives.
	OllamaTarget = "ollama"
)

// Targets reads targets as `fairway-node run` and `embedded_node` spell them: ollamaURL, or "off", is the target "ollama"; targets are
// NAME=ADAPTER:URL; credits are N for all, or TARGET=N. What is not said is taken from Ollama's own environment variables OLLAMA_NUM_PARALLEL
// and OLLAMA_MAX_LOADED_MODELS, by getenv.
func Targets(ollamaURL string, targets, credits []string, getenv func(string) string) ([]Target, error) {
	var out []Target
	if ollamaURL != "" && ollamaURL != "off" {
		a, err := ollama.New(OllamaTarget, ollamaURL)
		if err != nil {
			return nil, err
		}
		out = append(out, Target{Adapter: a})
	}
	for _, spec := range targets {
		t, err := parseTarget(spec)
		if err != nil {
			return nil, err
		}
		for _, o := range out {
			if o.Adapter.Target() == t.Adapter.Target() {
				return nil, fmt.Errorf("target %s is given twice", t.Adapter.Target())
			}
		}
		out = append(out, t)
	}
	return out, grant(out, credits, getenv)
}

func parseTarget(spec string) (Target, error) {
	name, rest, ok := strings.Cut(spec, "=")
	kind, url, ok2 := strings.Cut(rest, ":")
	if !ok || !ok2 || name == "" || len(name) > 63 || strings.ContainsAny(name, " \t\r\n") {
		return Target{}, fmt.Errorf("target %q: want NAME=ollama:URL, such as gpu2=ollama:http://127.0.0.1:11435", spec)
	}
	switch kind {
	case "ollama":
	case "openai", "goals":
		return Target{}, fmt.Errorf("target %q: adapter %s is not in this version; want ollama", spec, kind)
	default:
		return Target{}, fmt.Errorf("target %q: unknown adapter %q; want ollama", spec, kind)
	}
	a, err := ollama.New(name, url)
	return Target{Adapter: a}, err
}

// grant fills in the credits.
func grant(targets []Target, credits []string, getenv func(string) string) error {
	all := fromEnv(getenv, "OLLAMA_NUM_PARALLEL", 1)
	loaded := fromEnv(getenv, "OLLAMA_MAX_LOADED_MODELS", defaultLoaded)
	one := make(map[string]int)
	for _, c := range credits {
		name, number, named := strings.Cut(c, "=")
		if !named {
			number = c
		}
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || n > maxCredits {
			return fmt.Errorf("credits %q: want N or TARGET=N, N from 1 to %d", c, maxCredits)
		}
		if !named {
			all = n
			continue
		}
		one[name] = n
	}
	for i := range targets {
		name := targets[i].Adapter.Target()
		n, ok := one[name]
		if !ok {
			n = all
		}
		delete(one, name)
		targets[i].PerModel, targets[i].PerTarget = n, min(n*loaded, max(n, maxCredits))
	}
	for name := range one {
		return fmt.Errorf("credits for %s: there is no such target", name)
	}
	return nil
}

// fromEnv reads one of Ollama's own numbers; 0 and what is no number mean "as Ollama sees fit".
func fromEnv(getenv func(string) string, name string, otherwise int) int {
	if n, err := strconv.Atoi(getenv(name)); err == nil && n > 0 && n <= maxCredits {
		return n
	}
	return otherwise
}

// Labels reads labels spelled k=v.
func Labels(specs []string) (map[string]string, error) {
	labels := make(map[string]string, len(specs))
	for _, s := range specs {
		k, v, ok := strings.Cut(s, "=")
		if !ok || k == "" {
			return nil, fmt.Errorf("label %q: want name=value", s)
		}
		if _, twice := labels[k]; twice {
			return nil, fmt.Errorf("label %s is given twice", k)
		}
		labels[k] = v
	}
	return labels, nil
}
