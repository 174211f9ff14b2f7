package gatekeeper

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/lease"
	"github.com/bifrost-rack/bifrost/internal/control"
)

// Counters count what has happened since the Gatekeeper started.
type Counters struct {
	Held         uint64 `json:"held"`          // packets that the switch has held
	Released     uint64 `json:"released"`      // packets that have gone on
	Calls        uint64 `json:"calls"`         // held calls and one-ways
	Allocs       uint64 `json:"allocs"`        // regions that came up
	Frees        uint64 `json:"frees"`         // regions freed by their controllers
	Reclaims     uint64 `json:"reclaims"`      // regions freed because nobody had them
	RulesWritten uint64 `json:"rules_written"` // entries inserted, modified or deleted
	RulesGranted uint64 `json:"rules_granted"` // of these, accesses granted
	RulesRevoked uint64 `json:"rules_revoked"` // and revoked
	Denied       uint64 `json:"denied"`        // accesses denied by the switch
	Deadlocks    uint64 `json:"deadlocks"`     // calls refused because they would have waited for themselves
	Refused      uint64 `json:"refused"`       // calls, frees and requests refused by the Gatekeeper
	Duplicates   uint64 `json:"duplicates"`    // copies of what was known
	Late         uint64 `json:"late"`          // calls below their session's floor
	Malformed    uint64 `json:"malformed"`     // held packets that make no sense
	Foreign      uint64 `json:"foreign"`       // held packets from somebody who may not say that
	Overload     uint64 `json:"overload"`      // held packets dropped because too many wait
	Failures     uint64 `json:"failures"`      // rules or commands refused by switch or blade
	Unsent       uint64 `json:"unsent"`        // packets that found no room towards the switch
	Deaf         uint64 `json:"deaf"`          // times in which the blades could not be heard
	Probes       uint64 `json:"probes"`        // replies asked for in a gone caller's place
	Reconciled   uint64 `json:"reconciled"`    // entries repaired when the switch was found
	Logged       uint64 `json:"logged"`        // records put on the log
	Recalled     uint64 `json:"recalled"`      // replies sent again from the log
	Resumed      uint64 `json:"resumed"`       // calls of a former Gatekeeper released again
	Rollbacks    uint64 `json:"rollbacks"`     // executions whose nodes have failed, taken back
	Aborted      uint64 `json:"aborted"`       // calls given up: their nodes are gone, or failed too often
	Diverged     uint64 `json:"diverged"`      // executions that did something else when they were run again
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
	Spec    map[string]string    `json:"spec,omitempty"`
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
	Freeing    bool         `json:"freeing,omitempty"`
	Leases     []LeaseState `json:"leases,omitempty"`
}

// LeaseState is one lease.
type LeaseState struct {
	Call string     `json:"call"`
	Node netip.Addr `json:"node"`
}

// snapshot copies the state.
func (c *controller) snapshot() Snapshot {
	s := c.overview()
	for r := range c.leases.Regions() {
		s.Regions = append(s.Regions, regionState(r))
	}
	slices.SortFunc(s.Regions, func(a, b RegionState) int { return cmp.Compare(a.Region, b.Region) })
	for k := range c.knownCalls() {
		s.Calls = append(s.Calls, c.callState(k))
	}
	slices.SortFunc(s.Calls, func(a, b CallState) int { return cmp.Compare(a.Call, b.Call) })
	return s
}

// overview copies the state, but neither regions nor calls.
func (c *controller) overview() Snapshot {
	s := Snapshot{Time: c.now, Switch: c.connected, Counters: c.count, Denied: slices.Clone(c.denied)}
	for _, b := range c.sortedBlades() {
		s.Blades = append(s.Blades, c.bladeState(b))
	}
	s.Machines = c.machineStates()
	for _, n := range c.nodes {
		s.Nodes = append(s.Nodes, c.nodeState(n))
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

func (c *controller) bladeState(b *blade) BladeState {
	s := BladeState{
		Name: b.hello.Blade, Kind: b.hello.Kind, Address: b.address, MAC: b.hello.MAC, Machine: b.hello.Machine,
		Capacity: b.hello.Capacity, Used: b.used, Ledgers: b.ledgers, Spec: maps.Clone(b.hello.Spec),
	}
	s.Status, s.Cause = c.bladeStatus(b)
	if b.alive() {
		s.Port = b.port.num
	}
	return s
}

func (c *controller) nodeState(n *node) NodeState {
	s := NodeState{Address: n.address, Name: n.name, Blade: n.blade.hello.Blade, Incarnation: n.incarnation}
	for _, a := range sortedServices(n.exports) {
		if n.exports[a].away {
			continue
		}
		s.Services = append(s.Services, c.services[a].name)
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

func regionState(r lease.Region) RegionState {
	s := RegionState{Region: r.Region.String(), Size: r.Region.Size(), Owner: r.Owner, Controller: r.Controller, Freeing: r.Freeing}
	for _, l := range r.Leases {
		s.Leases = append(s.Leases, LeaseState{l.Call.String(), l.Node})
	}
	slices.SortFunc(s.Leases, func(a, b LeaseState) int { return cmp.Compare(a.Call, b.Call) })
	return s
}
