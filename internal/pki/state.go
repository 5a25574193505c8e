package pki

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// IdentityFile is the name of a node's identity in its state directory.
const IdentityFile = "node-identity.pem"

const (
	pemKey         = "PRIVATE KEY"
	pemCertificate = "CERTIFICATE"
	pemRoot        = "ROOT CERTIFICATE" // ours: tells the roots from the chain
	maxPEM         = 1 << 20
)

// SaveIdentity writes i into dir (made with mode 0700 if it is not there) as
// one PEM file of mode 0600: key, chain, roots. The file is replaced whole: after
// a crash there is the old one or the new one. One process at a time.
func SaveIdentity(dir string, i *Identity) error {
	path := filepath.Join(dir, IdentityFile)
	data, err := encodeIdentity(i)
	if err != nil {
		return fmt.Errorf("save identity %s: %w", path, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("save identity: %w", err)
	}
	if err := replaceFile(path, data); err != nil {
		return fmt.Errorf("save identity: %w", err)
	}
	return nil
}

// LoadIdentity reads what [SaveIdentity] wrote. Without the file the error is
// [fs.ErrNotExist]; a damaged one, or one that is not a node's, is an error that
// names the file. An expired leaf loads: it can still be renewed.
func LoadIdentity(dir string) (*Identity, error) {
	path := filepath.Join(dir, IdentityFile)
	data, err := readPEM(path)
	if err != nil {
		return nil, fmt.Errorf("load identity: %w", err)
	}
	i, err := decodeIdentity(data)
	if err == nil && i.ID.Role != RoleNode {
		err = fmt.Errorf("%s is not a node", i.ID)
	}
	if err != nil {
		return nil, fmt.Errorf("load identity: %s is damaged: %w; move it away and join again with a token", path, err)
	}
	return i, nil
}

func encodeIdentity(i *Identity) ([]byte, error) {
	key, err := x509.MarshalPKCS8PrivateKey(i.Certificate.PrivateKey)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	blocks := []*pem.Block{{Type: pemKey, Bytes: key}}
	for _, der := range i.Certificate.Certificate {
		blocks = append(blocks, &pem.Block{Type: pemCertificate, Bytes: der})
	}
	for _, der := range i.RootDER {
		blocks = append(blocks, &pem.Block{Type: pemRoot, Bytes: der})
	}
	for _, block := range blocks {
		if err := pem.Encode(&b, block); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}

func decodeIdentity(data []byte) (*Identity, error) {
	var key crypto.Signer
	var chain, roots [][]byte
	for len(data) > 0 {
		block, rest := pem.Decode(data)
		if block == nil {
			if len(bytes.TrimSpace(data)) > 0 {
				return nil, errors.New("it holds something that is not PEM")
			}
			break
		}
		data = rest
		switch block.Type {
		case pemKey:
			k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			signer, ok := k.(crypto.Signer)
			if err != nil || !ok || key != nil {
				return nil, errors.New("its private key cannot be read")
			}
			key = signer
		case pemCertificate:
			chain = append(chain, block.Bytes)
		case pemRoot:
			roots = append(roots, block.Bytes)
		default:
			return nil, fmt.Errorf("it holds an unexpected %q", clip(block.Type))
		}
	}
	return NewIdentity(chain, key, roots)
}

// readPEM bounds what is read, so that a wrong path costs no memory, and opens regular files only: another one may keep its reader waiting for ever.
func readPEM(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(io.LimitReader(f, maxPEM+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxPEM {
		return nil, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("more than %d bytes", maxPEM)}
	}
	return data, nil
}

// replaceFile writes beside path, syncs, and renames over it. The temporary name
// is fixed, so a crash leaves one file behind at most, which the next save takes.
func replaceFile(path string, data []byte) error {
	tmp := path + ".tmp"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes the rename durable. Windows cannot sync a directory.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
