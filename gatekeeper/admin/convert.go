package admin

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/recovery"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// What the Gatekeeper says, as the API says it. Lists are never nil: that would be
// null in JSON.

func statusOf(version string, set gatekeeper.Settings, o *gatekeeper.Overview) api.Status {
	return api.Status{
		Version: version, Boot: bootOf(set), Election: fmt.Sprintf("%d:%d", set.Election.High, set.Election.Low), Time: o.Time,
		Switch: api.Switch{Connected: o.Switch, DeviceID: set.DeviceID},
		MTU:    set.MTU, DSMPrefix: int(set.DSMPrefix), Heartbeat: set.Heartbeat.Seconds(),
		Counts: countsOf(o), Counters: countersOf(&o.Counters), Recoveries: each(o.Recoveries, recoveryOf),
	}
}

func recoveryOf(v *recovery.View) api.Recovery {
	r := api.Recovery{
		Node: v.Node.Address, Incarnation: v.Node.Incarnation, Gone: v.Gone, Cause: v.Cause, Phase: v.Phase.String(), Since: v.Since, Waits: []string{},
	}
	for _, s := range v.Waits.Servers {
		r.Waits = append(r.Waits, string(s))
	}
	for _, w := range []struct {
		what string
		is   bool
	}{{"switch", v.Waits.Switch}, {"spare", v.Waits.Spare}} {
		if w.is {
			r.Waits = append(r.Waits, w.what)
		}
	}
	return r
}

func countersOf(c *gatekeeper.Counters) api.Counters {
	return api.Counters{
		Held: c.Held, Reclaims: c.Reclaims, RulesWritten: c.RulesWritten, Denied: c.Denied, Deadlocks: c.Deadlocks, GivenUp: c.GivenUp, Refused: c.Refused,
		Malformed: c.Malformed, Foreign: c.Foreign, Failures: c.Failures, Unsent: c.Unsent, Deaf: c.Deaf, Reconciled: c.Reconciled, Logged: c.Logged,
		CopiesLost: c.CopiesLost,
	}
}

// bootOf names a run of the Gatekeeper.
func bootOf(set gatekeeper.Settings) string { return fmt.Sprintf("%016x", set.Boot) }

// nearlyFull is the share of what the states of a node may have from which on people are told.
const nearlyFull = 0.8

func countsOf(o *gatekeeper.Overview) api.Counts {
	c := api.Counts{
		Nodes: len(present(o.Nodes)), Services: len(o.Services), Regions: o.RegionCount, Missing: o.Missing,
		Calls: o.CallsUnderWay, Recorded: o.CallCount,
		LogRecords: o.LogRecords, LogBytes: o.LogBytes, FreeBatches: o.FreeBatches,
	}
	for i := range o.Nodes {
		if n := &o.Nodes[i]; float64(n.States) > nearlyFull*float64(n.MaxStates) {
			c.FullStates++
		}
	}
	for i := range o.Blades {
		switch o.Blades[i].Status {
		case gatekeeper.StatusFree:
			c.Blades.Free++
		case gatekeeper.StatusInUse:
			c.Blades.InUse++
		case gatekeeper.StatusDraining:
			c.Blades.Draining++
		case gatekeeper.StatusFailed:
			c.Blades.Failed++
		}
	}
	return c
}

func bladesOf(o *gatekeeper.Overview) []api.Blade {
	nodes := map[string][]netip.Addr{}
	for _, n := range present(o.Nodes) {
		nodes[n.Blade] = append(nodes[n.Blade], n.Address)
	}
	return each(o.Blades, func(b *gatekeeper.BladeState) api.Blade {
		return api.Blade{
			Name: b.Name, Kind: b.Kind, Status: b.Status, Cause: b.Cause, Address: b.Address, Port: b.Port, MAC: b.MAC, Machine: b.Machine,
			Capacity: b.Capacity, Used: b.Used, Ledgers: ledgersOf(b.Ledgers), Keeps: b.Keeps, Nodes: list(nodes[b.Name]), Spec: b.Spec,
		}
	})
}

func ledgersOf(s *control.LedgerSpace) *api.LedgerSpace {
	if s == nil {
		return nil
	}
	return &api.LedgerSpace{Used: s.Used, Total: s.Total, Space: s.Space, Count: s.Count, Refused: s.Refused}
}

func machinesOf(o *gatekeeper.Overview) []api.Machine {
	return each(o.Machines, func(m *gatekeeper.MachineState) api.Machine {
		out := api.Machine{
			Machine: m.Machine, Blades: list(m.Blades), Copies: list(m.Copies), InService: m.InService, Epoch: m.Epoch, Why: m.Why, Capacity: m.Capacity, Used: m.Used,
		}
		if f := m.Filling; f != nil {
			out.Filling = &api.Filling{Blade: f.Blade, Done: f.Done, Total: f.Total, Rate: f.Rate, Left: f.Left.Seconds()}
		}
		return out
	})
}

// present are the nodes without those that wait for their programs.
func present(all []gatekeeper.NodeState) []gatekeeper.NodeState {
	return slices.DeleteFunc(slices.Clone(all), func(n gatekeeper.NodeState) bool { return !n.Awaited.IsZero() })
}

