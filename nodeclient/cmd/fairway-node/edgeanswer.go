package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/nodeclient"
)

const edgeAnswerUsage = "edge answer PAYLOAD --input [FILE_ID=]FILE --model NAME [flags]"

// edgeAnswer is the command edge answer. It prints what the cloud is owed for a step, also where no model could be asked: then every anchor is missing, and
// standard error says why. Nothing is printed, and the exit code is not 0, where there is nothing to answer from, or when it is interrupted.
func edgeAnswer(env *environment, args []string) error {
	o := new(offline)
	fs := pflag.NewFlagSet("edge answer", pflag.ContinueOnError)
	o.common(fs, "the provider's `NAME` for the model (required: a step names none)")
	if err := parseEdge(env, fs, edgeAnswerUsage, args); err != nil {
		return err
	}
	if fs.NArg() != 1 {
		return usagef("edge answer takes one file, the payload of client_compute, or - for standard input; usage: fairway-node %s", edgeAnswerUsage)
	}
	if o.deadline < time.Millisecond || o.deadline > 10*time.Minute {
		return usagef("--deadline %s: want 1ms to 10m", o.deadline)
	}
	gates, err := edgeGates(o.redact, o.budget, nil, "")
	if err != nil {
		return err
	}
	c, r, err := o.step(env, fs.Arg(0))
	if err != nil {
		return err
	}
	t, err := o.target(env)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(env.context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	result := nodeclient.Ask(ctx, t.Adapter, r, gates)
	if err := ctx.Err(); err != nil {
		return err // whoever interrupts wants no answer
	}
	answer, err := c.Answer(result)
	if err != nil {
		return err
	}
	if result.Status != edge.Success {
		_, _ = fmt.Fprintf(env.stderr, "%s: %s\n", result.Status, plain(result.DegradeDetail))
	}
	_, err = env.stdout.Write(append(answer, '\n'))
	return err
}

// step reads the step and the texts that it is about.
func (o *offline) step(env *environment, path string) (*edge.Compute, *edge.Request, error) {
	var payload []byte
	var err error
	if path == "-" {
		payload, err = readAll("standard input", env.stdin)
	} else {
		payload, err = readFile(path)
	}
	if err != nil {
		return nil, nil, err
	}
	c, err := edge.ParseCompute(payload)
	if err != nil {
		return nil, nil, usagef("%s: %v", path, err)
	}
	in, err := o.texts(env)
	if err != nil {
		return nil, nil, err
	}
	r, err := c.Request(o.model, in, o.deadline)
	if err != nil {
		return nil, nil, usagef("%s: %v; give a text as --input FILE_ID=FILE, and a model as --model NAME", path, err)
	}
	return c, r, nil
}
