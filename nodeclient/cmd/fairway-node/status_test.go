package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/fairway-edge/fairway/nodeclient"
)

func TestStatusOfSeveralGateways(t *testing.T) {
	t.Parallel()
	ready := func(addr, remote, name string) nodeclient.GatewayStatus {
		return nodeclient.GatewayStatus{Addr: addr, Remote: remote, Gateway: name, State: "ready", Generation: 7, Lanes: 1}
	}
	for name, tc := range map[string]struct {
		rows      []nodeclient.GatewayStatus
		says, not []string
	}{
		"one": {
			rows: []nodeclient.GatewayStatus{ready("gw:1", "10.0.0.1:1", "gw1")}, says: []string{"gw:1 ", "gw1"}, not: []string{"10.0.0.1", "ready with"},
		},
		"one that is away": {
			rows: []nodeclient.GatewayStatus{{Addr: "gw:1", State: "waiting", LastError: "no answer"}}, says: []string{"waiting", "no answer"}, not: []string{"ready with"},
		},
		"two behind a name": {
			rows: []nodeclient.GatewayStatus{ready("gw:1", "10.0.0.1:1", "gw1"), ready("gw:1", "10.0.0.2:1", "gw2")},
			says: []string{"gw:1 (10.0.0.1:1)", "gw:1 (10.0.0.2:1)"}, not: []string{"ready with"},
		},
		"one of two": {
			rows: []nodeclient.GatewayStatus{
				ready("gw:1", "10.0.0.1:1", "gw1"), {Addr: "gw:1", Remote: "10.0.0.2:1", State: "refused"}, {Addr: "other:1", State: "waiting"}, {Addr: "alias:1", State: "spare"},
			},
			says: []string{"ready with 1 of 3; not ready: gw:1 (10.0.0.2:1) (refused), other:1 (waiting)\n"},
		},
	} {
		var out bytes.Buffer
		if err := printStatus(&out, &nodeclient.Status{Node: "n1", Gateways: tc.rows}); err != nil {
			t.Fatal(err)
		}
		for _, s := range tc.says {
			if !strings.Contains(out.String(), s) {
				t.Errorf("%s: no %q in\n%s", name, s, out.String())
			}
		}
		for _, s := range tc.not {
			if strings.Contains(out.String(), s) {
				t.Errorf("%s: %q in\n%s", name, s, out.String())
			}
		}
	}
}
