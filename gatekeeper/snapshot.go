package gatekeeper

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/callgraph"
	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/gatekeeper/recovery"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Counters count what has happened since the Gatekeeper started.
type Counters struct {
	Held         uint64 `json:"held"`          // packets that the switch has held
	Reclaims     uint64 `json:"reclaims"`      // regions freed because nobody had them
	RulesWritten uint64 `json:"rules_written"` // entries inserted, modified or deleted
	Denied       uint64 `json:"denied"`        // accesses denied by the switch
	Deadlocks    uint64 `json:"deadlocks"`     // calls refused because they would have waited for themselves
	GivenUp      uint64 `json:"given_up"`      // calls whose programs have ended too often
	Refused      uint64 `json:"refused"`       // requests of daemons and programs refused by the Gatekeeper
	Malformed    uint64 `json:"malformed"`     // held packets that make no sense
	Foreign      uint64 `json:"foreign"`       // held packets from somebody who may not say that
	Failures     uint64 `json:"failures"`      // rules or commands refused by switch or blade
	Unsent       uint64 `json:"unsent"`        // packets that found no room towards the switch
	Deaf         uint64 `json:"deaf"`          // times in which the blades could not be heard
	Reconciled   uint64 `json:"reconciled"`    // entries repaired when the switch was found
	Logged       uint64 `json:"logged"`        // records put on the log
	CopiesLost   uint64 `json:"copies_lost"`   // copies of memory machines that have had two
}

// Denial is an access that the switch has denied.
type Denial struct {
	Time    time.Time  `json:"time"`
	Port    uint16     `json:"port"`
	Node    netip.Addr `json:"node"`
	Op      string     `json:"op"`
	Pointer string     `json:"pointer"`
}

// Snapshot is the Gatekeeper's state at one moment. Lists are sorted.
type Snapshot struct {
	Time     time.Time      `json:"time"`
	Switch   bool           `json:"switch"` // connected, its tables as they should be
	Blades   []BladeState   `json:"blades"`
	Machines []MachineState `json:"machines"` // memory machines, by their ids
	Nodes    []NodeState    `json:"nodes"`
	Services []ServiceState `json:"services"`
	Regions  []RegionState  `json:"regions"`
	Calls    []CallState    `json:"calls"`
	Denied   []Denial       `json:"denied"` // the latest, oldest first
	Counters Counters       `json:"counters"`
}

// BladeState is one blade.
type BladeState struct {
	Name     string     `json:"name"`
	Kind     string     `json:"kind"`
	Status   string     `json:"status"`          // free, in use, draining or failed
	Cause    string     `json:"cause,omitempty"` // why it is draining or has failed
	Address  netip.Addr `json:"address"`
	Port     uint16     `json:"port"` // of the switch; 0 if it has failed
	MAC      string     `json:"mac"`
	Machine  uint8      `json:"machine,omitempty"`
	Capacity uint64     `json:"capacity"`
	Used     uint64     `json:"used"`
	// Ledgers is what a memory blade's ledgers take, as it last reported; nil before.
	Ledgers *control.LedgerSpace `json:"ledgers,omitempty"`
	// Keeps is how many nodes there are whose states or checkpoints this memory blade alone has.
	Keeps int               `json:"keeps,omitempty"`
	Spec  map[string]string `json:"spec,omitempty"`
}

// Statuses of a blade (thesis section 5.3).
const (
	StatusFree     = "free"
	StatusInUse    = "in use"
	StatusDraining = "draining" // takes nothing new; what is there may finish
	StatusFailed   = "failed"
)

