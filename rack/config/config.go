// Package config is the description of an emulated rack: which blades it has,
// which switch joins them, and which programs run on them. It is plain data;
// Read parses the YAML form (examples/rack.yaml documents every key) and
// Validate holds the rules, so a rack made in Go obeys the same ones.
package config

import (
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/pairing"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// Switch names the program that joins the blades.
type Switch string

// The switches that run Bifröst's P4 program.
const (
	Bifrost Switch = "bifrost" // the project's own software switch
	BMv2    Switch = "bmv2"    // p4lang's simple_switch_grpc, found on PATH
)

// Limits of a rack.
const (
	// MaxBlades leaves room below the CPU port (510) in v1model's 9-bit ports.
	MaxBlades = 500
	// MaxMemoryBlades is what the machine byte of a global pointer can tell apart.
	MaxMemoryBlades = 255
	// MinMTU is IPv6's own; MaxMTU the longest packet without jumbograms, bytes.
	MinMTU = 1280
	MaxMTU = 65535
	// MinCapacity and MaxCapacity bound a memory blade, bytes.
	MinCapacity = 1 << 20
	MaxCapacity = 1 << 40
	// MaxNodes bounds the concurrent nodes of a compute blade.
	MaxNodes = 4096
	// MaxPrograms bounds the programs started with the rack, and MaxServing those
	// of them that serve, which are one deployment.
	MaxPrograms = 1000
	MaxServing  = 100
	// MinHeartbeat and MaxHeartbeat bound the interval of reports.
	MinHeartbeat = 10 * time.Millisecond
	MaxHeartbeat = time.Minute
)

// Defaults for what a rack file leaves out.
const (
	DefaultName     = "thesis"
	DefaultCapacity = 1 << 30 // bytes of a memory blade
	DefaultNodes    = 64      // concurrent nodes of a compute blade
	// DefaultHeartbeat leaves a loaded machine room: no blade that works seems dead.
	DefaultHeartbeat = time.Second
)

// Config describes one rack.
type Config struct {
	// Name tells racks on one machine apart; it is part of namespace names.
	Name string
	// Switch is the program between the blades.
	Switch Switch
	// MTU is the largest IPv6 packet in bytes.
	MTU int
	// DSMPrefix is byte 4 of every global pointer.
	DSMPrefix uint8
	// Heartbeat is how often blades report; one that is silent for three times as
	// long has failed.
	Heartbeat time.Duration
	// TCP lets TCP pass between all blades; without it the switch drops TCP.
	TCP bool
	// Blades in the order of their switch ports, which count from 1.
	Blades []Blade
	// Machines are memory machines by the names of their blades: one, or two of which
	// each holds a copy. Memory blades that are not named are paired in the order of
	// their names (see MemoryMachines).
	Machines [][]string
	// Programs started once all blades are registered, in this order.
	Programs []Program
	// Admin is where the admin API is beside its Unix socket. It belongs to who starts the rack, and
	// has no key in the rack file.
	Admin Admin
}

// Admin is the admin API over TCP, for those who have a token.
type Admin struct {
	// Address is a loopback address and a port of this machine, not of the rack's networks; ""
	// stands for none.
	Address string
	// TokenFile has the token, and is made if there is none; "" stands for that of a Gatekeeper of
	// this user.
	TokenFile string
}

// Blade is one compute or memory blade.
type Blade struct {
	Name string
	// Kind is control.Compute or control.Memory.
	Kind string
	// Capacity is a memory blade's size in bytes.
	Capacity uint64
	// Nodes is how many nodes a compute blade runs at a time.
	Nodes int
}

// Program is a command that runs on a compute blade from the start. One that
// serves is deployed: the Gatekeeper has it started again when it ends, and on a
// spare when its blade fails. Any other is a process of its blade, and ends with it.
type Program struct {
	// Name is what `rack status` and `rack logs` call it.
	Name  string
	Blade string
	// Command is the program and its arguments. A bare name is looked for
	// beside the bifrost binary, then on PATH.
	Command []string
	// Env is added to the environment of `rack up`.
	Env map[string]string
	// Ready is text that a line of the program's output holds once it is ready;
	// the rack is up only then. Without it, having started is enough. One that
	// serves is ready when it does.
	Ready string
	// Services are what the program exports; Stateful says that they keep state.
	Services []string
	Stateful bool
	// Spares are the blades where it goes on when its own has failed, the preferred
	// first. None stand for all other compute blades, those without programs first.
	Spares []string
}

// MemoryMachines returns the blades of every memory machine: those of Machines, then
// the other memory blades, paired in the order of their names. A machine's place, from
// 1, is its id.
func (c *Config) MemoryMachines() [][]string {
	return pairing.Machines(c.Machines, c.memoryBlades())
}

// Unmirrored makes every memory blade a machine of its own.
func (c *Config) Unmirrored() {
	c.Machines = nil
	for _, name := range c.memoryBlades() {
		c.Machines = append(c.Machines, []string{name})
	}
}

// memoryBlades returns the names of the memory blades, in the order of Blades.
func (c *Config) memoryBlades() (names []string) {
	for _, b := range c.Blades {
		if b.Kind == control.Memory {
			names = append(names, b.Name)
		}
	}
	return names
}

func defaults() Config {
	return Config{
		Name: DefaultName, Switch: Bifrost, MTU: rackaddr.DefaultMTU, DSMPrefix: rackaddr.DefaultDSMPrefix, Heartbeat: DefaultHeartbeat,
	}
}

// Thesis returns the thesis's rack (its section 7.1): a client, two servers and
// three memory blades, with ping served on s1 and the arrays on s2.
func Thesis() Config {
	c := defaults()
	for _, name := range []string{"c1", "s1", "s2"} {
		c.Blades = append(c.Blades, Blade{Name: name, Kind: control.Compute, Nodes: DefaultNodes})
	}
	for _, name := range []string{"m1", "m2", "m3"} {
		c.Blades = append(c.Blades, Blade{Name: name, Kind: control.Memory, Capacity: DefaultCapacity})
	}
	for _, p := range []struct{ name, blade, service string }{{"ping", "s1", "Ping"}, {"arrays", "s2", "Arrays"}} {
		c.Programs = append(c.Programs, Program{
			Name: p.name, Blade: p.blade, Command: []string{"arrays", "server", "--services", p.service}, Services: []string{p.service},
		})
	}
	return c
}
