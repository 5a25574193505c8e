package nodeclient

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/fairway-edge/fairway/nodeclient/adapter"
	"github.com/fairway-edge/fairway/nodeclient/adapter/goals"
	"github.com/fairway-edge/fairway/nodeclient/adapter/ollama"
	"github.com/fairway-edge/fairway/nodeclient/adapter/openai"
)

const (
	// defaultLoaded is Ollama's OLLAMA_MAX_LOADED_MODELS on a CPU and for each GPU.
	defaultLoaded = 3
	// openaiCredits is what an OpenAI server is taken to do at once for one model: it batches, or is a cloud.
	openaiCredits = 32
	// openaiModels is for how many models at once it does that: as with Ollama this bounds the whole, here the node's connections and what one
	// node may ask of a cloud's account.
	openaiModels = 4
	// goalsCredits is how many jobs of one account a node waits for at once. There are no models to count them by.
	goalsCredits = 16
	maxCredits   = 4096 // per model and per target; the gateway takes 65536
	// kindGoals is the adapter whose targets run workflows, and hold no models.
	kindGoals = "goals"
	// OllamaTarget is the name of the target that --ollama gives.
	OllamaTarget = "ollama"
)

// Targets reads targets as `fairway-node run` and `embedded_node` spell them: ollamaURL, or "off", is the target "ollama"; targets are
// NAME=ADAPTER:URL, with adapter ollama, openai or goals; credits are N for all, or TARGET=N. What is not said is 32 for adapter openai, 16 for goals, and
// else taken from Ollama's own environment variables OLLAMA_NUM_PARALLEL and OLLAMA_MAX_LOADED_MODELS, by getenv.
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
		return Target{}, fmt.Errorf("target %q: want NAME=ADAPTER:URL, such as gpu2=ollama:http://127.0.0.1:11435 or vllm=openai:http://127.0.0.1:8000", spec)
	}
	var a adapter.Adapter
	var err error
	switch kind {
	case "ollama":
		a, err = ollama.New(name, url)
	case "openai":
		a, err = openai.New(name, url)
	case kindGoals:
		a, err = goals.New(name, url)
	default:
		err = fmt.Errorf("target %q: unknown adapter %q; want ollama, openai or goals", spec, kind)
	}
	return Target{Adapter: a}, err
}

// grant fills in the credits.
func grant(targets []Target, credits []string, getenv func(string) string) error {
	all := 0 // not said
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
		t := &targets[i]
		n, models := byDefault(t.Adapter.Kind(), getenv)
		n = cmp.Or(one[t.Adapter.Target()], all, n)
		delete(one, t.Adapter.Target())
		t.PerModel, t.PerTarget = n, min(n*models, max(n, maxCredits))
	}
	for name := range one {
		return fmt.Errorf("credits for %s: there is no such target", name)
	}
	return nil
}

// byDefault returns how many runs a provider takes at once for one model, and for how many models at once.
func byDefault(kind string, getenv func(string) string) (n, models int) {
	switch kind {
	case "openai":
		return openaiCredits, openaiModels
	case kindGoals:
		return goalsCredits, 1
	}
	return fromEnv(getenv, "OLLAMA_NUM_PARALLEL", 1), fromEnv(getenv, "OLLAMA_MAX_LOADED_MODELS", defaultLoaded)
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