// NodeState is one node.
type NodeState struct {
	Address     netip.Addr `json:"address"`
	Name        string     `json:"name"`
	Blade       string     `json:"blade"`
	Incarnation uint32     `json:"incarnation"`
	Services    []string   `json:"services,omitempty"`
	// LedgerRoom is how many bytes new calls may still take in the node's ledger, as it told
	// last; nil before.
	LedgerRoom *uint64 `json:"ledger_room,omitempty"`
	// States is how many bytes the states of its services and the checkpoints of its durable mains have in the ledger, as it told last,
	// MaxStates how many they may have together; 0 before.
	States    uint64 `json:"states,omitempty"`
	MaxStates uint64 `json:"max_states,omitempty"`
	// Awaited is since when the node waits for its program: somebody had started that by hand, and it has ended. It is the
	// zero time for a node that is there.
	Awaited time.Time `json:"awaited,omitzero"`
}

// ServiceState is one service with its routes.
type ServiceState struct {
	Name    string        `json:"name"`
	Address netip.Addr    `json:"address"`
	Methods []MethodState `json:"methods"`
	// IDL is what the programs tell of it; NotServing are the nodes that say it should not
	// be called there.
	IDL        string       `json:"idl,omitempty"`
	NotServing []netip.Addr `json:"not_serving,omitempty"`
}

// MethodState is one method and the nodes that serve it, with the values of the
// call id's last byte that go to each.
type MethodState struct {
	Name   string       `json:"name"`
	Routes []RouteState `json:"routes"`
}

// RouteState is one row of the route table: calls whose id's last byte begins
// with the Bits highest bits of Spread go to Node.
type RouteState struct {
	Spread uint8      `json:"spread"`
	Bits   int        `json:"bits"`
	Node   netip.Addr `json:"node"`
}

// RegionState is one region.
type RegionState struct {
	Region     string       `json:"region"`
	Size       uint64       `json:"size"`
	Owner      netip.Addr   `json:"owner"`
	Controller netip.Addr   `json:"controller,omitzero"` // absent if it is gone
	Frozen     bool         `json:"frozen,omitempty"`    // nobody can say whose it is; see FreeRegion
	Leases     []LeaseState `json:"leases,omitempty"`
}

// LeaseState is one lease.
type LeaseState struct {
	Call string     `json:"call,omitempty"`
	Node netip.Addr `json:"node"`
	// Standing is the slot of a standing lease, 0 for a call's.
	Standing rpcpacket.Slot `json:"standing,omitempty"`
}

// snapshot copies the state.
func (c *controller) snapshot() Snapshot {
	s := c.overview()
	for i := range c.surveys.last.regions {
		s.Regions = append(s.Regions, c.surveys.last.regions[i].state())
	}
	slices.SortFunc(s.Regions, func(a, b RegionState) int { return cmp.Compare(a.Region, b.Region) })
	for _, k := range c.told.calls {
		s.Calls = append(s.Calls, c.told.state(k))
	}
	slices.SortFunc(s.Calls, func(a, b CallState) int { return cmp.Compare(a.Call, b.Call) })
	return s
}

// overview copies the state, but neither regions nor calls.
func (c *controller) overview() Snapshot {
	s := Snapshot{Time: c.now, Switch: c.connected, Counters: c.count, Denied: slices.Clone(c.denied)}
	s.Counters.Logged = c.records
	for _, b := range c.sortedBlades() {
		s.Blades = append(s.Blades, c.bladeState(b))
	}
	s.Machines = c.machineStates(c.now)
	for _, n := range c.nodes {
		s.Nodes = append(s.Nodes, c.told.nodeState(n))
	}
	for _, n := range c.fallen {
		if since := c.awaitedSince(n); !since.IsZero() {
			of := c.told.nodeState(n)
			of.Awaited = since
			s.Nodes = append(s.Nodes, of)
		}
	}
	slices.SortFunc(s.Nodes, func(a, b NodeState) int { return a.Address.Compare(b.Address) })
	for _, v := range c.services {
		if len(v.exports) > 0 {
			s.Services = append(s.Services, v.state())
		}
	}
	slices.SortFunc(s.Services, func(a, b ServiceState) int { return a.Address.Compare(b.Address) })
	return s
}

