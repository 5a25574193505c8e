// Command fairway-node runs beside the inference servers of a machine. It dials one or more Fairway gateways over QUIC, offers what the
// servers hold, and executes what the gateways send. See package nodeclient.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/fairway-edge/fairway/nodeclient"
)

// version is set by the linker: -ldflags "-X main.version=v1.2.3".
var version = "dev"

// Exit codes (docs: systemd units use RestartPreventExitStatus=2 3 4).
const (
	exitOK      = 0
	exitFailed  = 1
	exitUsage   = 2 // a mistake in flags, environment or configuration
	exitRefused = 3 // the gateway refuses this node for good
	exitState   = 4 // the state directory cannot be used
)

// usageError is a mistake of whoever typed the command.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// errQuiet fails a command that has said all there is to say.
var errQuiet = errors.New("")

// command is what a person may ask for.
type command struct {
	name, short string
	run         func(env *environment, args []string) error
}

// environment is what a command may touch besides its arguments.
type environment struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
	ctx            context.Context // of a test; nil for none
}

func (env *environment) context() context.Context {
	if env.ctx != nil {
		return env.ctx
	}
	return context.Background()
}

func commands() []command {
	return []command{
		{"run", "run the node (joins first when given a token)", runNode},
		{"enroll", "join a fleet: get an identity with a token, and exit", enroll},
		{"status", "show what the running node sees; exit 0 only when a session is ready", status},
		{"edge", "the offline side: edge run, answer, probe, watch", edgeCommand},
		{"version", "print the version", printVersion},
	}
}

func main() {
	env := &environment{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv}
	os.Exit(dispatch(env, os.Args[1:]))
}

// dispatch runs one command and returns the exit code.
func dispatch(env *environment, args []string) int {
	if len(args) == 0 {
		help(env.stderr)
		return exitUsage
	}
	switch args[0] {
	case "help", "-h", "--help":
		help(env.stdout)
		return exitOK
	case "--version":
		return report(env, printVersion(env, args[1:]))
	}
	for _, c := range commands() {
		if c.name == args[0] {
			return report(env, c.run(env, args[1:]))
		}
	}
	return report(env, usagef("unknown command %q; there are: %s", args[0], strings.Join(names(), ", ")))
}

func names() (out []string) {
	for _, c := range commands() {
		out = append(out, c.name)
	}
	return out
}

// report prints an error and turns it into an exit code.
func report(env *environment, err error) int {
	var usage *usageError
	var final *nodeclient.FinalError
	var state *nodeclient.StateError
	switch {
	case err == nil, errors.Is(err, errHelp):
		return exitOK
	case errors.Is(err, errQuiet):
		return exitFailed
	}
	_, _ = fmt.Fprintf(env.stderr, "fairway-node: %v\n", err)
	switch {
	case errors.As(err, &usage):
		_, _ = fmt.Fprintln(env.stderr, "`fairway-node help` and `fairway-node COMMAND --help` say more.")
		return exitUsage
	case errors.As(err, &state):
		return exitState
	case errors.As(err, &final):
		if hint := advice(err); hint != "" {
			_, _ = fmt.Fprintln(env.stderr, hint)
		}
		return exitRefused
	}
	return exitFailed
}

func help(w io.Writer) {
	_, _ = fmt.Fprint(w, `fairway-node connects the inference servers of this machine to a Fairway gateway.

usage: fairway-node COMMAND [flags]

commands:
`)
	for _, c := range commands() {
		_, _ = fmt.Fprintf(w, "  %-9s %s\n", c.name, c.short)
	}
	_, _ = fmt.Fprint(w, `
A first start, with a token from "caddy fairway token --node NAME" at the gateway:

  FAIRWAY_TOKEN=... fairway-node run --gateway gw.example.com:4433

From then on the node knows who it is: fairway-node run --gateway gw.example.com:4433
`)
}

func printVersion(env *environment, args []string) error {
	if len(args) > 0 {
		return usagef("version takes no arguments")
	}
	_, err := fmt.Fprintln(env.stdout, "fairway-node", version)
	return err
}
