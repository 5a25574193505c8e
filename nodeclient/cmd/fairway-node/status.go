package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fairway-edge/fairway/nodeclient"
)

// status is the command status.
func status(env *environment, args []string) error {
	s, err := read(env, "status", args)
	if err != nil {
		return err
	}
	st, err := nodeclient.ReadStatus(context.Background(), s.stateDir)
	if err != nil {
		return err
	}
	if s.json {
		enc := json.NewEncoder(env.stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(st)
	} else {
		err = printStatus(env.stdout, st)
	}
	if err == nil && !st.Ready() {
		err = errQuiet
	}
	return err
}

func printStatus(w io.Writer, s *nodeclient.Status) error {
	node := s.Node
	if node == "" {
		node = "(has not joined yet)"
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(t, format, args...) } // Flush reports
	p("node\t%s\nversion\t%s\nruns\t%d\n\n", node, s.Version, s.Runs)
	p("GATEWAY\tNAME\tSTATE\tGENERATION\tLANES\tSINCE\tLAST ERROR\n")
	for _, g := range s.Gateways {
		p("%s\t%s\t%s\t%d\t%d\t%s\t%s\n", address(g, s.Gateways), orDash(g.Gateway), g.State, g.Generation, g.Lanes,
			time.Since(g.Since).Round(time.Second), orDash(g.LastError))
	}
	if text := notReady(s.Gateways); text != "" {
		p("\n%s\n", text)
	}
	p("\nTARGET\tADAPTER\tREACHABLE\tMODELS\tCREDITS FREE\tLAST ERROR\n")
	for _, g := range s.Targets {
		reachable := "no"
		switch {
		case g.Reachable && g.Locked:
			reachable = "locked"
		case g.Reachable:
			reachable = "yes"
		}
		p("%s\t%s\t%s\t%d\t%d of %d\t%s\n", g.Name, g.Adapter, reachable, len(g.Models), g.Credits.Free, g.Credits.Granted, orDash(g.LastError))
	}
	return t.Flush()
}

// address is the address as it was given, with the one behind it where the name has several sessions.
func address(g nodeclient.GatewayStatus, all []nodeclient.GatewayStatus) string {
	same := 0
	for _, o := range all {
		if o.Addr == g.Addr {
			same++
		}
	}
	if same < 2 || g.Remote == "" || g.Remote == g.Addr {
		return g.Addr
	}
	return g.Addr + " (" + g.Remote + ")"
}

// notReady says how many of several gateways serve this node, and which do not. A spare address needs no session of its own.
func notReady(all []nodeclient.GatewayStatus) string {
	var not []string
	wanted := 0
	for _, g := range all {
		if g.State == "spare" {
			continue
		}
		wanted++
		if g.State != "ready" {
			not = append(not, address(g, all)+" ("+g.State+")")
		}
	}
	if wanted < 2 || len(not) == 0 {
		return ""
	}
	return fmt.Sprintf("ready with %d of %d; not ready: %s", wanted-len(not), wanted, strings.Join(not, ", "))
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