func (p *population) bladeState(b *blade) BladeState {
	s := BladeState{
		Name: b.hello.Blade, Kind: b.hello.Kind, Address: b.address, MAC: b.hello.MAC, Machine: b.hello.Machine,
		Capacity: b.hello.Capacity, Used: b.used, Ledgers: b.ledgers, Keeps: p.keptAt(b), Spec: maps.Clone(b.hello.Spec),
	}
	s.Status, s.Cause = p.bladeStatus(b)
	if b.alive() {
		s.Port = b.port.num
	}
	return s
}

func (t *told) nodeState(n *node) NodeState {
	s := NodeState{Address: n.address, Name: n.name, Blade: n.blade.hello.Blade, Incarnation: n.incarnation}
	if by := t.nodes[n.address]; by != nil && by.incarnation == n.incarnation {
		s.LedgerRoom, s.States, s.MaxStates = by.room, by.states, by.maxStates
	}
	for _, a := range sortedServices(n.exports) {
		if x := n.exports[a]; !x.away {
			s.Services = append(s.Services, x.service.name)
		}
	}
	return s
}

func (s *service) state() ServiceState {
	out := ServiceState{Name: s.name, Address: s.address, IDL: s.idl()}
	for _, x := range s.exports {
		if x.serves() && x.resting {
			out.NotServing = append(out.NotServing, x.node.address)
		}
	}
	names := map[string]int{} // index in out.Methods
	for _, k := range sortedRoutes(s.routes) {
		n := s.routes[k]
		name := n.exports[s.address].methods[k.method].Name
		i, ok := names[name]
		if !ok {
			i = len(out.Methods)
			names[name] = i
			out.Methods = append(out.Methods, MethodState{Name: name})
		}
		m := &out.Methods[i]
		m.Routes = append(m.Routes, RouteState{k.spread.value, k.spread.bits, n.address})
	}
	return out
}

// ErrNoSwitch is returned by methods that need the switch while it is away.
var ErrNoSwitch = errors.New("the switch is not connected")

// Settings are what a Gatekeeper was started with, defaults filled in.
type Settings struct {
	Boot      uint64
	Election  control.Election
	DeviceID  uint64
	DSMPrefix uint8
	MTU       int // bytes
	Heartbeat time.Duration
}

// Settings returns what the Gatekeeper was started with.
func (g *Gatekeeper) Settings() Settings {
	return Settings{g.cfg.Boot, control.Election(g.client.Election()), g.cfg.DeviceID, g.cfg.DSMPrefix, g.cfg.MTU, g.cfg.Heartbeat}
}

// Connected reports whether the switch obeys, its tables as they should be. It
// fails with ErrStopped if the Gatekeeper does not run.
func (g *Gatekeeper) Connected(ctx context.Context) (connected bool, err error) {
	err = g.do(ctx, func() { connected = g.ctl.connected })
	return connected, err
}

// Overview is the state at one moment without the lists that grow with the
// rack's load: how much there is of them instead.
type Overview struct {
	Snapshot      // Regions and Calls are nil
	RegionCount   int
	Missing       []string       // who has not told of regions and slots: memory blades, and "switch"
	CallCount     int            // with open slots in the switch
	CallsUnderWay int            // that nodes have told of
	Leases        map[string]int // standing leases, by how far they have come: coming, granted, ending, resting, ended (their owners have not let go of them)
	FreeBatches   int            // batches of region slots that were somebody's: each has a record on the log until somebody has it again
	// Recoveries are the nodes that have failed and are not back, or cleaned up after,
	// yet; without those for whose programs it waits only.
	Recoveries []recovery.View
	// LogRecords and LogBytes are what the log holds, LogLimit how many bytes it takes; 0 without one.
	LogRecords int
	LogBytes   uint64
	LogLimit   uint64
}

