package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/fairway-edge/fairway/caddymodule/internal/gateway"
	"github.com/fairway-edge/fairway/lease"
)

// revokeCommand is `caddy fairway revoke`.
func revokeCommand() *cobra.Command {
	cmd := command("revoke (--slot S | --node N | --principal P | --lease ID)", "Take a credential, node or caller out of use now, everywhere", 0, runRevoke)
	cmd.Flags().String("slot", "", "A credential slot's name")
	cmd.Flags().String("node", "", "A node's name")
	cmd.Flags().String("principal", "", "A caller's name")
	cmd.Flags().String("lease", "", "A lease's id")
	cmd.Flags().Bool("undo", false, "Take the revocation back")
	return cmd
}

func runRevoke(cmd *cobra.Command, _ []string) (int, error) {
	f := caddycmd.Flags{FlagSet: cmd.Flags()}
	q := revocation{Slot: f.String("slot"), Node: f.String("node"), Principal: f.String("principal"), Lease: f.String("lease")}
	if _, _, _, err := q.subject(); errors.Is(err, errOneSubject) {
		return exitUsage, errors.New("want one of --slot, --node, --principal and --lease")
	} else if err != nil {
		return exitUsage, err
	}
	method := http.MethodPost
	if f.Bool("undo") {
		method = http.MethodDelete
	}
	raw, err := call(cmd, method, "/fairway/revocations", q)
	if err != nil {
		return exitFailed, err
	}
	var rows []RevokedView
	if err := json.Unmarshal(raw, &rows); err != nil || len(rows) != 1 {
		return exitFailed, errors.Join(errors.New("reading the admin API's answer"), err)
	}
	if code, err := show1(cmd, raw, revokedTable); err != nil {
		return code, err
	}
	_, _ = fmt.Fprint(cmd.ErrOrStderr(), rows[0].notes())
	return rows[0].verdict()
}

// verdict is how the command ends.
func (v *RevokedView) verdict() (int, error) {
	is, not := "revoked", "good"
	if !v.Revoked {
		is, not = not, is
	}
	switch {
	case !v.Applied:
		return exitFailed, fmt.Errorf("%s was not changed: the gateway did not apply it", v.Subject)
	case !v.Durable:
		return exitFailed, fmt.Errorf("%s is %s now, but it is not in storage: after a restart of the gateway it would be %s again. "+
			"See why the storage cannot be written, and run this again", v.Subject, is, not)
	}
	return exitOK, nil
}

// notes are what a person should know besides.
func (v *RevokedView) notes() string {
	var out strings.Builder
	if !v.Known {
		_, _ = fmt.Fprintf(&out, "The gateway knows nothing that is called %s now; was it misspelt?\n", plain(v.Subject))
	}
	if v.Revoked && v.Acked < v.Nodes {
		_, _ = fmt.Fprintf(&out, "%d of %d nodes have not confirmed yet; a lease that they have not opened ends by itself %s after it was issued.\n",
			v.Nodes-v.Acked, v.Nodes, lease.TTL)
	}
	return out.String()
}

func revokedTable(w io.Writer, rows []RevokedView) {
	t := newTable(w, "SUBJECT", "STATE", "APPLIED", "DURABLE", "NODES TOLD", "ACKED", "RUNS ENDED")
	for _, v := range rows {
		state := "good"
		if v.Revoked {
			state = "revoked"
		}
		t.row(v.Subject, state, fmt.Sprint(v.Applied), fmt.Sprint(v.Durable), fmt.Sprint(v.Nodes), fmt.Sprint(v.Acked), fmt.Sprint(v.Ended))
	}
	t.end("")
}

func revocationTable(w io.Writer, rows []RevocationView) {
	t := newTable(w, "REVOKED")
	for _, v := range rows {
		t.row(v.Subject)
	}
	t.end("nothing is revoked")
}

func leaseTable(w io.Writer, rows []gateway.LeaseView) {
	t := newTable(w, "LEASE", "STATE", "ISSUED", "SLOT", "VERSION", "PRINCIPAL", "PROFILE", "NODE", "TARGET", "GENERATION", "RUN")
	for _, l := range rows {
		t.row(l.Lease, l.State, ago(l.Issued), l.Slot, fmt.Sprint(l.Version), short(l.Principal), l.Profile, l.Node, short(l.Target), fmt.Sprint(l.Generation), l.Run)
	}
	t.end("no leases")
}

func routeTable(w io.Writer, rows []RouteView) {
	t := newTable(w, "ROUTE", "PRINCIPALS", "PROFILE", "ADAPTER", "TARGET", "SLOT", "NODES")
	for _, r := range rows {
		head := []string{r.Name, some(r.Principals)}
		if len(r.Profiles) == 0 {
			t.row(append(head, "", "", "", "", "")...)
		}
		for _, p := range r.Profiles {
			labels := make([]string, 0, len(p.Nodes))
			for _, k := range slices.Sorted(maps.Keys(p.Nodes)) {
				labels = append(labels, k+"="+p.Nodes[k])
			}
			t.row(append(head, p.Name, p.Adapter, p.Target, p.Slot, strings.Join(labels, " "))...)
			head = []string{" ", " "} // the route's further profiles
		}
	}
	t.end("no routes")
}
