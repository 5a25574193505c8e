package pki

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestSaveLoadIdentity(t *testing.T) {
	t.Parallel()
	ca := newCA(t, epoch) // long past or future: loading does not ask
	dir := filepath.Join(t.TempDir(), "state", "node")
	if _, err := LoadIdentity(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("nothing there yet: %v", err)
	}
	var want *Identity
	for _, name := range []string{"n1", "n1"} { // the second replaces the first
		want = mustIdentity(t, ca, nodeID(name))
		if err := SaveIdentity(dir, want); err != nil {
			t.Fatal(err)
		}
	}
	got, err := LoadIdentity(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got.ID != want.ID || !got.Certificate.Leaf.Equal(want.Certificate.Leaf) || len(got.Certificate.Certificate) != 2 ||
		!bytes.Equal(got.RootDER[0], want.RootDER[0]) || !sameKey(got.Certificate.Leaf.PublicKey, want.Certificate.Leaf.PublicKey) {
		t.Fatal("loaded another identity than was saved")
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Fatalf("left behind: %v, %v", entries, err)
	}
	if runtime.GOOS != "windows" {
		f, _ := os.Stat(filepath.Join(dir, IdentityFile))
		d, _ := os.Stat(dir)
		if f.Mode().Perm() != 0o600 || d.Mode().Perm() != 0o700 {
			t.Fatalf("modes %v and %v", f.Mode(), d.Mode())
		}
	}
}

func TestSaveIdentityAfterCrash(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	left := filepath.Join(dir, IdentityFile+".tmp")
	if err := os.WriteFile(left, []byte("half"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := SaveIdentity(dir, mustIdentity(t, newCA(t, epoch), nodeID("n1"))); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the leftover stayed: %v", err)
	}
	if _, err := LoadIdentity(dir); err != nil {
		t.Fatal(err)
	}
	if err := SaveIdentity(filepath.Join(dir, IdentityFile), mustIdentity(t, newCA(t, epoch), nodeID("n1"))); err == nil {
		t.Fatal("saved into a file")
	}
}

func TestLoadIdentityDamaged(t *testing.T) {
	t.Parallel()
	ca := newCA(t, epoch)
	good, err := encodeIdentity(mustIdentity(t, ca, nodeID("n1")))
	if err != nil {
		t.Fatal(err)
	}
	other, _ := encodeIdentity(mustIdentity(t, ca, nodeID("n1")))
	gateway, _ := encodeIdentity(mustIdentity(t, ca, gatewayID("gw1")))
	cut := func(s string) int { return bytes.Index(good, []byte(s)) }
	certs, roots := cut("-----BEGIN CERTIFICATE"), cut("-----BEGIN ROOT")
	for name, data := range map[string][]byte{
		"empty": nil, "noise": []byte("\x00\x01"), "half": good[:len(good)/2], "key only": good[:certs],
		"no key": good[certs:], "no roots": good[:roots], "no chain": append(append([]byte(nil), good[:certs]...), good[roots:]...),
		"two keys": append(append([]byte(nil), good[:certs]...), good...), "key of another": append(append([]byte(nil), other[:bytes.Index(other, []byte("-----BEGIN CERT"))]...), good[certs:]...),
		"trailing noise": append(append([]byte(nil), good...), "hello"...), "a gateway's": gateway, "too big": bytes.Repeat([]byte("\n"), maxPEM+1),
		"other root": append(append([]byte(nil), good[:roots]...), pem.EncodeToMemory(&pem.Block{Type: pemRoot, Bytes: newCA(t, epoch).Root().Raw})...),
		"odd block":  append(append([]byte(nil), good...), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: []byte{1}})...),
		"flipped":    bytes.Replace(good, good[certs+60:certs+61], []byte("#"), 1),
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, IdentityFile)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := LoadIdentity(dir)
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLoadFiles(t *testing.T) {
	t.Parallel()
	ca, other := newCA(t, time.Now()), newCA(t, time.Now())
	gw, node := mustIdentity(t, ca, gatewayID("gw1")), mustIdentity(t, ca, nodeID("n1"))
	past, err := NewSelfSigned(testDomain, at(time.Now().Add(-100*24*time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
	expired := mustIdentity(t, past, gatewayID("gw1"))
	dir := t.TempDir()
	n := 0
	file := func(data []byte) string {
		n++
		path := filepath.Join(dir, "f"+string(rune('a'+n))+".pem")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	certs := func(ders ...[]byte) []byte {
		var b []byte
		for _, der := range ders {
			b = append(b, pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: der})...)
		}
		return b
	}
	keyOf := func(i *Identity) []byte {
		der, err := x509.MarshalPKCS8PrivateKey(i.Certificate.PrivateKey)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der})
	}
	cert, key, root := file(certs(chainOfDER(gw)...)), file(keyOf(gw)), file(certs(other.Root().Raw, ca.Root().Raw))
	i, err := LoadFiles(cert, key, root)
	if err != nil || i.ID != gw.ID || len(i.RootDER) != 2 {
		t.Fatalf("%v", err)
	}
	missing := filepath.Join(dir, "missing.pem")
	for name, f := range map[string][3]string{
		"no cert file":      {missing, key, root},
		"no key file":       {cert, missing, root},
		"no CA file":        {cert, key, missing},
		"empty CA":          {cert, key, file(nil)},
		"CA is noise":       {cert, key, file([]byte("hello"))},
		"CA holds a key":    {cert, key, key},
		"CA is a leaf":      {cert, key, file(certs(gw.Certificate.Certificate[0]))},
		"CA is broken":      {cert, key, file(certs([]byte{1, 2, 3}))},
		"other CA":          {cert, key, file(certs(other.Root().Raw))},
		"no intermediate":   {file(certs(chainOfDER(gw)[0])), key, root},
		"key of another":    {cert, file(keyOf(node)), root},
		"a node's identity": {file(certs(chainOfDER(node)...)), file(keyOf(node)), root},
		"expired":           {file(certs(chainOfDER(expired)...)), file(keyOf(expired)), file(certs(past.Root().Raw))},
	} {
		if _, err := LoadFiles(f[0], f[1], f[2]); err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