// Overview copies the state, but neither regions nor calls. It fails with
// ErrStopped if the Gatekeeper does not run.
func (g *Gatekeeper) Overview(ctx context.Context) (o Overview, err error) {
	if err := g.survey(ctx); err != nil {
		return o, err
	}
	err = g.do(ctx, func() {
		o = Overview{
			Snapshot: g.ctl.overview(), RegionCount: len(g.ctl.surveys.last.regions), Missing: g.ctl.missing(), CallCount: g.ctl.surveys.last.openCalls(),
			CallsUnderWay: len(g.ctl.told.calls), FreeBatches: g.ctl.batches.idleCount(), Leases: g.ctl.leases.count(), Recoveries: g.ctl.recovering(),
		}
	})
	if g.cfg.Store != nil {
		s := g.cfg.Store.Stats()
		o.LogRecords, o.LogBytes, o.LogLimit = s.Records, s.Bytes, s.Limit
	}
	return o, err
}

// Status is Snapshot without regions and calls, of which the switch and memory know: it asks neither. It fails with ErrStopped if the
// Gatekeeper does not run.
func (g *Gatekeeper) Status(ctx context.Context) (s Snapshot, err error) {
	err = g.do(ctx, func() { s = g.ctl.overview() })
	return s, err
}

// RegionQuery selects regions; the zero value selects all.
type RegionQuery struct {
	// Node controls the region, allocated it or has a lease.
	Node netip.Addr
	// Pointer lies in the region; nil for any.
	Pointer dsmpacket.Pointer
	// After is the base of the last region of the page before.
	After dsmpacket.Pointer
	// Limit is how many regions a page has at most, at least 1.
	Limit int
}

// RegionPage is a page of regions in the order of their addresses.
type RegionPage struct {
	Regions []RegionState
	More    bool // others follow
	// Missing names who has not told of them: memory blades, whose regions are left out then, and "switch", which knows controllers and leases.
	Missing []string
}

// Regions returns a page of regions. Other inputs come in between.
func (g *Gatekeeper) Regions(ctx context.Context, q RegionQuery) (page RegionPage, err error) {
	if err := g.survey(ctx); err != nil {
		return page, err
	}
	err = g.do(ctx, func() {
		g.ctl.surveys.last.scan(&q, &page.Regions)
		page.Missing = g.ctl.missing()
	})
	if page.More = len(page.Regions) > q.Limit; page.More {
		page.Regions = page.Regions[:q.Limit]
	}
	return page, err
}

// Rules reads entries of some of the switch's tables back, of all if none is
// named, sorted by their keys. It fails with ErrNoSwitch while the switch is
// away.
func (g *Gatekeeper) Rules(ctx context.Context, tables ...string) ([]p4rtclient.Entry, error) {
	connected, err := g.Connected(ctx)
	if err != nil {
		return nil, err
	}
	if !connected {
		return nil, ErrNoSwitch
	}
	entries, err := g.client.Read(ctx, tables...)
	slices.SortFunc(entries, func(a, b p4rtclient.Entry) int { return cmp.Compare(a.Key(), b.Key()) })
	return entries, err
}

// Tables lists the tables of the program that runs on the switch.
func (g *Gatekeeper) Tables() []string { return g.client.Program().Tables() }

// Questions to the call graph. Each is answered in a turn, from the state at one
// moment, and fails with ErrStopped if the Gatekeeper does not run; what is asked
// about has to exist (fault.NotFound).

// NodeCalls is what a node has to do with other nodes' calls.
type NodeCalls struct {
	// Waits are the calls that it has sent and that have not returned, Serves
	// those that were sent to it and that it has not finished; oldest first, the direct ones
	// behind the others.
	Waits, Serves []CallState
}

