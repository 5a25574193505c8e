package rig

import (
	"os"
	"path/filepath"
	"testing"
)

// Slot is a slot s with the given credential, and a profile p that lends it for the target ollama: lines for Options.Global. The file that the credential is in
// lies in no folder of the gateway's.
func Slot(t testing.TB, key string) (lines string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "provider.key")
	if err := os.WriteFile(file, []byte(key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return "\t\tslot s {\n\t\t\tvalue {file." + file + "}\n\t\t}\n\t\tprofile p {\n\t\t\tslot s\n\t\t}\n"
}
