// Package machine describes where a benchmark runs: hardware, kernel, load and the
// versions of what is compared.
package machine

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/bifrost-rack/bifrost/bench/report"
)

// Describe describes this machine. What cannot be found out stays empty.
func Describe() report.Machine {
	info := read("/proc/cpuinfo")
	m := report.Machine{
		CPU: field(info, "model name", ":"), CPUs: runtime.NumCPU(), Memory: kilobytes(field(read("/proc/meminfo"), "MemTotal", ":")),
		Kernel: strings.TrimSpace(read("/proc/sys/kernel/osrelease")),
		OS:     strings.Trim(field(read("/etc/os-release"), "PRETTY_NAME", "="), `"`),
	}
	if flags := field(info, "flags", ":"); strings.Contains(" "+flags+" ", " hypervisor ") {
		m.Virtual = "a hypervisor"
	}
	return m
}

// Load returns the load average over a minute; 0 if it is not known.
func Load() float64 {
	first, _, _ := strings.Cut(read("/proc/loadavg"), " ")
	load, _ := strconv.ParseFloat(first, 64) // 0 is what there is to say then
	return load
}

// Versions returns the versions of what takes part.
func Versions(bifrost string) map[string]string {
	v := map[string]string{"bifrost": bifrost, "go": runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			switch d.Path {
			case "google.golang.org/grpc":
				v["grpc-go"] = d.Version
			case "github.com/apache/thrift":
				v["thrift"] = d.Version
			}
		}
	}
	for name, args := range map[string][]string{
		"redis": {"redis-server", "--version"}, "ovs": {"ovs-vsctl", "--version"}, "bmv2": {"simple_switch_grpc", "--version"},
	} {
		if out, err := exec.Command(args[0], args[1:]...).Output(); err == nil {
			first, _, _ := strings.Cut(string(out), "\n")
			v[name] = strings.TrimSpace(first)
		}
	}
	return v
}

func read(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(b)
}

// field returns the value of the first line with a key.
func field(text, key, separator string) string {
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		k, v, ok := strings.Cut(lines.Text(), separator)
		if ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// kilobytes reads a size such as "16384 kB" into bytes.
func kilobytes(s string) uint64 {
	n, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(s, "kB")), 10, 64)
	if err != nil {
		return 0
	}
	return n << 10
}

// latencyFile takes the longest time, in microseconds as a 32-bit number, that an idle CPU
// may need to wake up. It holds for the whole machine while the file is open
// (Documentation/power/pm_qos_interface.rst).
const latencyFile = "/dev/cpu_dma_latency"

// Awake keeps idle CPUs from sleeping until the function that it returns is called: they
// poll, so that what is measured is the work and not the wake-ups. It needs root.
func Awake() (sleep func(), err error) {
	f, err := os.OpenFile(latencyFile, os.O_WRONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("low latency: %w: run it as root on a machine whose kernel has CPU idle states, or without --low-latency", err)
	}
	if _, err := f.Write(binary.NativeEndian.AppendUint32(nil, 0)); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("low latency: write %s: %w", latencyFile, err)
	}
	return func() { _ = f.Close() }, nil
}