// NodeCalls tells what a node waits for, and what it is working on.
func (g *Gatekeeper) NodeCalls(ctx context.Context, a netip.Addr) (out NodeCalls, err error) {
	err = g.query(ctx, func(c *controller) error {
		n := c.nodes[a]
		if n == nil {
			return fault.New(fault.NotFound, "node", "there is no node %s", a)
		}
		out = NodeCalls{
			Waits:  c.told.of(func(k *directCall) bool { return k.caller.Address == a }),
			Serves: c.told.of(func(k *directCall) bool { return k.callee.Address == a }),
		}
		return nil
	})
	return out, err
}

// Chain returns a call and the calls on whose behalf it was made, innermost first,
// as far as they are under way.
func (g *Gatekeeper) Chain(ctx context.Context, id rpcpacket.ID) (chain []CallState, err error) {
	err = g.query(ctx, func(c *controller) error {
		chain = c.told.chain(id)
		if len(chain) == 0 {
			return fault.New(fault.NotFound, "call", "call %s is not under way", id)
		}
		return nil
	})
	return chain, err
}

// Holders is who has to do with a pointer.
type Holders struct {
	Region RegionState // with its controller and its leases
	// Calls are the calls under way that carry exactly this pointer, newest first.
	Calls []CallState
}

// Holders tells who holds a pointer.
func (g *Gatekeeper) Holders(ctx context.Context, p dsmpacket.Pointer) (out Holders, err error) {
	if err := g.survey(ctx); err != nil {
		return out, err
	}
	err = g.query(ctx, func(c *controller) error { return c.holders(p, &out) })
	return out, err
}

// FailureDomain is what the failure of a blade would take back.
type FailureDomain struct {
	Nodes []netip.Addr // its nodes, and those that share a fate with one of them
	// Regions are those on a memory blade. Missing names who has not told of them: the blade that was to list them, and "switch", which knows
	// controllers and leases.
	Regions []RegionState
	Missing []string
	// Rerun are the unfinished calls that would run again, the innermost first; Cut
	// those that would fail; Out those that the nodes have sent elsewhere, and that
	// run on; Waiting those elsewhere that wait for one of Rerun or Cut. Direct calls are
	// as their callees have told last.
	Rerun, Cut, Out, Waiting []CallState
}

// FailureDomain tells what would fail with a blade.
func (g *Gatekeeper) FailureDomain(ctx context.Context, name string) (out FailureDomain, err error) {
	if err := g.survey(ctx); err != nil {
		return out, err
	}
	err = g.query(ctx, func(c *controller) error {
		b := c.blades[name]
		if b == nil {
			return fault.New(fault.NotFound, "blade", "there is no blade %q", name)
		}
		out = c.told.failureDomain(b, &c.surveys.last)
		if b.memory() {
			out.Missing = c.unread()
			for _, name := range c.silent() {
				if o := c.blades[name]; o != nil && o.hello.Machine == b.hello.Machine {
					out.Missing = append(out.Missing, name)
				}
			}
		}
		return nil
	})
	return out, err
}

func (t *told) failureDomain(b *blade, last *surveyed) (out FailureDomain) {
	var failed []callgraph.Node
	for _, n := range b.sortedNodes() {
		failed = append(failed, n.identity())
	}
	d := callgraph.DomainOf(t.graph(), failed...)
	for _, n := range d.Nodes {
		out.Nodes = append(out.Nodes, n.Address)
	}
	out.Rerun, out.Cut, out.Out, out.Waiting = t.states(d.Rerun), t.states(d.Cut), t.states(d.Out), t.states(d.Waiting)
	if b.memory() {
		for i := range last.regions {
			if r := &last.regions[i]; r.region.Base.Machine() == b.hello.Machine {
				out.Regions = append(out.Regions, r.state())
			}
		}
	}
	return out
}

// query has f asked in a turn.
func (g *Gatekeeper) query(ctx context.Context, f func(*controller) error) error {
	var err error
	if stopped := g.do(ctx, func() { err = f(g.ctl) }); stopped != nil {
		return stopped
	}
	return err
}
