package nodeclient

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/fairway-edge/fairway/internal/edge"
)

// leastRAM is what a device is taken to have where it cannot be read, in MiB.
const leastRAM = 1024

// DeviceFacts are what nobody but its owner knows of a device.
type DeviceFacts struct {
	ID     string // "" for the host's name
	VRAMMB int    // 0 for unknown: no program is run to find it
	RAMMB  int    // 0 for what the system says
}

// ProbeDevice describes this machine. It never fails: what cannot be read is unknown, or the least that there is.
func ProbeDevice(f DeviceFacts) edge.Device { return probeDevice("/", f) }

// probeDevice looks for its files below root.
func probeDevice(root string, f DeviceFacts) edge.Device {
	d := edge.Device{DeviceID: f.ID, Silicon: silicon(root), RAMMB: f.RAMMB, InstalledAssets: []edge.InstalledAsset{}}
	if d.DeviceID == "" {
		if d.DeviceID, _ = os.Hostname(); d.DeviceID == "" {
			d.DeviceID = "device"
		}
	}
	if d.RAMMB <= 0 {
		d.RAMMB = max(int(min(memoryBytes()>>20, 1<<30)), leastRAM) //nolint:gosec // bounded
	}
	if f.VRAMMB > 0 {
		d.VRAMMB = &f.VRAMMB
	}
	if n := diskBytes(root); n > 0 {
		gb := int(min(n>>30, 1<<30)) //nolint:gosec // bounded
		d.DiskGB = &gb
	}
	d.HasNPU = d.Silicon == "jetson_xavier" || d.Silicon == "snapdragon_x"
	return d
}

// silicon names what the machine is made of, by the files that its system has.
func silicon(root string) string {
	if _, err := os.Stat(filepath.Join(root, "etc", "nv_tegra_release")); err == nil {
		return "jetson_orin"
	}
	cpu, _ := os.ReadFile(filepath.Join(root, "proc", "cpuinfo")) // made by the kernel: a few KiB for each processor
	if bytes.Contains(bytes.ToLower(cpu), []byte("qualcomm")) {
		return "snapdragon_x"
	}
	return "generic_" + machine(runtime.GOOS, runtime.GOARCH)
}

// machine is a processor's name as its system spells it.
func machine(system, arch string) string {
	linux := map[string]string{"amd64": "x86_64", "arm64": "aarch64", "arm": "armv7l", "386": "i686"}
	switch {
	case system == "linux" && linux[arch] != "":
		return linux[arch]
	case system == "darwin" && arch == "amd64":
		return "x86_64"
	}
	return strings.ToLower(arch)
}
