package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/fairway-edge/fairway/internal/edge"
	"github.com/fairway-edge/fairway/nodeclient"
)

// settings are the values of all flags. Each flag may also stand in the environment (FAIRWAY_STATE_DIR for --state-dir; what may repeat,
// separated by commas) and, as a line "flag value", in the file that --config names. A flag wins over the environment, that over the file; a
// source that sets a flag which may repeat replaces what lower ones say.
type settings struct {
	gateways, labels, targets, issuers, credits, allow []string
	token, stateDir, ollama, demo                      string
	logLevel, logFormat, config                        string
	grace                                              time.Duration
	edgeRedact, edgeTools                              []string
	edgeBudget                                         int
	edgeApprove                                        string
	json                                               bool
}

var errHelp = pflag.ErrHelp

// flagsOf defines the flags of a command.
func flagsOf(name string, s *settings) *pflag.FlagSet {
	fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
	fs.SortFlags = false
	if name != "status" {
		fs.StringArrayVar(&s.gateways, "gateway", nil, "a gateway's `HOST:PORT` (UDP); may repeat. The node keeps a session with each gateway behind each address of the name")
		fs.StringVar(&s.token, "token", "", "join `TOKEN`, or @FILE that holds it; FAIRWAY_TOKEN is better, as arguments are visible to every user")
	}
	fs.StringVar(&s.stateDir, "state-dir", "", "`DIRECTORY` of the node's identity (default $XDG_STATE_HOME/fairway-node, else ~/.local/state/fairway-node)")
	if name == "run" {
		runFlags(fs, s)
	}
	if name == "status" {
		fs.BoolVar(&s.json, "json", false, "print JSON")
	} else {
		fs.StringVar(&s.logLevel, "log-level", "info", "debug, info, warn or error")
		fs.StringVar(&s.logFormat, "log-format", "console", "json or console")
	}
	fs.StringVar(&s.config, "config", "", "`FILE` with lines \"flag value\", such as: gateway gw.example.com:4433")
	return fs
}

func runFlags(fs *pflag.FlagSet, s *settings) {
	fs.StringArrayVar(&s.labels, "label", nil, "`NAME=VALUE` that the gateway may choose nodes by; may repeat")
	fs.StringVar(&s.ollama, "ollama", "http://127.0.0.1:11434", "`URL` of the target \"ollama\"; off for none")
	fs.StringArrayVar(&s.targets, "target", nil, "a further provider, `NAME=ADAPTER:URL` with ADAPTER ollama, openai or goals; may repeat")
	fs.StringArrayVar(&s.issuers, "lease-issuer", nil, "`THUMBPRINT` of a gateway's lease key: take leases under no other; may repeat")
	fs.StringArrayVar(&s.credits, "credits", nil, "`N` or TARGET=N: runs at once for each model (default OLLAMA_NUM_PARALLEL, else 1; 32 for openai, 16 for goals)")
	fs.StringArrayVar(&s.allow, "allow", nil, "`METHOD:PATH` of a management endpoint that gateways may use, such as POST:/api/pull; may repeat")
	fs.StringVar(&s.demo, "demo", "off", "the demo provider: on, off, or auto (while no Ollama has answered)")
	fs.StringArrayVar(&s.edgeRedact, "edge-redact", nil, "`REGEX` of what is taken out of the texts of typed runs; may repeat")
	fs.IntVar(&s.edgeBudget, "edge-budget", edge.DefaultBudget, "the most `TOKENS` that a typed run may take")
	fs.StringArrayVar(&s.edgeTools, "edge-tool", nil, "`NAME` of a tool that the action of a typed run may name (default: what the gateway permits); may repeat")
	fs.StringVar(&s.edgeApprove, "edge-approve", "R1", "the highest risk of an action that needs no person's approval: R0 or R1")
	fs.DurationVar(&s.grace, "grace", 30*time.Second, "how long open runs may go on after SIGTERM; 0 for none")
}

// read fills the settings of a command from its arguments, the environment and the configuration file.
func read(env *environment, name string, args []string) (*settings, error) {
	s := new(settings)
	fs := flagsOf(name, s)
	fs.Usage = func() {
		_, _ = fmt.Fprintf(env.stdout, "usage: fairway-node %s [flags]\n\n%s\n%s", name, fs.FlagUsages(),
			"Each flag may also be set by the environment (FAIRWAY_STATE_DIR for --state-dir) or by a line of --config FILE.\n")
	}
	switch err := fs.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		return nil, errHelp
	case err != nil:
		return nil, usagef("%v; the flags of %s are: %s", err, name, strings.Join(flagNames(fs), ", "))
	case fs.NArg() > 0:
		return nil, usagef("%s takes flags only, not %q", name, fs.Arg(0))
	}
	if !fs.Changed("config") {
		s.config = env.getenv("FAIRWAY_CONFIG")
	}
	lines, err := readConfig(s.config)
	if err != nil {
		return nil, err
	}
	if err := fill(fs, env, lines); err != nil {
		return nil, err
	}
	return s, s.finish(env)
}

