package caddymodule

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/fairway-edge/fairway/caddymodule/internal/fleet"
	"github.com/fairway-edge/fairway/caddymodule/internal/gateway"
)

// Exit codes of the commands.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "fairway",
		Usage: "<command>",
		Short: "Commands of a running Fairway gateway",
		Long: `
Shows what a running gateway sees, lets nodes in and out, and revokes, through Caddy's admin
API. --address and --config say which Caddy, as for 'caddy reload'. With --json the
answer is an array of objects. Exit status: 0, 1 if it failed, 2 for bad usage.`,
		CobraFunc: commands,
	})
}

// commands adds the sub-commands.
func commands(root *cobra.Command) {
	flags := root.PersistentFlags()
	flags.StringP("address", "", "", "The address of Caddy's admin API")
	flags.StringP("config", "c", "", "Configuration file that says the admin API's address")
	flags.StringP("adapter", "a", "", "Name of config adapter to apply")
	flags.BoolP("json", "", false, "Print JSON")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return exit(cmd, exitUsage, err) })
	group(root)
	token := command("token --node NAME", "Make a join token for a node", 0, runToken)
	token.Flags().String("node", "", "The node's name (required)")
	token.Flags().String("ttl", defaultTTL.String(), "How long the token is good, at most 30d")
	token.Flags().Int("uses", defaultUses, "How often it may be used, at most 1000")
	token.Flags().Bool("offline", false, "Sign with the key in the storage of --config, without a running Caddy")
	key := group(&cobra.Command{Use: "key", Short: "API keys"})
	key.AddCommand(command("new NAME", "Make an API key, and the configuration line that admits it", 1, runKeyNew))
	root.AddCommand(token, key, revokeCommand(), workflowsCommand(),
		command("nodes", "List the nodes", 0, list("/fairway/nodes", nodeTable)),
		command("runs", "List runs in flight and those that ended last", 0, list("/fairway/runs", runTable)),
		command("routes", "List what callers may ask for", 0, list("/fairway/routes", routeTable)),
		command("leases", "List the leases whose runs are open", 0, list("/fairway/leases", leaseTable)),
		command("revocations", "List what is revoked", 0, list("/fairway/revocations", revocationTable)),
		command("status", "Show the gateway at a glance", 0, list("/fairway/status", statusTable)),
		command("drain NODE", "Take a node out, also when it dials again", 1, drainAction(http.MethodPost)),
		command("undrain NODE", "Take a drained node back", 1, drainAction(http.MethodDelete)),
	)
}

// group makes cmd one that has sub-commands and does nothing itself.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return exit(cmd, exitUsage, fmt.Errorf("unknown command '%s': see %s --help", strings.Join(args, " "), cmd.CommandPath()))
	}
	return cmd
}

// action is what a command does; it returns its exit status.
type action func(cmd *cobra.Command, args []string) (int, error)

func command(use, short string, args int, f action) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs, RunE: func(cmd *cobra.Command, given []string) error {
		if len(given) != args {
			return exit(cmd, exitUsage, fmt.Errorf("usage: %s", cmd.UseLine()))
		}
		code, err := f(cmd, given)
		return exit(cmd, code, err)
	}}
}

// exit makes Caddy end with a status: it alone can make the error that says so.
func exit(cmd *cobra.Command, code int, err error) error {
	return caddycmd.WrapCommandFuncForCobra(func(caddycmd.Flags) (int, error) { return code, err })(cmd, nil)
}

// list makes a command that shows what an admin route answers.
func list[T any](path string, show func(io.Writer, []T)) action {
	return func(cmd *cobra.Command, _ []string) (int, error) { return ask(cmd, http.MethodGet, path, nil, show) }
}

// ask calls an admin route and prints its answer.
func ask[T any](cmd *cobra.Command, method, uri string, body any, show func(io.Writer, []T)) (int, error) {
	raw, err := call(cmd, method, uri, body)
	if err != nil {
		return exitFailed, err
	}
	return show1(cmd, raw, show)
}

// show1 prints an answer as it came, or as a table.
func show1[T any](cmd *cobra.Command, raw []byte, show func(io.Writer, []T)) (int, error) {
	out := cmd.OutOrStdout()
	if asJSON, err := cmd.Flags().GetBool("json"); err != nil || asJSON {
		_, err = out.Write(raw)
		return exitCode(err), err
	}
	var rows []T
	if err := json.Unmarshal(raw, &rows); err != nil {
		return exitFailed, fmt.Errorf("reading the admin API's answer: %w", err)
	}
	show(out, rows)
	return exitOK, nil
}

func exitCode(err error) int {
	if err != nil {
		return exitFailed
	}
	return exitOK
}

// maxAnswer bounds what is read of an admin route: 1,000 runs or 10,000 nodes are far less.
const maxAnswer = 64 << 20

