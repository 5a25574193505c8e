package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/fairway-edge/fairway/nodeclient"
)

// edgeCommands are the words after `fairway-node edge`. None of them needs a gateway, a state directory or an identity.
func edgeCommands() []command {
	return []command{
		{"run", "run a contract or an operator at the provider of this machine", edgeRun},
		{"answer", "answer a step that the cloud has left to this machine (client_compute)", edgeAnswer},
		{"probe", "describe this machine: the manifest that bundles are compiled for", edgeProbe},
		{"watch", "say when the provider of this machine comes, goes, or loses a model", edgeWatch},
	}
}

// edgeCommand is the command edge.
func edgeCommand(env *environment, args []string) error {
	var words []string
	for _, c := range edgeCommands() {
		if len(args) > 0 && c.name == args[0] {
			return c.run(env, args[1:])
		}
		words = append(words, c.name)
	}
	if len(args) == 0 || args[0] != "help" && args[0] != "-h" && args[0] != "--help" {
		return usagef("edge takes one of: %s", strings.Join(words, ", "))
	}
	_, _ = fmt.Fprint(env.stdout, "usage: fairway-node edge COMMAND [flags]\n\nThe offline side: it works with the gateway away.\n\ncommands:\n")
	for _, c := range edgeCommands() {
		_, _ = fmt.Fprintf(env.stdout, "  %-7s %s\n", c.name, c.short)
	}
	return errHelp
}

// parseEdge reads the flags of an edge command.
func parseEdge(env *environment, fs *pflag.FlagSet, synopsis string, args []string) error {
	fs.SortFlags = false
	fs.Usage = func() {
		_, _ = fmt.Fprintf(env.stdout, "usage: fairway-node %s\n\n%s", synopsis, fs.FlagUsages())
	}
	switch err := fs.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		return errHelp
	case err != nil:
		return usagef("%v; usage: fairway-node %s", err, synopsis)
	}
	return nil
}

// provider is where an edge command asks.
type provider struct{ ollama, openai string }

func (p *provider) flags(fs *pflag.FlagSet) {
	fs.StringVar(&p.ollama, "ollama", "", "`URL` of an Ollama (default FAIRWAY_OLLAMA, else http://127.0.0.1:11434)")
	fs.StringVar(&p.openai, "openai", "", "`URL` of a server that speaks OpenAI's API, such as http://127.0.0.1:8080/v1, in its place")
}

// target makes the provider. It is asked without any credential: those come by lease, from a gateway.
func (p *provider) target(env *environment) (t nodeclient.Target, err error) {
	var further []string
	switch {
	case p.ollama != "" && p.openai != "":
		return t, usagef("--ollama and --openai: give one of them")
	case p.openai != "":
		p.ollama, further = "off", []string{"openai=openai:" + p.openai}
	case p.ollama == "":
		if p.ollama = env.getenv("FAIRWAY_OLLAMA"); p.ollama == "" {
			p.ollama = "http://127.0.0.1:11434"
		}
	}
	targets, err := nodeclient.Targets(p.ollama, further, nil, env.getenv)
	switch {
	case err != nil:
		return t, usagef("%v", err)
	case len(targets) == 0:
		return t, usagef("no provider: --ollama is off")
	}
	return targets[0], nil
}

// edgeProbe is the command edge probe.
func edgeProbe(env *environment, args []string) error {
	var f nodeclient.DeviceFacts
	fs := pflag.NewFlagSet("edge probe", pflag.ContinueOnError)
	fs.StringVar(&f.ID, "device-id", "", "`ID` of this machine (default its host name)")
	fs.IntVar(&f.VRAMMB, "vram-mb", 0, "memory of its graphics card, in MiB; without it that is unknown, for no program is run to find it")
	fs.IntVar(&f.RAMMB, "ram-mb", 0, "its memory, in MiB, where the system's own word is wrong or cannot be read (Windows)")
	if err := parseEdge(env, fs, "edge probe [flags]", args); err != nil {
		return err
	}
	switch {
	case fs.NArg() > 0:
		return usagef("edge probe takes flags only, not %q", fs.Arg(0))
	case f.VRAMMB < 0 || f.RAMMB < 0:
		return usagef("--vram-mb and --ram-mb are 0 or more")
	}
	enc := json.NewEncoder(env.stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(nodeclient.ProbeDevice(f))
}

// edgeWatch is the command edge watch.
func edgeWatch(env *environment, args []string) error {
	var p provider
	var model string
	var every time.Duration
	fs := pflag.NewFlagSet("edge watch", pflag.ContinueOnError)
	p.flags(fs)
	fs.StringVar(&model, "model", "", "`NAME` of the model that has to be there")
	fs.DurationVar(&every, "interval", 5*time.Second, "how often to look")
	if err := parseEdge(env, fs, "edge watch --model NAME [flags]", args); err != nil {
		return err
	}
	switch {
	case fs.NArg() > 0:
		return usagef("edge watch takes flags only, not %q", fs.Arg(0))
	case model == "":
		return usagef("edge watch needs --model NAME")
	case every <= 0:
		return usagef("--interval %s: want more than 0", every)
	}
	t, err := p.target(env)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(env.context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	w := nodeclient.Watchdog{
		Interval: every,
		Look: func(ctx context.Context) (nodeclient.Health, error) {
			return nodeclient.HealthOf(ctx, t.Adapter, model)
		},
		Tell: func(_ context.Context, h nodeclient.Health) error {
			_, err := fmt.Fprintln(env.stdout, time.Now().UTC().Format(time.RFC3339), h)
			return err
		},
	}
	return w.Run(ctx)
}
