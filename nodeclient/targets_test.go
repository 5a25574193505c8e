package nodeclient

import (
	"fmt"
	"strings"
	"testing"
)

func TestTargetsOfEachAdapter(t *testing.T) {
	t.Parallel()
	env := map[string]string{"OLLAMA_NUM_PARALLEL": "2", "OLLAMA_MAX_LOADED_MODELS": "5"}
	specs := []string{"gpu2=ollama:10.0.0.2", "vllm=openai:http://127.0.0.1:8000", "router=openai:https://openrouter.ai/api/v1", "far=openai:h", "cloud=goals:https://api.example.com"}
	for _, tc := range []struct {
		credits []string
		env     map[string]string
		want    string // credits for a model and for the target
	}{
		{nil, nil, "1/3 1/3 32/128 32/128 32/128 16/16"},
		{nil, env, "2/10 2/10 32/128 32/128 32/128 16/16"},
		{[]string{"4"}, env, "4/20 4/20 4/16 4/16 4/16 4/4"},
		{[]string{"vllm=200", "gpu2=1", "cloud=3"}, env, "2/10 1/5 200/800 32/128 32/128 3/3"},
		{[]string{"router=8", "6"}, nil, "6/18 6/18 6/24 8/32 6/24 6/6"},
		{[]string{"4096"}, nil, "4096/4096 4096/4096 4096/4096 4096/4096 4096/4096 4096/4096"},
	} {
		ts, err := Targets("http://127.0.0.1:11434", specs, tc.credits, func(k string) string { return tc.env[k] })
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, x := range ts {
			got = append(got, fmt.Sprintf("%d/%d", x.PerModel, x.PerTarget))
		}
		if s := strings.Join(got, " "); s != tc.want {
			t.Errorf("credits %v: %s, want %s", tc.credits, s, tc.want)
		}
		for i, want := range []string{
			"ollama ollama http://127.0.0.1:11434", "gpu2 ollama http://10.0.0.2:11434", "vllm openai http://127.0.0.1:8000",
			"router openai https://openrouter.ai:443", "far openai http://h:80", "cloud goals https://api.example.com:443",
		} {
			if a := ts[i].Adapter; a.Target()+" "+a.Kind()+" "+a.Origin() != want {
				t.Errorf("target %d is %s %s %s, want %s", i, a.Target(), a.Kind(), a.Origin(), want)
			}
		}
	}
}

func TestTargetsThatAreRefused(t *testing.T) {
	t.Parallel()
	none := func(string) string { return "" }
	for spec, says := range map[string]string{
		"v=goals:h": "got no scheme", "v=goals:http://h/api": "nothing else", "v=vllm:http://h": "want ollama, openai or goals", "v": "NAME=ADAPTER:URL", "=openai:h": "NAME=ADAPTER:URL",
		"v=openai": "NAME=ADAPTER:URL", "v=openai:": "scheme", "v=openai:ftp://h": "scheme", "v=openai:http://h/../x": "as an OpenAI client takes it",
		"v=openai:http://h/v1?key=1": "bad path", "v=ollama:http://h/v1": "nothing else", "ollama=openai:h": "given twice",
	} {
		if ts, err := Targets("http://127.0.0.1:11434", []string{spec}, nil, none); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, %v, want an error that says %q", spec, ts, err, says)
		}
	}
	for _, credits := range []string{"0", "x", "4097", "v=0", "w=1", "v=4097"} {
		if _, err := Targets("off", []string{"v=openai:h"}, []string{credits}, none); err == nil {
			t.Errorf("credits %s are taken", credits)
		}
	}
}