func flagNames(fs *pflag.FlagSet) (out []string) {
	fs.VisitAll(func(f *pflag.Flag) { out = append(out, "--"+f.Name) })
	return out
}

// line is one line of a configuration file.
type line struct {
	where, flag, value string
}

// readConfig reads a configuration file. It may serve several commands, so it may hold every flag of run.
func readConfig(path string) ([]line, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, usagef("config: %v", err)
	}
	defer f.Close() //nolint:errcheck // only read
	known := flagsOf("run", new(settings))
	var lines []line
	scan := bufio.NewScanner(f)
	for n := 1; scan.Scan(); n++ {
		text := strings.TrimSpace(scan.Text())
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		l := line{where: fmt.Sprintf("%s line %d", path, n), flag: text}
		if i := strings.IndexAny(text, " \t"); i > 0 {
			l.flag, l.value = text[:i], strings.TrimSpace(text[i:])
		}
		if known.Lookup(l.flag) == nil || l.flag == "config" {
			return nil, usagef("%s: unknown option %q; a line is \"flag value\" with one of: %s", l.where, l.flag,
				strings.ReplaceAll(strings.Join(flagNames(known), ", "), "--", ""))
		}
		lines = append(lines, l)
	}
	if err := scan.Err(); err != nil {
		return nil, usagef("config %s: %v", path, err)
	}
	return lines, nil
}

// fill sets the flags that the arguments have not set.
func fill(fs *pflag.FlagSet, env *environment, lines []line) (err error) {
	fs.VisitAll(func(f *pflag.Flag) {
		if err != nil || f.Changed || f.Name == "config" || f.Name == "json" {
			return
		}
		name := "FAIRWAY_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if v := env.getenv(name); v != "" {
			err = set(fs, f, name, v)
			return
		}
		for _, l := range lines {
			if l.flag == f.Name && err == nil {
				err = setOne(fs, f, l.where, l.value)
			}
		}
	})
	return err
}

func set(fs *pflag.FlagSet, f *pflag.Flag, where, value string) error {
	if f.Value.Type() != "stringArray" {
		return setOne(fs, f, where, value)
	}
	between := ","
	if f.Name == "edge-redact" { // a comma belongs to many patterns, and half of one still is one that compiles
		between = "\n"
	}
	for v := range strings.SplitSeq(value, between) {
		if v = strings.TrimSpace(v); v == "" {
			continue
		}
		if err := setOne(fs, f, where, v); err != nil {
			return err
		}
	}
	return nil
}

func setOne(fs *pflag.FlagSet, f *pflag.Flag, where, value string) error {
	if value == "" {
		return usagef("%s: %s needs a value", where, f.Name)
	}
	if err := fs.Set(f.Name, value); err != nil {
		return usagef("%s: %v", where, err)
	}
	return nil
}

// gates are this node's own gates for typed runs.
func (s *settings) gates() (edge.Gates, error) {
	return edgeGates(s.edgeRedact, s.edgeBudget, s.edgeTools, s.edgeApprove)
}

func edgeGates(redact []string, budget int, tools []string, approve string) (g edge.Gates, err error) {
	if budget < edge.LeastBudget {
		return g, usagef("edge-budget %d: want %d or more, for less would stop every run", budget, edge.LeastBudget)
	}
	g.Budget, g.Tools = edge.Budget{Tokens: budget}, tools
	if g.Redaction, err = edge.NewRedaction(redact); err != nil {
		return g, usagef("edge-redact: %v", err)
	}
	if g.Approval, err = edge.NewApproval(edge.Risk(approve)); err != nil {
		return g, usagef("edge-approve %q: %v", approve, err)
	}
	return g, nil
}

// finish resolves what a value refers to.
func (s *settings) finish(env *environment) error {
	if file, ok := strings.CutPrefix(s.token, "@"); ok {
		data, err := os.ReadFile(file)
		if err != nil {
			return usagef("token: %v", err)
		}
		s.token = string(data)
	}
	s.token = strings.TrimSpace(s.token)
	for _, g := range s.gateways {
		if err := nodeclient.CheckGateway(g); err != nil {
			return usagef("%v", err)
		}
	}
	if s.stateDir != "" {
		return nil
	}
	if base := env.getenv("XDG_STATE_HOME"); filepath.IsAbs(base) {
		s.stateDir = filepath.Join(base, "fairway-node")
		return nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return &nodeclient.StateError{Dir: "~/.local/state/fairway-node", Err: fmt.Errorf("%w; give a --state-dir", err)}
	}
	s.stateDir = filepath.Join(home, ".local", "state", "fairway-node")
	return nil
}
