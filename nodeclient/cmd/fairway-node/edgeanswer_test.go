package main

import (
	"strings"
	"testing"
)

// A22: the step is answered from the files that are here; where no model could be asked the answer is owed all the same.
func TestClientCompute(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	const payload = `{"nonce":"n-1","required_anchors":["number","place"],"extractor_prompt":"Read.","file_ids":["f1","f2"],"strategy":"client_delegated","x":1}`
	d.write("step.json", payload)
	d.write("entry.json", `{"interruptType":"client_compute","interruptId":"i","status":"pending","payload":`+payload+`}`)
	d.write("free.json", strings.Replace(payload, `"file_ids":["f1","f2"],`, "", 1))
	d.write("file.txt", "Invoice no 4711\n⟦{\"number\":\"4711\",\"place\":\"Bern and more\"}⟧")
	d.write("some.txt", "No 4711. ⟦{\"number\":\"4711\"}⟧")
	const (
		both = `{"anchors":{"number":"4711","place":"Bern and more"},"nonce":"n-1"}` // what the model says stands in the text
		one  = `{"anchors":{"number":"4711","place":"Not specified"},"nonce":"n-1"}`
		none = `{"anchors":{"number":"Not specified","place":"Not specified"},"nonce":"n-1"}`
	)
	for _, tc := range []struct {
		name, want, says string
		stdin            string
		args             []string
	}{
		{"bare", both, "", "", []string{"@step.json", "--input", "f1=@file.txt", "--model", "t-say"}},
		{"entry", both, "", "", []string{"@entry.json", "--input", "f2=@file.txt", "--model", "t-say"}},
		{"standard input", both, "", payload, []string{"-", "--input", "f1=@file.txt", "--model", "t-say"}},
		{"no files named", both, "", "", []string{"@free.json", "--input", "@file.txt", "--model", "t-say"}},
		{"one anchor", one, "", "", []string{"@step.json", "--input", "f1=@some.txt", "--model", "t-say"}},
		{"OpenAI", both, "", "", []string{"@step.json", "--input", "f1=@file.txt", "--model", "t-say", "--openai", d.f.URL()}},
		{"nobody", none, "unavailable: unreachable", "", []string{"@step.json", "--input", "f1=@file.txt", "--model", "t-say", "--ollama", "http://127.0.0.1:1"}},
		{"missing", none, "unavailable: model_missing", "", []string{"@step.json", "--input", "f1=@file.txt", "--model", "gone"}},
		{"deadline", none, "unavailable: deadline_ms=100", "", []string{"@step.json", "--input", "f1=@file.txt", "--model", "t-slowload", "--deadline", "100ms"}},
		{"budget", none, "unavailable: gate: budget", "", []string{"@step.json", "--input", "f1=@file.txt", "--model", "t-say", "--edge-budget", "1049"}},
	} {
		code, out, errs := d.run(tc.stdin, append([]string{"answer"}, tc.args...)...)
		if code != exitOK || out != tc.want+"\n" || !strings.HasPrefix(errs, tc.says) || tc.says == "" && errs != "" {
			t.Errorf("%s: exit %d, %s%s", tc.name, code, out, errs)
		}
	}
	before := d.f.Stats().Exec
	for _, tc := range []struct {
		says string
		args []string
	}{
		{"takes one file", []string{"--model", "t-say"}},
		{"names 2 files, and none of them is here", []string{"@step.json", "--model", "t-say"}},
		{"input.mail is not among file_ids", []string{"@step.json", "--model", "t-say", "--input", "@mail.txt"}},
		{"model is required", []string{"@step.json", "--input", "f1=@file.txt"}},
		{"nothing to look in", []string{"@free.json", "--model", "t-say"}},
		{"extractor_prompt is required", []string{"@invoice.json", "--model", "t-say"}},
		{"--deadline", []string{"@step.json", "--model", "t-say", "--deadline", "1h"}},
		{"no such file", []string{"@nothing.json", "--model", "t-say"}},
	} {
		if code, out, errs := d.run("", append([]string{"answer"}, tc.args...)...); code != exitUsage || out != "" || !strings.Contains(errs, tc.says) {
			t.Errorf("%v: exit %d, %s%s; want %s", tc.args, code, out, errs, tc.says)
		}
	}
	if d.f.Stats().Exec != before {
		t.Error("a model was asked for a step that cannot be answered")
	}
}
