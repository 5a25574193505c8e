package caddymodule

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/certmagic"

	_ "github.com/caddyserver/caddy/v2/modules/standard"
)

// TestMain keeps Caddy's files out of the developer's home. The paths that Caddy
// has read before main are set again.
func TestMain(m *testing.M) { os.Exit(inTemp(m)) }

func inTemp(m *testing.M) int {
	dir, err := os.MkdirTemp("", "fairway-caddymodule")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for _, v := range []string{"XDG_CONFIG_HOME", "XDG_DATA_HOME", "HOME"} {
		if err := os.Setenv(v, filepath.Join(dir, v)); err != nil {
			panic(err)
		}
	}
	caddy.ConfigAutosavePath = filepath.Join(caddy.AppConfigDir(), "autosave.json")
	caddy.DefaultStorage = &certmagic.FileStorage{Path: caddy.AppDataDir()}
	return m.Run()
}
