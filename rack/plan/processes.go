package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/pairing"
	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/rack/config"
)

// Stage orders the start: a stage begins when all of the one before is ready.
type Stage int

// The stages.
const (
	StageSwitch Stage = iota + 1
	StageGatekeeper
	StageBlades
	StagePrograms
)

// String returns the stage's name.
func (s Stage) String() string {
	switch s {
	case StageSwitch:
		return "switch"
	case StageGatekeeper:
		return "gatekeeper"
	case StageBlades:
		return "blades"
	case StagePrograms:
		return "programs"
	}
	return fmt.Sprintf("stage %d", int(s))
}

// Readiness is how a process shows that it is ready.
type Readiness string

// The ways to be ready.
const (
	Started  Readiness = "started"  // it runs
	Notifies Readiness = "notifies" // it says so (package p4switch/shared/sdnotify)
	Listens  Readiness = "listens"  // its socket takes connections
	Prints   Readiness = "prints"   // a line of its output holds a text
)

// Process is one program to start.
type Process struct {
	// Name is unique in the rack: a blade's daemon has the blade's name.
	Name string `json:"name"`
	// Blade it belongs to, or Switch or Gatekeeper.
	Blade string `json:"blade"`
	// Namespace is the network it runs in.
	Namespace string `json:"namespace"`
	Stage     Stage  `json:"stage"`
	// Args begin with the program, by path or by a name to look for.
	Args []string `json:"args"`
	// Env is added to the environment.
	Env   map[string]string `json:"env,omitempty"`
	Ready Readiness         `json:"ready"`
	// Socket is the path that it listens on.
	Socket string `json:"socket,omitempty"`
	// Text is what Prints looks for.
	Text string `json:"text,omitempty"`
	// Listen is an address of this machine, outside of the namespace. The process inherits a TCP
	// socket that listens there, as descriptor Inherited.
	Listen string `json:"listen,omitempty"`
}

// The programs that Make names; Locate in package rack finds their files.
const (
	BifrostProgram = "bifrost"
	BMv2Program    = "simple_switch_grpc"
)

// Inherited is the descriptor of a process's socket of Process.Listen.
const Inherited = 3

// deviceID is the switch's P4Runtime device id; not 0, which reads like none.
const deviceID = 1

func processes(c config.Config, machines [][]string, wires []Wire, dir string) []Process {
	ids := machineIDs(c, machines)
	ps := []Process{switchProcess(c, wires, dir), gatekeeper(c, machines, ids, dir)}
	for i, b := range c.Blades {
		ps = append(ps, daemon(b, wires[i], ids[i], dir))
	}
	for _, p := range c.Programs {
		if len(p.Services) == 0 {
			ps = append(ps, program(c, p))
		}
	}
	return ps
}

// machineIDs are the machine ids of blades, 0 for compute blades.
func machineIDs(c config.Config, machines [][]string) []int {
	ids := make([]int, len(c.Blades))
	for i, b := range c.Blades {
		ids[i] = 1 + slices.IndexFunc(machines, func(m []string) bool { return slices.Contains(m, b.Name) })
	}
	return ids
}

func switchProcess(c config.Config, wires []Wire, dir string) Process {
	p := Process{
		Name: Switch, Blade: Switch, Namespace: Namespace(c.Name, Switch), Stage: StageSwitch,
		Ready: Notifies, Socket: SocketPath(dir),
	}
	common := []string{"--device-id", strconv.Itoa(deviceID)}
	for _, w := range wires {
		common = append(common, "-i", fmt.Sprintf("%d@%s", w.Port, w.SwitchInterface))
	}
	server := []string{"--grpc-server-addr", "unix:" + p.Socket, "--cpu-port", strconv.Itoa(p4.CPUPort)}
	switch c.Switch {
	case config.BMv2: // a target's own options come behind --
		p.Ready = Listens
		p.Args = slices.Concat([]string{BMv2Program, "--no-p4", "--log-console", "--log-level", "warn"}, common, []string{"--"}, server)
	default:
		p.Args = slices.Concat([]string{BifrostProgram, "switch", "--keep", Keep(c.Name), "--metrics-addr", "unix:" + MetricsPath(dir, Switch), "--log-file", ProcessLog(dir, Switch)}, common, server)
	}
	return p
}

// gatekeeper binds each port to its blade: no blade takes the place of another.
func gatekeeper(c config.Config, machines [][]string, ids []int, dir string) Process {
	p := Process{
		Name: Gatekeeper, Blade: Gatekeeper, Namespace: Namespace(c.Name, Switch), Stage: StageGatekeeper, Ready: Notifies,
		Args: []string{
			BifrostProgram, "gatekeeper", "--switch", "unix:" + SocketPath(dir), "--device-id", strconv.Itoa(deviceID),
			"--mtu", strconv.Itoa(c.MTU), "--dsm-prefix", strconv.Itoa(int(c.DSMPrefix)), "--admin-addr", "unix:" + AdminPath(dir),
			"--log", LogPath(dir), "--heartbeat", c.Heartbeat.String(), "--log-file", ProcessLog(dir, Gatekeeper),
		},
	}
	if p.Listen = c.Admin.Address; p.Listen != "" {
		p.Args = append(p.Args, "--admin-addr", fmt.Sprintf("fd:%d", Inherited))
		if c.Admin.TokenFile != "" {
			p.Args = append(p.Args, "--admin-token-file", c.Admin.TokenFile)
		}
	}
	for i, b := range c.Blades {
		bound := fmt.Sprintf("%d=%s:%s", i+1, b.Name, b.Kind)
		if b.Kind == control.Memory {
			bound += fmt.Sprintf(":%d:%d", ids[i], b.Capacity)
		}
		p.Args = append(p.Args, "--port", bound)
	}
	if c.TCP {
		p.Args = append(p.Args, "--tcp", "*")
	}
	for _, m := range machines {
		p.Args = append(p.Args, "--machine", strings.Join(m, pairing.Separator))
	}
	return p
}

// daemon is a blade's own process. Memory blades are given the ids of their machines, so
// that those do not depend on who says hello first.
func daemon(b config.Blade, w Wire, machine int, dir string) Process {
	p := Process{Name: b.Name, Blade: b.Name, Namespace: w.BladeNamespace, Stage: StageBlades, Ready: Notifies}
	switch b.Kind {
	case control.Memory:
		p.Args = []string{
			BifrostProgram, "memory", "--blade", b.Name, "--iface", Interface, "--metrics-addr", "unix:" + MetricsPath(dir, b.Name),
			"--capacity", strconv.FormatUint(b.Capacity, 10), "--machine", strconv.Itoa(machine),
		}
	default:
		p.Args = []string{
			BifrostProgram, "compute", "--blade", b.Name, "--iface", Interface, "--metrics-addr", "unix:" + MetricsPath(dir, b.Name),
			"--nodes", strconv.Itoa(b.Nodes),
			"--program-logs", ProgramLogs(dir, b.Name),
		}
	}
	p.Args = append(p.Args, "--log-file", ProcessLog(dir, b.Name))
	return p
}

func program(c config.Config, p config.Program) Process {
	ready := Started
	if p.Ready != "" {
		ready = Prints
	}
	return Process{
		Name: p.Name, Blade: p.Blade, Namespace: Namespace(c.Name, p.Blade), Stage: StagePrograms,
		Args: p.Command, Env: p.Env, Ready: ready, Text: p.Ready,
	}
}
