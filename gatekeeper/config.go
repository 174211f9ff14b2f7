package gatekeeper

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	"github.com/bifrost-rack/bifrost/gatekeeper/trace"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/pairing"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
	"google.golang.org/grpc"
)

// Config is what a Gatekeeper needs. Conn is required, and Ports or Open.
type Config struct {
	// Conn leads to the switch's P4Runtime server.
	Conn grpc.ClientConnInterface
	// DeviceID is the switch's P4Runtime device id; 0 means 1.
	DeviceID uint64
	// Election decides among several Gatekeepers: the highest one rules. Zero
	// means the present time in nanoseconds, so the one that started last. With a
	// log, one that is not above the last one's becomes the next one after it.
	Election control.Election
	// Boot tells this start of the Gatekeeper from all others, for the daemons; 0
	// draws it at random.
	Boot uint64
	// DSMPrefix is byte 4 of every global pointer; 0 means the default plan's.
	DSMPrefix uint8
	// MTU is the rack's largest IPv6 packet in bytes; 0 means the default plan's.
	MTU int
	// Heartbeat is how often daemons report; one that is silent for three times as
	// long has failed. 0 means a second.
	Heartbeat time.Duration
	// MAC is the source address of the frames that the switch sends to blades; zero
	// means 02:b1:f0:00:00:01.
	MAC frame.MAC
	// Store is the log: what the Gatekeeper decides is on it before anybody is told,
	// and a Gatekeeper that begins with it goes on where another one was cut off. It
	// must not be closed before Run has returned. Nil means no log: what the
	// Gatekeeper knows ends with it, and blades and nodes begin anew.
	Store *log.Log
	// Over, if set, is told of every call that is over, and of the outermost call on
	// whose behalf it was made, in the middle of an input, which it must not hold up.
	Over func(call trace.Call, root rpc.ID)
	// Machines are the memory machines that two blades serve, by the blades' names. Every
	// other memory blade is a machine of its own.
	Machines [][]string
	// PairByNumber pairs memory blades that Machines does not name: m1 with m2, m3 with m4
	// (pairing.ByNumber). One that asks for a machine id of its own stays alone.
	PairByNumber bool
	// Ledgers gives each node a ledger (LedgersShadow), or none.
	Ledgers LedgerMode
	// Fenced, if set, is told of each node that has been fenced at all memory blades, in the
	// middle of an input, which it must not hold up.
	Fenced func(FencedNode)
	// Ports bind ports of the switch to blades. Open admits blades at other ports, too,
	// under names and machine ids that no port is bound to; without it a blade registers
	// at its own port only. One of the two is required.
	Ports map[uint16]Port
	Open  bool
	// Rates bound what one port of the switch may cause the Gatekeeper.
	Rates Rates
	// TCP are the blades between which TCP may pass, by name; "*" stands for all. Without it
	// the switch drops TCP.
	TCP []string
	// ShareExports lets programs that nobody has deployed export a service together.
	// Without it a service belongs to the one that exports it first.
	ShareExports bool
	// FillRate is how many bytes a second a memory blade sends at most to one that it
	// fills; 0 means 64 MiB.
	FillRate uint64
	// Limits bound what it keeps; those that are 0 are the defaults.
	Limits Limits
	// Log receives what happens; nil discards it.
	Log *slog.Logger
}

// missedHeartbeats is after how many heartbeats' silence a blade has failed.
const missedHeartbeats = 3

// defaultFillRate leaves most of a memory blade's time to its clients: it copies 1 GiB in
// 16 s.
const defaultFillRate = 64 << 20

// withDefaults fills in what is left out and checks the rest.
func (c Config) withDefaults() (Config, error) {
	if c.Conn == nil {
		return c, errors.New("gatekeeper: Config.Conn is required")
	}
	if c.DeviceID == 0 {
		c.DeviceID = 1
	}
	if c.Election == (control.Election{}) {
		c.Election.Low = uint64(time.Now().UnixNano()) //nolint:gosec // after 1970
	}
	for c.Boot == 0 {
		c.Boot = rand.Uint64()
	}
	if c.DSMPrefix == 0 {
		c.DSMPrefix = rackaddr.DefaultDSMPrefix
	}
	if c.MTU == 0 {
		c.MTU = rackaddr.DefaultMTU
	}
	if c.MTU < 1280 || c.MTU > netio.MaxDatagram+8 {
		return c, fmt.Errorf("gatekeeper: MTU of %d bytes: IPv6 needs 1280, and %d is the most", c.MTU, netio.MaxDatagram+8)
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = time.Second
	}
	if c.Heartbeat < time.Millisecond {
		return c, fmt.Errorf("gatekeeper: heartbeat of %s: at least a millisecond", c.Heartbeat)
	}
	if err := pairing.Check(c.Machines); err != nil {
		return c, fmt.Errorf("gatekeeper: %w", err)
	}
	for _, blades := range c.Machines {
		for _, name := range blades {
			if err := checkName("machine", name); err != nil {
				return c, fmt.Errorf("gatekeeper: %w", err)
			}
		}
	}
	if len(c.Ports) == 0 && !c.Open {
		return c, errors.New("gatekeeper: no port of the switch is bound to a blade, so none could register: bind ports (--port), or admit every blade (--open)")
	}
	if err := checkPorts(c.Ports); err != nil {
		return c, err
	}
	if c.MAC.IsZero() {
		c.MAC = frame.MAC{0x02, 0xb1, 0xf0, 0, 0, 1}
	}
	if c.FillRate == 0 {
		c.FillRate = defaultFillRate
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	var err error
	c.Limits, err = c.Limits.withDefaults()
	return c, err
}
