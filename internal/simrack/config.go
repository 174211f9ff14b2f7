package simrack

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/daemon"
	"github.com/bifrost-rack/bifrost/dsm/memory/store"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/disk"
	"github.com/bifrost-rack/bifrost/internal/wire"
)

// Blade is one blade of the rack; its place in Config.Blades, from 1, is its
// switch port and the number in its address.
type Blade struct {
	Name string
	Kind string // control.Compute or control.Memory
	// Capacity is a memory blade's bytes; 0 stands for 256 MiB.
	Capacity uint64
}

// Config describes a rack. The zero value is the thesis's rack on a direct wire.
type Config struct {
	Blades []Blade // none stands for Thesis()
	// Schedule, if set, makes the wire scheduled (see package wire).
	Schedule *wire.Schedule
	// Impair is what every link does to frames, in both directions; it needs a Schedule.
	Impair wire.Impairment
	// Programs are what compute blades can start, by the name of the program's file.
	Programs map[string]Program
	// OnFrame sees every frame on the wire.
	OnFrame func(wire.Frame)
	// Heartbeat is how often daemons report; 0 stands for a second.
	Heartbeat time.Duration
	// Machines are the memory machines that two blades serve, by the blades' names. Every
	// other memory blade is a machine of its own. If there are pairs, a machine's id is its
	// place, from 1, here and then among the other memory blades; else the Gatekeeper
	// chooses.
	Machines [][]string
	// PairByNumber is gatekeeper.Config.PairByNumber.
	PairByNumber bool
	// ShareExports lets programs that nobody has deployed export a service together.
	ShareExports bool
	// FillRate is gatekeeper.Config.FillRate.
	FillRate uint64
	// LedgerDir, if set, is where memory blades keep their ledgers: each in a directory of
	// its own, which outlives the blade.
	LedgerDir string
	// LedgerDisks, if set, are the disks that memory blades keep their ledgers on, by the blades' names. They outlive the blades.
	LedgerDisks map[string]*disk.Memory
	// LedgerSpace is memory.LedgerConfig.Space.
	LedgerSpace uint64
	// MTU is the largest IPv6 packet in bytes; 0 stands for rackaddr.DefaultMTU.
	MTU int
	// Disk, if set, is what the Gatekeeper's log is on: it outlives the Gatekeeper
	// (see CrashGatekeeper).
	Disk *wal.Disk
	// Pause, if set, makes the switch slow: it tells how long the next message between it
	// and the Gatekeeper takes. It may be called concurrently.
	Pause func() time.Duration
	// Sends, if set, is asked before a Gatekeeper sends anything to the switch: rules, packets, operations. If it reports false, that fails and is
	// not sent. It may be called concurrently.
	Sends func() bool
	// MemoryLimits are the memory servers'.
	MemoryLimits store.Limits
	// LogDir, if set, is the directory of the Gatekeeper's log, in place of Disk: the rack goes on where one before has ended. Its
	// secret is drawn at random, as a rack's is that is no test.
	LogDir string
	// Compute, if set, changes what the daemon of a compute blade is told before it starts.
	Compute func(*daemon.ComputeConfig) error
	// LogOptions are those of the Gatekeeper's log.
	LogOptions wal.Options
	// Clock tells a Gatekeeper or a memory blade that starts what time it is; it may be
	// called concurrently. Nil stands for time.Now.
	Clock func() time.Time
	// Log receives what happens; nil discards it.
	Log *slog.Logger
}

// Thesis is the topology of the thesis's evaluation (section 7.1): one client,
// two servers, three memory blades.
func Thesis() []Blade {
	var bs []Blade
	for _, name := range []string{"c1", "s1", "s2"} {
		bs = append(bs, Blade{Name: name, Kind: control.Compute})
	}
	for _, name := range []string{"m1", "m2", "m3"} {
		bs = append(bs, Blade{Name: name, Kind: control.Memory})
	}
	return bs
}

// withDefaults fills in what is left out and checks the rest.
func (c Config) withDefaults() (Config, error) {
	if len(c.Blades) == 0 {
		c.Blades = Thesis()
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	names := map[string]bool{}
	for i, b := range c.Blades {
		switch {
		case b.Name == "" || names[b.Name]:
			return c, fmt.Errorf("simrack: blade %d: name %q is empty or not unique", i+1, b.Name)
		case b.Kind != control.Compute && b.Kind != control.Memory:
			return c, fmt.Errorf("simrack: blade %s: kind %q", b.Name, b.Kind)
		case c.Schedule == nil && c.Impair != (wire.Impairment{}):
			return c, fmt.Errorf("simrack: only a scheduled wire impairs")
		}
		names[b.Name] = true
		if b.Capacity == 0 {
			c.Blades[i].Capacity = 256 << 20
		}
	}
	return c, nil
}

// machineOf returns the machine id that a memory blade asks for; 0 leaves it to the
// Gatekeeper.
func (c *Config) machineOf(blade string) uint8 {
	if len(c.Machines) == 0 {
		return 0
	}
	machines := slices.Clone(c.Machines)
	for _, b := range c.Blades {
		if b.Kind == control.Memory && !slices.ContainsFunc(c.Machines, func(m []string) bool { return slices.Contains(m, b.Name) }) {
			machines = append(machines, []string{b.Name})
		}
	}
	return uint8(1 + slices.IndexFunc(machines, func(m []string) bool { return slices.Contains(m, blade) })) //nolint:gosec // at most 255
}

// computeNodes is how many nodes a compute blade runs at most. One user may have 64 of them and more (package share).
const computeNodes = 96

// ports bind each port of the switch to its blade.
func (c *Config) ports() map[uint16]gatekeeper.Port {
	ports := map[uint16]gatekeeper.Port{}
	for i, b := range c.Blades {
		p := gatekeeper.Port{Blade: b.Name, Kind: b.Kind}
		if b.Kind == control.Memory {
			p.Capacity = b.Capacity
		}
		ports[uint16(i+1)] = p //nolint:gosec // ports have 9 bits
	}
	return ports
}
