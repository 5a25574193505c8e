package nodeclient

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/fairway-edge/fairway/internal/edge"
)

// A21: the members are exactly those of the manifest, unknown ones null, and no program is run for them.
func TestProbeWire(t *testing.T) {
	root := t.TempDir()
	t.Setenv("PATH", root) // nothing to run
	b, err := json.Marshal(probeDevice(root, DeviceFacts{ID: "d1", RAMMB: 2048}))
	if err != nil {
		t.Fatal(err)
	}
	var d edge.Device
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	disk := "null"
	if d.DiskGB != nil {
		n, _ := json.Marshal(*d.DiskGB)
		disk = string(n)
	}
	want := `{"device_id":"d1","silicon":"generic_` + machine(runtime.GOOS, runtime.GOARCH) + `","ram_mb":2048,"vram_mb":null,"has_npu":false,"disk_gb":` + disk +
		`,"removable":false,"media_store":null,"installed_assets":[]}`
	if string(b) != want {
		t.Errorf("%s\nwant %s", b, want)
	}
	asset, _ := json.Marshal(edge.InstalledAsset{Capability: edge.LLM, Model: "m", QualityTier: edge.Standard})
	if string(asset) != `{"capability":"llm","model":"m","quality_tier":"standard","adapter":null,"runtime":null}` {
		t.Errorf("%s", asset)
	}
}

func TestProbeDevice(t *testing.T) {
	t.Parallel()
	d := ProbeDevice(DeviceFacts{VRAMMB: 8192})
	if d.DeviceID == "" || d.RAMMB < leastRAM || d.VRAMMB == nil || *d.VRAMMB != 8192 {
		t.Errorf("%+v", d)
	}
	if runtime.GOOS == "linux" && (memoryBytes() < 64<<20 || diskBytes("/") == 0) {
		t.Errorf("%d bytes of memory, %d of disk", memoryBytes(), diskBytes("/"))
	}
	if diskBytes(filepath.Join(t.TempDir(), "none")) != 0 {
		t.Error("a path that is not there has a size")
	}
}

func TestSilicon(t *testing.T) {
	t.Parallel()
	write := func(root, name, text string) {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	jetson, snapdragon := t.TempDir(), t.TempDir()
	write(jetson, "etc/nv_tegra_release", "")
	write(snapdragon, "proc/cpuinfo", "Hardware\t: Qualcomm Technologies, Inc\n")
	for root, want := range map[string]struct {
		silicon string
		npu     bool
	}{jetson: {"jetson_orin", false}, snapdragon: {"snapdragon_x", true}} {
		if d := probeDevice(root, DeviceFacts{}); d.Silicon != want.silicon || d.HasNPU != want.npu {
			t.Errorf("%+v, want %v", d, want)
		}
	}
	for pair, want := range map[[2]string]string{
		{"linux", "amd64"}: "x86_64", {"linux", "arm64"}: "aarch64", {"linux", "arm"}: "armv7l", {"darwin", "arm64"}: "arm64", {"darwin", "amd64"}: "x86_64",
		{"windows", "amd64"}: "amd64", {"linux", "riscv64"}: "riscv64",
	} {
		if got := machine(pair[0], pair[1]); got != want {
			t.Errorf("%v: %s, want %s", pair, got, want)
		}
	}
}