func nodesOf(o *gatekeeper.Overview) []api.Node {
	return each(o.Nodes, func(n *gatekeeper.NodeState) api.Node {
		out := api.Node{Address: n.Address, Name: n.Name, Blade: n.Blade, Incarnation: n.Incarnation, Services: list(n.Services), LedgerRoom: n.LedgerRoom, States: n.States, MaxStates: n.MaxStates}
		if !n.Awaited.IsZero() {
			out.Awaited = &n.Awaited
		}
		return out
	})
}

func servicesOf(o *gatekeeper.Overview) []api.Service {
	services := each(o.Services, serviceOf)
	slices.SortFunc(services, func(a, b api.Service) int { return cmp.Compare(a.Name, b.Name) })
	return services
}

func serviceOf(s *gatekeeper.ServiceState) api.Service {
	out := api.Service{Name: s.Name, Address: s.Address, Nodes: []netip.Addr{}, Methods: []api.Method{}, NotServing: append([]netip.Addr{}, s.NotServing...), IDL: s.IDL}
	for _, m := range s.Methods {
		routes := each(m.Routes, func(r *gatekeeper.RouteState) api.Route {
			return api.Route{Spread: r.Spread, Bits: r.Bits, Node: r.Node}
		})
		out.Methods = append(out.Methods, api.Method{Name: m.Name, Routes: routes})
		for _, r := range routes {
			out.Nodes = append(out.Nodes, r.Node)
		}
	}
	slices.SortFunc(out.Nodes, netip.Addr.Compare)
	out.Nodes = slices.Compact(out.Nodes)
	slices.SortFunc(out.Methods, func(a, b api.Method) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// regionsOf needs to know which blades the memory machines are: of one with two copies,
// the blade that answers reads.
func regionsOf(regions []gatekeeper.RegionState, o *gatekeeper.Overview) []api.Region {
	machines := map[uint8]string{}
	for i := range o.Machines {
		if m := &o.Machines[i]; len(m.Copies) > 0 {
			machines[m.Machine] = m.Copies[0]
		}
	}
	return each(regions, func(r *gatekeeper.RegionState) api.Region {
		out := api.Region{
			Region: r.Region, Size: r.Size, Owner: r.Owner, Controller: r.Controller, Frozen: r.Frozen,
			Leases: each(r.Leases, func(l *gatekeeper.LeaseState) api.Lease {
				return api.Lease{Call: l.Call, Node: l.Node, Standing: uint32(l.Standing)}
			}),
		}
		if p, err := netip.ParsePrefix(r.Region); err == nil {
			out.Blade = machines[dsmpacket.FromAddr(p.Addr()).Machine()]
		}
		return out
	})
}

func slotOf(s *gatekeeper.SlotState) api.Slot {
	kind := "call"
	switch {
	case s.Standing:
		kind = "lease"
	case s.Oneway:
		kind = "oneway"
	}
	return api.Slot{
		Slot: uint32(s.Slot), Number: s.Number.String(), Kind: kind, Caller: s.Caller, Callee: s.Callee, Regions: slices.Concat([]string{}, s.Regions), Call: s.Call,
		Children: s.Children, Step: s.Step, Since: s.Since,
	}
}

func callOf(k *gatekeeper.CallState) api.Call {
	return api.Call{
		ID: k.Call, Parent: k.Parent, Caller: k.Caller, Callee: k.Callee, Service: k.Service, Method: k.Method,
		Policy: k.Policy, B1: k.B1, Oneway: k.Oneway, Behind: k.Behind, Attempts: k.Attempts, Told: k.Told, Arguments: k.Details.Arguments, Headers: headersOf(k.Details.Headers, true),
	}
}

// headersOf hides the values that may be secrets, if it is to.
func headersOf(headers []control.Header, hide bool) (all []api.Header) {
	for _, h := range headers {
		if h.Secret() && hide {
			h.Value = hidden
		}
		all = append(all, api.Header(h))
	}
	return all
}

func denialOf(d *gatekeeper.Denial) api.Denial {
	return api.Denial{Time: d.Time, Port: d.Port, Node: d.Node, Op: d.Op, Pointer: d.Pointer}
}

func eventOf(id string, e *gatekeeper.Event) api.Event {
	out := api.Event{
		ID: id, Time: e.Time, Kind: string(e.Kind), Blade: e.Blade, Node: e.Node, Peer: e.Peer, Name: e.Name, Service: e.Service,
		Method: e.Method, Call: e.Call, Region: e.Region, Op: e.Op, Code: codeOf(e.Code), Message: e.Message,
	}
	return out
}

// codeOf is a code's name, nothing for none.
func codeOf(c fault.Code) string {
	if c == fault.OK {
		return ""
	}
	return c.String()
}

// codeNamed finds a code by its name.
func codeNamed(name string) (fault.Code, bool) {
	i := slices.Index(fault.Names(), name)
	return fault.Code(max(i, 0)), i >= 0 //nolint:gosec // there are few
}

// each converts a list.
func each[A, B any](in []A, convert func(*A) B) []B {
	out := make([]B, len(in))
	for i := range in {
		out[i] = convert(&in[i])
	}
	return out
}

// list is a list that is not nil.
func list[T any](in []T) []T {
	if in == nil {
		return []T{}
	}
	return in
}