func call(cmd *cobra.Command, method, uri string, body any) ([]byte, error) {
	f := caddycmd.Flags{FlagSet: cmd.Flags()}
	addr, err := caddycmd.DetermineAdminAPIAddress(f.String("address"), nil, f.String("config"), f.String("adapter"))
	if err != nil {
		return nil, fmt.Errorf("finding the admin API's address: %w", err)
	}
	var in io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		in = bytes.NewReader(raw)
	}
	resp, err := caddycmd.AdminAPIRequest(addr, method, uri, nil, in)
	if err != nil {
		return nil, fmt.Errorf("asking Caddy at %s: %w", addr, err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err == nil && len(raw) > maxAnswer {
		err = errors.New("the answer is too long")
	}
	return raw, err
}

func nodeTable(w io.Writer, rows []fleet.NodeView) {
	t := newTable(w, "NODE", "STATE", "SINCE", "GENERATION", "TARGET", "ADAPTER", "CREDITS", "MODELS", "VERSION")
	for _, n := range rows {
		generation := ""
		for _, s := range n.Sessions {
			generation = fmt.Sprint(s.Generation)
		}
		head := []string{n.Name, n.State, ago(n.Since), generation}
		if len(n.Targets) == 0 {
			t.row(append(head, "", "", "", "", short(n.Version))...)
		}
		for _, g := range n.Targets {
			name := short(g.Name)
			if !g.Reachable {
				name += " (unreachable)"
			}
			t.row(append(head, name, short(g.Adapter), fmt.Sprintf("%d/%d", g.Credits.Free, g.Credits.Granted), some(g.Models), short(n.Version))...)
			head = []string{" ", " ", " ", " "} // the node's further targets
		}
	}
	t.end("no nodes; `caddy fairway token --node NAME` lets one in")
}

func runTable(w io.Writer, rows []gateway.RunView) {
	t := newTable(w, "RUN", "STARTED", "STATE", "OUTCOME", "CODE", "PRINCIPAL", "MODEL", "NODE", "QUEUED", "FIRST BYTE", "BYTES")
	for _, r := range rows {
		t.row(r.Run, ago(r.Started), r.State, r.Outcome, r.Code, short(r.Principal), short(r.Model), r.Node, millis(r.QueuedMS), millis(r.FirstByteMS), fmt.Sprint(r.Bytes))
	}
	t.end("no runs")
}

func statusTable(w io.Writer, rows []StatusView) {
	t := newTable(w, "GATEWAY", "TRUST DOMAIN", "LISTEN", "READY", "OTHER", "SESSIONS", "LANES", "IN FLIGHT", "WAITING", "STORE", "VERSION")
	for _, s := range rows {
		ready, other := 0, 0
		for state, n := range s.Nodes {
			if state == "ready" {
				ready += n
			} else {
				other += n
			}
		}
		t.row(s.Gateway, s.TrustDomain, s.Listen, fmt.Sprint(ready), fmt.Sprint(other), fmt.Sprint(s.Sessions), fmt.Sprint(s.Lanes),
			fmt.Sprint(s.InFlight), fmt.Sprint(s.Waiting), s.Store.words(), s.Version)
	}
	t.end("no gateway")
	for _, s := range rows {
		if s.Superseded {
			_, _ = fmt.Fprintf(w, "\nAnother process has begun as %s. This one serves no node until it is started again, under another name.\n", s.Gateway)
		}
		if len(s.Gateways) > 0 {
			_, _ = fmt.Fprintln(w)
			peerTable(w, s.Gateway, s.Gateways)
		}
	}
}

// words are the store in a table's cell.
func (v StoreView) words() string {
	switch {
	case v.Type == storeMemory:
		return storeMemory
	case v.Up:
		return v.Type + " up, " + millis(float64(v.LagMS))
	}
	return v.Type + " DOWN since " + millis(float64(v.LagMS))
}

// peerTable lists the gateways of a fleet, as the one named own sees them.
func peerTable(w io.Writer, own string, rows []gateway.PeerView) {
	t := newTable(w, "GATEWAY", "ADVERTISE", "STATE", "LAST SEEN", "SERVES US", "WE SERVE IT", "NODES", "IN FLIGHT", "EPOCH", "VERSION")
	for _, p := range rows {
		serves, uses := fmt.Sprint(p.Serves), fmt.Sprint(p.Uses)
		if p.Gateway == own {
			serves, uses = "", ""
		}
		t.row(p.Gateway, p.Advertise, p.State, millis(float64(p.LagMS)), serves, uses, fmt.Sprint(p.Nodes), fmt.Sprint(p.Runs), fmt.Sprint(p.Epoch), p.Software)
	}
	t.end("")
}

// drainAction takes a node out or back. A name that nobody has yet is remembered, too,
// so a misspelt one looks like one that works.
func drainAction(method string) action {
	return func(cmd *cobra.Command, args []string) (int, error) {
		if err := checkNode(args[0]); err != nil {
			return exitUsage, err
		}
		raw, err := call(cmd, method, "/fairway/drain/"+args[0], nil)
		if err != nil {
			return exitFailed, err
		}
		var rows []DrainView
		if err := json.Unmarshal(raw, &rows); err != nil || len(rows) != 1 {
			return exitFailed, errors.Join(errors.New("reading the admin API's answer"), err)
		}
		code, err := show1(cmd, raw, drainTable)
		if !rows[0].Known {
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "The gateway knows no node that is called %s now; was it misspelt?\n", plain(rows[0].Node))
		}
		return code, err
	}
}

func drainTable(w io.Writer, rows []DrainView) {
	t := newTable(w, "NODE", "DRAINING", "CONNECTED")
	for _, d := range rows {
		t.row(d.Node, fmt.Sprint(d.Draining), fmt.Sprint(d.Connected))
	}
	t.end("")
}

func millis(ms float64) string {
	return time.Duration(ms * float64(time.Millisecond)).Round(time.Millisecond).String()
}
