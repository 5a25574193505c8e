package tunnel

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/fairway-edge/fairway/internal/pki"
	"github.com/fairway-edge/fairway/tunnel/wire"
)

func TestProbe(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, s := r.node("n1", echo)
	start := time.Now()
	if err := s.Probe(context.Background()); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(start); d > HeartbeatInterval+500*time.Millisecond {
		t.Errorf("a live node answered a probe after %v", d)
	}
}

func TestRegisterRefusals(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		reg    *Register
		refuse error
		code   CloseCode
	}{
		{"another name than the leaf's", &Register{Node: "n2", Instance: newInstance()}, nil, CloseIdentityMismatch},
		{"malformed name", &Register{Node: "N1/x", Instance: newInstance()}, nil, CloseBadNodeID},
		{"no instance", &Register{Node: "n1"}, nil, CloseProtocol},
		{"too many labels", &Register{Node: "n1", Instance: newInstance(), Labels: manyLabels()}, nil, CloseProtocol},
		{"refused by the registrar", &Register{Node: "n1", Instance: newInstance()}, refuse(CloseDuplicateNode, "alive"), CloseDuplicateNode},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.reg.refuseWith(tt.refuse)
			_, err := r.dial("n1", tt.reg, echo)
			var ce *CloseError
			if !errors.As(err, &ce) || ce.Code != tt.code || !ce.Remote {
				t.Fatalf("got %v, want a remote %s", err, tt.code)
			}
		})
	}
}

func manyLabels() map[string]string {
	m := map[string]string{}
	for i := range maxLabels + 1 {
		m[string(rune('a'+i))] = ""
	}
	return m
}

func TestIdentityRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	other, err := pki.NewSelfSigned("test.local", time.Now)
	if err != nil {
		t.Fatal(err)
	}
	old, err := pki.NewSelfSigned("test.local", func() time.Time { return time.Now().Add(-400 * 24 * time.Hour) })
	if err != nil {
		t.Fatal(err)
	}
	foreign := identity(t, other, pki.RoleNode, "n1")
	mixed := *foreign
	mixed.Roots = r.gw.Roots // trusts the gateway, is not trusted by it
	expired := *identity(t, old, pki.RoleNode, "n1")
	expired.Roots = r.gw.Roots
	for _, tt := range []struct {
		name string
		id   *pki.Identity
	}{
		{"another CA", &mixed},
		{"the gateway's role", identity(t, r.ca, pki.RoleGateway, "n1")},
		{"expired", &expired},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			_, err := Dial(ctx, DialConfig{Identity: tt.id, Addr: r.ln.Addr().(*net.UDPAddr), Register: &Register{Node: "n1", Instance: newInstance()}})
			var ce *CloseError
			if !errors.As(err, &ce) || (ce.Code != CloseIdentity && ce.Code != CloseExpired) {
				t.Fatalf("got %v", err)
			}
		})
	}
	t.Run("a node does not trust a foreign gateway", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, err := Dial(ctx, DialConfig{Identity: foreign, Addr: r.ln.Addr().(*net.UDPAddr), Register: &Register{Node: "n1", Instance: newInstance()}})
		if err == nil {
			t.Fatal("it did")
		}
	})
	if len(r.reg.sessions) != 0 {
		t.Fatal("something was registered")
	}
}

func TestReadyOutOfOrderClosesTheConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ns, _ := r.node("n1", echo)
	if err := ns.ctl.send(wire.TypeReady, &Ready{Generation: ns.Generation()}); err != nil {
		t.Fatal(err)
	}
	<-ns.Done()
	var ce *CloseError
	if !errors.As(ns.Err(), &ce) || ce.Code != CloseProtocol {
		t.Fatalf("got %v", ns.Err())
	}
}
