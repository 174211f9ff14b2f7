// Package plan says what an emulated rack is made of on Linux: namespaces,
// wires between them, and processes in them. Make derives it from a rack's
// description and does nothing else; package rack carries it out.
//
//	 bf-thesis-c1        bf-thesis-switch                   bf-thesis-m1
//	┌────────────┐      ┌──────────────────────────┐      ┌────────────┐
//	│ compute    │      │       gatekeeper         │      │ memory     │
//	│ programs   │      │           │ P4Runtime    │      │            │
//	│       eth0 ├──────┤ port1   switch     port4 ├──────┤ eth0       │
//	└────────────┘ veth └──────────────────────────┘ veth └────────────┘
//
// Nothing of it is in the machine's own network: the switch has a namespace of
// its own, and a namespace takes its links and addresses with it when it goes.
package plan

import (
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rack/config"
)

// Names that every rack has.
const (
	// Switch and Gatekeeper name the processes that are no blade's.
	Switch     = "switch"
	Gatekeeper = "gatekeeper"
	// NamespacePrefix begins the names of all racks' namespaces.
	NamespacePrefix = "bf-"
	// Interface is a blade's one interface.
	Interface = "eth0"
	// SwitchMAC is where blades send everything to, and what the Gatekeeper makes
	// the switch send from. The switch takes frames for any address.
	SwitchMAC = "02:b1:f0:00:00:01"
)

// Gateway stands for the switch in the blades' routes. Nobody has this address;
// a static neighbour entry gives it the switch's MAC.
var Gateway = netip.MustParseAddr("fe80::1")

// Plan is everything that a rack consists of. It is plain data, kept as JSON
// while the rack is up.
type Plan struct {
	Rack string `json:"rack"`
	// Switch is which switch runs.
	Switch config.Switch `json:"switch"`
	// Namespaces to make, the switch's first.
	Namespaces []string `json:"namespaces"`
	Wires      []Wire   `json:"wires"`
	// Machines are the blades of each memory machine: one, or two of which each is to hold
	// a copy.
	Machines [][]string `json:"machines,omitempty"`
	// Processes in the order of their stages.
	Processes []Process `json:"processes"`
	// Deployed are the programs that the Gatekeeper has started, in order, when all
	// processes are ready.
	Deployed []Deployed `json:"deployed,omitempty"`
}

// Wire joins a blade to a port of the switch by a pair of virtual interfaces.
type Wire struct {
	Blade string `json:"blade"`
	Port  int    `json:"port"`
	// Namespace and Interface of the switch's end; its MAC is SwitchMAC.
	SwitchNamespace string `json:"switch_namespace"`
	SwitchInterface string `json:"switch_interface"`
	// Namespace and MAC of the blade's end, which is called Interface.
	BladeNamespace string `json:"blade_namespace"`
	BladeMAC       string `json:"blade_mac"`
	// MTU of both ends in bytes.
	MTU int `json:"mtu"`
	// ChecksumOffload says that the switch understands frames whose UDP and TCP
	// checksums and segmentation are left to the interface.
	ChecksumOffload bool `json:"checksum_offload"`
	// Address is the blade's own.
	Address netip.Addr `json:"address"`
	// Routes are the prefixes that lie behind the switch.
	Routes []netip.Prefix `json:"routes"`
}

// Namespace returns the name of a blade's network namespace, or of the one that
// switch and Gatekeeper share.
func Namespace(rack, blade string) string {
	if blade == Gatekeeper {
		blade = Switch
	}
	return Prefix(rack) + blade
}

// Prefix is what the names of a rack's namespaces begin with. Rack names have
// no dash, so no rack's prefix begins another's.
func Prefix(rack string) string { return NamespacePrefix + rack + "-" }

// SocketPath is the switch's P4Runtime server for a rack that keeps its files
// in dir.
func SocketPath(dir string) string { return filepath.Join(dir, "switch.sock") }

// Keep is the name under which a rack's switch keeps its state while its process
// is away.
func Keep(rack string) string { return "rack-" + rack }

