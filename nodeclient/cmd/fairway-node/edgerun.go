package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/spf13/pflag"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/nodeclient"
)

// offline is what `edge run` was asked for.
type offline struct {
	provider
	inputs    []string
	model     string
	deadline  time.Duration
	uncertain bool
	warmUp    bool
	redact    []string
	budget    int
	json      bool
}

func (o *offline) set() *pflag.FlagSet {
	fs := pflag.NewFlagSet("edge run", pflag.ContinueOnError)
	o.common(fs, "the provider's `NAME` for the model (default the one that the file names)")
	fs.BoolVar(&o.uncertain, "accept-uncertain", false, "take an output that is not grounded for good, too")
	fs.BoolVar(&o.warmUp, "warm-up", false, "have the model loaded first, and say on standard error how that went")
	fs.BoolVar(&o.json, "json", false, "print the whole answer as JSON")
	return fs
}

// common are the flags of every run on this machine.
func (o *offline) common(fs *pflag.FlagSet, model string) {
	fs.StringArrayVar(&o.inputs, "input", nil, "a text: `NAME=FILE`, or FILE, named as the file without its extension; - for standard input; may repeat")
	fs.StringVar(&o.model, "model", "", model)
	o.flags(fs)
	fs.DurationVar(&o.deadline, "deadline", 2*time.Minute, "how long the run may take, 1ms to 10m")
	fs.StringArrayVar(&o.redact, "edge-redact", nil, "`REGEX` of what is taken out of the texts first; may repeat")
	fs.IntVar(&o.budget, "edge-budget", edge.DefaultBudget, "the most `TOKENS` that the run may take")
}

const edgeRunUsage = "edge run CONTRACT --input [NAME=]FILE [flags]"

// edgeRun is the command edge run. Whatever the model, the provider or the network does ends in a result, which is printed; exit 0 only for one that
// the caller may act on.
func edgeRun(env *environment, args []string) error {
	o := new(offline)
	fs := o.set()
	if err := parseEdge(env, fs, edgeRunUsage, args); err != nil {
		return err
	}
	if fs.NArg() != 1 {
		return usagef("edge run takes one file, a contract or an operator; usage: fairway-node %s", edgeRunUsage)
	}
	gates, err := edgeGates(o.redact, o.budget, nil, "")
	if err != nil {
		return err
	}
	r, err := o.request(env, fs.Arg(0))
	if err != nil {
		return err
	}
	t, err := o.target(env)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(env.context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.warmUp {
		o.warm(ctx, env, t, r)
	}
	result := nodeclient.Ask(ctx, t.Adapter, r, gates)
	where := edge.Decision{Placement: edge.Edge, Reason: "edge: on this machine, without a gateway"}
	a, err := edge.NewAnswer(runID(), "", r, where, result)
	if err != nil {
		return err
	}
	if err := o.print(env.stdout, a); err != nil {
		return err
	}
	if a.Disposition != edge.Accept {
		return errQuiet
	}
	return nil
}

// runID makes the id of a run that no gateway gave one: 128 random bits, as they do.
func runID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(id[:])
}

// warm loads the model, for at most as long as the run may take. It decides nothing: the run says for itself what is wrong.
func (o *offline) warm(ctx context.Context, env *environment, t nodeclient.Target, r *edge.Request) {
	ctx, stop := context.WithTimeout(ctx, r.Deadline())
	defer stop()
	w := nodeclient.WarmUp(ctx, t.Adapter, r.Operator.Model)
	line := "warm-up: " + string(w.State)
	if w.LatencyMS != nil {
		line += fmt.Sprintf(" (%.1f ms)", *w.LatencyMS)
	}
	if w.Detail != "" {
		line += ": " + plain(w.Detail)
	}
	_, _ = fmt.Fprintln(env.stderr, line)
}

// request makes the request that a gateway would be sent, and reads it as strictly.
func (o *offline) request(env *environment, path string) (*edge.Request, error) {
	if o.deadline < time.Millisecond || o.deadline > 10*time.Minute {
		return nil, usagef("--deadline %s: want 1ms to 10m", o.deadline)
	}
	file, err := readFile(path)
	if err != nil {
		return nil, err
	}
	operator, err := o.operator(path, file)
	if err != nil {
		return nil, err
	}
	in, err := o.texts(env)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(struct {
		Operator  json.RawMessage `json:"operator"`
		Input     edge.Input      `json:"input,omitempty"`
		Placement edge.Placement  `json:"placement"`
		Deadline  int64           `json:"deadline_ms"`
		Uncertain bool            `json:"accept_uncertain"`
	}{operator, in, edge.Edge, o.deadline.Milliseconds(), o.uncertain})
	if err != nil {
		return nil, usagef("%s: %v", path, err)
	}
	r, err := edge.ParseRequest(body)
	var field *edge.FieldError
	switch {
	case errors.As(err, &field) && field.Field == "input":
		return nil, usagef("--input: %v", err)
	case err != nil:
		return nil, usagef("%s: %v", path, err)
	}
	if o.model != "" {
		r.Operator.Model = o.model
	}
	return r, nil
}

// operator makes the request's operator of a file: an operator as it stands, which names its kind, or a contract.
func (o *offline) operator(path string, file []byte) (json.RawMessage, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(file, &members); err != nil {
		return nil, usagef("%s: want a JSON object, a contract or an operator: %v", path, err)
	}
	model, _ := json.Marshal(o.model)
	if len(o.model) > 512 {
		return nil, usagef("--model is longer than 512 bytes")
	}
	kind, whole := members["kind"]
	switch {
	case !whole && o.model == "":
		return fmt.Appendf(nil, `{"kind":"contract","contract":%s}`, file), nil
	case !whole:
		return fmt.Appendf(nil, `{"kind":"contract","model":%s,"contract":%s}`, model, file), nil
	case string(kind) == `"goal"`:
		return nil, usagef("%s: a goal runs only in the cloud", path)
	case o.model == "" || members["model"] != nil:
		return file, nil
	}
	return fmt.Appendf(nil, `{"model":%s,%s`, model, bytes.TrimPrefix(bytes.TrimSpace(file), []byte("{"))), nil
}

// texts reads the inputs, in the order in which they were given.
func (o *offline) texts(env *environment) (in edge.Input, err error) {
	var total int
	for _, spec := range o.inputs {
		name, path, named := strings.Cut(spec, "=")
		if !named {
			path = spec
			if name = "stdin"; path != "-" {
				name = strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
			}
		}
		for _, other := range in {
			if other.Name == name {
				return nil, usagef("--input %s: there are two texts of the name %q; give one another, as NAME=FILE", spec, name)
			}
		}
		var text []byte
		if path == "-" {
			text, err = readAll("standard input", env.stdin)
		} else {
			text, err = readFile(path)
		}
		if err != nil {
			return nil, err
		}
		if !utf8.Valid(text) {
			return nil, usagef("--input %s is not UTF-8 text", spec)
		}
		if total += len(text); total > edge.MaxRequest {
			return nil, usagef("--input: all texts together are longer than a run may have")
		}
		in = append(in, edge.Source{Name: name, Text: string(text)})
	}
	return in, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, usagef("%v", err)
	}
	defer f.Close() //nolint:errcheck // only read
	return readAll(path, f)
}

// readAll reads no more than a request may have.
func readAll(name string, r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, edge.MaxRequest+1))
	switch {
	case err != nil:
		return nil, usagef("reading %s: %v", name, err)
	case len(b) > edge.MaxRequest:
		return nil, usagef("%s is longer than a run may have", name)
	}
	return b, nil
}
