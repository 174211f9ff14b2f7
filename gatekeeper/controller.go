package gatekeeper

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/gatekeeper/callgraph"
	"github.com/bifrost-rack/bifrost/gatekeeper/execution"
	"github.com/bifrost-rack/bifrost/gatekeeper/lease"
	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/gatekeeper/recovery"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/trace"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// controller is all state of the Gatekeeper, and what it decides. It is
// sequential: who has the turn calls one of its inputs, sets now before, and
// carries out what it finds in out after.
type controller struct {
	cfg Config
	log *slog.Logger // for people
	now time.Time

	ports    map[uint16]*port
	refused  refusals
	blades   map[string]*blade // by name
	nodes    map[netip.Addr]*node
	services map[netip.Addr]*service
	calls    map[rpc.ID]*call
	graph    *callgraph.Graph // of the calls under way, those included that are not held
	leases   *lease.Machine
	fleet    *resources.Registry // who runs where, and deployments
	// fleetKept is the version of the registry that is on the log.
	fleetKept uint64
	base      base
	access    int                        // access rules that should be on the switch
	machines  [256]*blade                // memory blades in service, by machine id: the first copies
	mirrors   map[uint8]*mirror          // machines with two blades
	frees     map[packet.Pointer]freeing // regions being freed
	orphans   map[*call]time.Time        // calls that run without a caller, and when to ask for the reply

	// Exactly-once calls, and nodes that have failed: exactly.go, recover.go, undo.go.
	table      *execution.Table
	recoveries *recovery.Machine
	todo       []any // actions of both that are to be carried out
	working    bool  // and are being
	parts      *rpc.Assembler
	arriving   *arrival             // the call that is being judged
	fresh      map[log.Key][]byte   // packets of records that are not with the log yet
	fallen     map[netip.Addr]*node // nodes that have failed, until they are back or cleaned up after
	beginnings map[rpc.ID]beginning // durable mains that wait
	owners     owners               // of the names of services and mains
	sessions   map[uint64]lease.Node
	deferred   map[rpc.ID][]packet.Region
	unclaimed  map[rpc.ID][]stray // by executions that are to run again
	emptying   []*emptying        // nodes that are stopped when they have finished their calls
	resumed    map[rpc.ID]bool    // calls whose results may have been handed over before a restart
	holdings   holdings           // on whose behalf regions are controlled
	origins    origins            // which allocations of executions regions are
	servers    []*blade           // memory blades in service, by address
	lastAgain  time.Time          // when calls that nobody sends again were delivered again
	tracer     func(TraceRecord)
	timeline   *trace.Recorder
	parked     []parked // calls that wait for a digest, oldest first
	unparking  bool
	granted    grantedFrees

	hearing hearing

	began      uint64     // tells this rack from others: control.Welcome.Began
	run        uint64     // how many Gatekeepers have begun with this log, with this one
	lastNode   uint64     // number given out
	lastExport uint64     // number given out
	resuming   resumption // what is left to do after a restart

	connected bool     // the switch is there, its tables as they should be
	pressure  pressure // of the log
	narrate   bool     // somebody listens to events
	timers    bool     // deadline may have changed
	out       output
	count     Counters
	denied    []Denial // the latest, oldest first
}

// output is what the controller wants done, in order.
type output struct {
	plans   []*plan
	packets []packetOut
	events  []Event
	probe   bool      // ask the switch for an answer (probeAnswered)
	batch   log.Batch // to be logged before the packets go
}

func newController(cfg Config) *controller {
	c := &controller{
		cfg: cfg, began: cfg.Boot, run: 1, timeline: trace.New(trace.DefaultCalls), log: cfg.Log, ports: map[uint16]*port{}, blades: map[string]*blade{}, nodes: map[netip.Addr]*node{},
		services: map[netip.Addr]*service{}, calls: map[rpc.ID]*call{}, graph: callgraph.New(cfg.Limits.Calls), leases: lease.New(), fleet: newRegistry(), base: base{}, mirrors: map[uint8]*mirror{}, frees: map[packet.Pointer]freeing{}, orphans: map[*call]time.Time{},
		table: execution.New(0), recoveries: recovery.New(), parts: rpc.NewAssembler(cfg.Limits.Parts), fresh: map[log.Key][]byte{},
		fallen: map[netip.Addr]*node{}, beginnings: map[rpc.ID]beginning{}, owners: owners{map[claim]owner{}, map[owner]int{}}, sessions: map[uint64]lease.Node{}, deferred: map[rpc.ID][]packet.Region{}, unclaimed: map[rpc.ID][]stray{}, resumed: map[rpc.ID]bool{}, holdings: newHoldings(), origins: newOrigins(),
	}
	c.tracer = c.remember
	return c
}

// take returns the output and forgets it.
func (c *controller) take() output {
	o := c.out
	c.out = output{}
	return o
}

// send queues a frame for the switch.
func (c *controller) send(h hop, frame []byte) {
	c.out.packets = append(c.out.packets, packetOut{h, frame})
}

// event tells subscribers; it costs nothing when there are none.
func (c *controller) event(e Event) {
	if c.narrate {
		e.Time = c.now
		c.out.events = append(c.out.events, e)
	}
}

// change plans updates of the base tables, in the order of all such changes.
func (c *controller) change(then func(error), phases ...phase) {
	for _, p := range phases {
		c.count.RulesWritten += uint64(len(p))
	}
	c.out.plans = append(c.out.plans, &plan{phases: phases, ordered: true, then: func(err error) {
		if err != nil {
			c.count.Failures++
			c.log.Error("the switch refuses a rule", "error", err)
		}
		if then != nil {
			then(err)
		}
	}})
}

// packetIn takes a packet that the switch holds, and notes of its port what was refused.
func (c *controller) packetIn(port uint16, why reason, b []byte) {
	before := c.count
	c.takePacket(port, why, b)
	c.refused.note(port, &before, &c.count)
}

func (c *controller) takePacket(port uint16, why reason, b []byte) {
	c.count.Held++
	c.hear()
	h, err := parseHeld(port, why, b)
	if err != nil {
		c.count.Malformed++
		c.log.Debug("held packet dropped", "port", port, "reason", why, "error", err)
		return
	}
	switch why {
	case reasonControl:
		c.heldControl(h)
	case reasonCall:
		c.heldCall(h)
	case reasonNoRoute:
		c.heldNoRoute(h)
	case reasonFree:
		c.heldFree(h)
	case reasonMemoryReply:
		c.heldMemoryReply(h)
	case reasonNoHome:
		c.heldNoHome(h)
	default:
		c.count.Malformed++
	}
}

// deniedDigest is the digest of denied accesses.
const deniedDigest = "denied_digest_t"

// digest takes a sample of a digest.
func (c *controller) digest(d p4rtclient.Digest) {
	c.hear()
	if d.Name == callDigest {
		c.callSeen(d.Fields)
	}
	if d.Name != deniedDigest || len(d.Fields) != 4 {
		return
	}
	port, _ := d.Fields[0].Uint64()
	src, _ := d.Fields[1].Addr()
	dst, _ := d.Fields[2].Addr()
	request, _ := d.Fields[3].Uint64()
	c.accessDenied(uint16(port), src, dst, request) //nolint:gosec // 9 bits
}

// wanted is everything that should be on the switch.
func (c *controller) wanted() base {
	w := make(base, len(c.base)+3*c.leases.Len())
	for k, e := range c.base {
		w[k] = e
	}
	c.access = 0
	for r := range c.leases.Rules() {
		c.access++
		e := accessEntry(r)
		w[e.Key()] = e
	}
	return w
}