// AdminPath is the Gatekeeper's admin API: a Unix socket, because the Gatekeeper is
// in a network of its own.
func AdminPath(dir string) string { return filepath.Join(dir, "admin.sock") }

// MetricsPath is the socket of a process's metrics.
func MetricsPath(dir, process string) string {
	return filepath.Join(dir, "metrics-"+process+".sock")
}

// LogPath is the directory of the Gatekeeper's log, which outlives it.
func LogPath(dir string) string { return filepath.Join(dir, "gatekeeper-log") }

// LedgersDir has the directories of memory blades' ledgers, in a rack that is made from a
// backup.
func LedgersDir(dir string) string { return filepath.Join(dir, "ledgers") }

// KeepLedgers has the memory blades keep their ledgers in files.
func (p *Plan) KeepLedgers(dir string) {
	for i := range p.Processes {
		if q := &p.Processes[i]; len(q.Args) > 1 && q.Args[1] == "memory" {
			q.Args = append(q.Args, "--ledger-dir", filepath.Join(LedgersDir(dir), q.Blade))
		}
	}
}

// LogDir is where processes write what they print.
func LogDir(dir string) string { return filepath.Join(dir, "log") }

// ProcessLog is the file for what a process prints.
func ProcessLog(dir, process string) string { return filepath.Join(LogDir(dir), process+".log") }

// ProgramLogs is where a blade keeps what the programs print that are started there.
func ProgramLogs(dir, blade string) string { return filepath.Join(dir, "programs", blade) }

// Make returns the plan of a valid rack that keeps its files in dir.
func Make(c config.Config, dir string) Plan {
	p := Plan{Rack: c.Name, Switch: c.Switch, Namespaces: []string{Namespace(c.Name, Switch)}}
	for i, b := range c.Blades {
		w := wire(c, b, i+1)
		p.Wires = append(p.Wires, w)
		p.Namespaces = append(p.Namespaces, w.BladeNamespace)
	}
	p.Machines = c.MemoryMachines()
	p.Processes, p.Deployed = processes(c, p.Machines, p.Wires, dir), deployed(c)
	return p
}

func wire(c config.Config, b config.Blade, port int) Wire {
	return Wire{
		Blade:           b.Name,
		Port:            port,
		SwitchNamespace: Namespace(c.Name, Switch),
		SwitchInterface: fmt.Sprintf("port%d", port),
		BladeNamespace:  Namespace(c.Name, b.Name),
		BladeMAC:        fmt.Sprintf("02:b1:f0:01:%02x:%02x", port>>8, port&0xff),
		MTU:             c.MTU,
		ChecksumOffload: c.Switch == config.Bifrost,
		Address:         rackaddr.Blade(uint64(port)),
		Routes:          []netip.Prefix{rackaddr.RackPrefix, netip.PrefixFrom(dsmpacket.Make(c.DSMPrefix, 0, 0).Addr(), 40)},
	}
}

// Wire returns the wire of a blade.
func (p *Plan) Wire(blade string) (Wire, bool) {
	for _, w := range p.Wires {
		if w.Blade == blade {
			return w, true
		}
	}
	return Wire{}, false
}

// Mirrored reports whether a memory machine is to have two copies.
func (p *Plan) Mirrored() bool {
	return slices.ContainsFunc(p.Machines, func(m []string) bool { return len(m) > 1 })
}

// Of returns the processes that belong to a blade, or the switch or Gatekeeper.
func (p *Plan) Of(blade string) []Process {
	var own []Process
	for _, proc := range p.Processes {
		if proc.Blade == blade {
			own = append(own, proc)
		}
	}
	return own
}

// Locate returns the absolute path of a program: a path as it is, a bare name beside the bifrost binary, whose path may be "" for
// none, or else on PATH.
func Locate(bifrost, program string) (path string, err error) {
	candidates := []string{program}
	if !strings.Contains(program, "/") && bifrost != "" {
		candidates = []string{filepath.Join(filepath.Dir(bifrost), program), program}
	}
	for _, c := range candidates {
		if path, err = exec.LookPath(c); err == nil {
			return filepath.Abs(path)
		}
	}
	return "", err
}
