package admintest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/trace"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/duration"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Sizes of a Large.
const (
	LargeServices = 100
	LargeCallers  = 1000
	computeBlades = 60
	memoryBlades  = 8
	servers       = 2 // nodes of each service
)

// Large is a Gatekeeper that only tells what a rack of 100 services, 1,000 callers and 68 blades would: what it tells is the same each time.
type Large struct {
	Stopped
	now      func() time.Time
	overview gatekeeper.Overview
	Client   netip.Addr   // one of the callers
	Rerun    rpcpacket.ID // a call that was run again after a failure, and has made others
	mu       sync.Mutex   // guards what follows
	random   *rand.Rand   // the same numbers each time
	calls    *trace.Recorder
	made     uint64
	subs     []chan gatekeeper.Event
	seq      uint64
	asked    []string     // what somebody has asked it to do
	open     rpcpacket.ID // a call that is under way
	leave    bool         // that is what becomes of the next one
}

var domains = []string{"Orders", "Carts", "Payments", "Stock", "Users", "Search", "Mail", "Pricing", "Fraud", "Reports"}
var layers = []string{"Front", "Rules", "Store", "Index", "Queue", "Audit", "Cache", "Sync", "Export", "Jobs"}

// calls of each service, as indexes of layers: the domain's own, and the first of others.
var below = map[string][]string{
	"Front": {"Rules", "Store", "Cache"}, "Rules": {"Store"}, "Store": {"Index", "Audit"}, "Queue": {"Jobs"}, "Jobs": {"Store", "Export"}, "Sync": {"Store"}, "Export": {"Audit"},
}

// NewLarge makes one, with 8,192 calls in the five minutes before now. Make adds further ones.
func NewLarge(now time.Time) *Large {
	l := &Large{now: func() time.Time { return now }, random: rand.New(rand.NewPCG(7, 39)), calls: trace.New(trace.DefaultCalls, nil)} //nolint:gosec // the same each time
	l.build(now)
	for i := range 2400 {
		l.leave = i == 2399
		l.call(now.Add(-5*time.Minute + time.Duration(i)*125*time.Millisecond))
	}
	return l
}

func (l *Large) build(now time.Time) {
	o := &l.overview
	o.Time, o.Switch, o.RegionCount = now, true, 5000
	for i := range computeBlades {
		b := gatekeeper.BladeState{Name: fmt.Sprintf("c%d", i+1), Kind: "compute", Status: gatekeeper.StatusInUse, Address: rackaddr.Blade(uint64(i + 1)), Port: uint16(i + 1), MAC: "02:00:00:00:00:01", Capacity: 64} //nolint:gosec // few
		switch i {
		case 16:
			b.Status, b.Cause, b.Port = gatekeeper.StatusFailed, "no heartbeat for 3s", 0
		case 40:
			b.Status, b.Cause = gatekeeper.StatusDraining, "new fans"
		}
		o.Blades = append(o.Blades, b)
	}
	for i := range memoryBlades {
		o.Blades = append(o.Blades, gatekeeper.BladeState{Name: fmt.Sprintf("m%d", i+1), Kind: "memory", Status: gatekeeper.StatusInUse, Address: rackaddr.Blade(uint64(100 + i)), Port: uint16(100 + i), MAC: "02:00:00:00:00:02", Machine: uint8(i/2 + 1), Capacity: 64 << 30, Used: uint64(i+3) << 32}) //nolint:gosec // few
		if i%2 == 1 {
			o.Machines = append(o.Machines, gatekeeper.MachineState{Machine: uint8(i/2 + 1), Blades: []string{fmt.Sprintf("m%d", i), fmt.Sprintf("m%d", i+1)}, Copies: []string{fmt.Sprintf("m%d", i), fmt.Sprintf("m%d", i+1)}, InService: 2, Capacity: 64 << 30, Used: uint64(i+3) << 32}) //nolint:gosec // few
		}
	}
	address := uint64(0)
	node := func(name, service string) netip.Addr {
		address++
		n := gatekeeper.NodeState{Address: rackaddr.Node(address), Name: name, Blade: o.Blades[int(address)%16].Name, Incarnation: 1} //nolint:gosec // few
		if address > servers*LargeServices {
			n.Blade = o.Blades[17+int(address)%(computeBlades-17)].Name //nolint:gosec // few
		}
		if service != "" {
			n.Services, n.States, n.MaxStates = []string{service}, address<<17+1<<20, 32<<20
		}
		o.Nodes = append(o.Nodes, n)
		return n.Address
	}
	for _, d := range domains {
		for _, layer := range layers {
			v := gatekeeper.ServiceState{Name: d + layer, Address: rackaddr.Service(d + layer)}
			var routes []gatekeeper.RouteState
			for i := range servers {
				routes = append(routes, gatekeeper.RouteState{Spread: uint8(128 * i), Bits: 1, Node: node(fmt.Sprintf("%s/%s/%d", d, layer, i+1), v.Name)}) //nolint:gosec // few
			}
			for _, m := range []string{"get", "list", "put"} {
				v.Methods = append(v.Methods, gatekeeper.MethodState{Name: m, Routes: routes})
			}
			o.Services = append(o.Services, v)
		}
	}
	for i := range LargeCallers {
		l.Client = node(fmt.Sprintf("shop/visitor/%d", i+1), "")
	}
	for i := range 200 {
		o.Denied = append(o.Denied, gatekeeper.Denial{Time: now.Add(duration.Times(int64(i-200), time.Second)), Port: 3, Node: rackaddr.Node(uint64(i + 1)), Op: "write", Pointer: fmt.Sprintf("0:0:1001:0:0:%x::", i+1)}) //nolint:gosec // few
	}
}

// nodesOf are the nodes of a service, by its place in domains and layers.
func nodesOf(service int) (first uint64) { return uint64(servers*service + 1) } //nolint:gosec // few

// call makes a tree of calls, which are over but for a few. The caller holds the lock, or has the Large for itself.
func (l *Large) call(at time.Time) {
	d := l.random.IntN(len(domains))
	d = min(d, l.random.IntN(len(domains)))                                                  // some domains are busier
	client := rackaddr.Node(uint64(servers*LargeServices + 1 + l.random.IntN(LargeCallers))) //nolint:gosec // few
	l.nest(at, rpcpacket.ID{}, client, d, "Front", 0)
}

func (l *Large) nest(at time.Time, parent rpcpacket.ID, caller netip.Addr, domain int, layer string, depth int) (end time.Time) {
	l.made++
	id := rpcpacket.ID{0xca, 0x11, byte(l.made >> 40), byte(l.made >> 32), byte(l.made >> 24), byte(l.made >> 16), byte(l.made >> 8), byte(l.made), byte(l.random.Uint32()), 15: byte(l.made)}
	service, index := domains[domain]+layer, slices.Index(layers, layer)
	callee := trace.Node{Address: rackaddr.Node(nodesOf(len(layers)*domain+index) + uint64(l.random.IntN(servers))), Incarnation: 1} //nolint:gosec // few
	blade := l.overview.Nodes[callee.Address.As16()[15]-1].Blade
	details := trace.Details{Arguments: uint64(80 + l.random.IntN(900)), Headers: []control.Header{ //nolint:gosec // not negative
		{Name: "traceparent", Value: fmt.Sprintf("00-%032x-%016x-01", l.made/7, l.made)}, {Name: "tenant", Value: "blue"},
	}}
	step := func(at time.Time, kind trace.Kind, attempt uint16, code fault.Code) {
		e := &trace.Event{Call: id, Code: code, Step: trace.Step{Time: at, Kind: kind, Node: callee, Blade: blade, Attempt: attempt}, Details: details, About: trace.About{
			Parent: parent, Caller: trace.Node{Address: caller, Incarnation: 1}, Callee: callee, Service: service, Method: []string{"get", "list", "put"}[l.random.IntN(3)], Policy: rpcpacket.PolicyRecover,
		}}
		if kind == trace.Replayed {
			e.Why = "it has ended: exit status 3"
		}
		l.calls.Note(e)
	}
	step(at, trace.Sent, 0, fault.OK)
	at = at.Add(duration.Times(int64(20+l.random.IntN(60)), time.Microsecond))
	step(at, trace.Delivered, 0, fault.OK)
	lot := l.random.IntN(1000)
	attempt := uint16(0)
	if lot < 4 {
		attempt = 1
		at = at.Add(80 * time.Millisecond)
		step(at, trace.Replayed, attempt, fault.OK)
	}
	made := l.made
	for _, next := range below[layer] {
		if l.random.IntN(3) > 0 {
			at = l.nest(at.Add(100*time.Microsecond), id, callee.Address, domain, next, depth+1)
		}
	}
	if layer == "Front" && l.random.IntN(8) == 0 && depth < 2 {
		at = l.nest(at, id, callee.Address, l.random.IntN(len(domains)), "Rules", depth+1)
	}
	at = at.Add(time.Duration(l.random.ExpFloat64() * float64(900*time.Microsecond)))
	if attempt > 0 && depth == 0 && l.made > made {
		l.Rerun = id
	}
	code := fault.OK
	switch {
	case lot >= 990:
		code, details.Text = fault.Unavailable, "the node is closing"
	case lot >= 960, attempt > 0 && depth == 0:
		code, details.Exception, details.Text = fault.Declared, "OutOfStock", `OutOfStock({Item:A-17 Left:0})`
	case depth == 0 && (lot == 500 || l.leave):
		l.open = id
		return at
	}
	details.Answer = uint64(40 + l.random.IntN(4000)) //nolint:gosec // not negative
	step(at, trace.Replied, attempt, fault.OK)
	at = at.Add(30 * time.Microsecond)
	step(at, trace.Answered, attempt, code)
	return at
}

// Make makes so many calls at least, as of now, and tells events of them.
func (l *Large) Make(now time.Time, calls int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = func() time.Time { return now }
	l.leave = false
	for until := l.made + uint64(calls); l.made < until; { //nolint:gosec // few
		l.call(now.Add(-time.Millisecond))
	}
	for range calls {
		l.seq++
		e := gatekeeper.Event{Seq: l.seq, Time: now, Kind: gatekeeper.CallRefused, Node: l.Client, Peer: rackaddr.Node(1 + l.seq%200), Service: "OrdersFront", Method: "put", Call: fmt.Sprintf("%032x", l.seq)}
		if l.seq%50 == 0 {
			e = gatekeeper.Event{Seq: l.seq, Time: now, Kind: gatekeeper.ProgramFailed, Blade: "c17", Name: "Stock/Store/2", Message: "it has ended: exit status 3"}
		}
		l.publish(e)
	}
}

// Tell tells an event.
func (l *Large) Tell(e gatekeeper.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	e.Seq = l.seq
	l.publish(e)
}

func (l *Large) publish(e gatekeeper.Event) {
	for _, s := range l.subs {
		select {
		case s <- e:
		default:
		}
	}
}

// Subscribe tells of what Make does.
func (l *Large) Subscribe(ctx context.Context) <-chan gatekeeper.Event {
	c := make(chan gatekeeper.Event, 4096)
	l.mu.Lock()
	l.subs = append(l.subs, c)
	l.mu.Unlock()
	context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.subs = nil
		close(c)
	})
	return c
}

// Connected is a part of admin.Backend.
func (l *Large) Connected(context.Context) (bool, error) { return true, nil }

// Overview is a part of admin.Backend.
func (l *Large) Overview(context.Context) (gatekeeper.Overview, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.overview
	o.Time, o.CallsUnderWay = l.now(), 1000
	o.Counters.Held, o.Counters.Denied = l.made, 200
	return o, nil
}

// Timelines is a part of admin.Backend.
func (l *Large) Timelines(_ context.Context, q trace.Query) ([]trace.Call, uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	page, next := l.calls.Recent(q, trace.DefaultCalls+1)
	return page, next, nil
}

// Timeline is a part of admin.Backend.
func (l *Large) Timeline(_ context.Context, id rpcpacket.ID, limit int) ([]trace.Leaf, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	tree, more := l.calls.Tree(id, limit)
	return tree, more, nil
}

// Edges is a part of admin.Backend.
func (l *Large) Edges(_ context.Context, since time.Time) (map[trace.Edge]trace.Tally, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[trace.Edge]trace.Tally{}
	l.calls.Count(all, since, 0, trace.DefaultCalls+1)
	return all, nil
}

// Methods is a part of admin.Backend.
func (l *Large) Methods(context.Context) ([]trace.Method, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls.Methods(), nil
}

// TakeEnded is a part of history.Source, and so is Totals.
func (l *Large) TakeEnded(context.Context) ([]trace.Call, uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	calls, missed := l.calls.TakeEnded()
	return calls, missed, nil
}

// Totals is a part of history.Source.
func (l *Large) Totals(context.Context) (trace.Totals, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls.Totals(), nil
}

// Regions is a part of admin.Backend.
func (l *Large) Regions(_ context.Context, q gatekeeper.RegionQuery) (page gatekeeper.RegionPage, err error) {
	for i := range min(q.Limit, 200) {
		page.Regions = append(page.Regions, gatekeeper.RegionState{Region: fmt.Sprintf("0:0:1001:0:0:%x::/112", i+1), Size: 65536, Owner: l.Client, Controller: l.Client, Leases: []gatekeeper.LeaseState{{Call: fmt.Sprintf("%032x", i), Node: rackaddr.Node(uint64(i + 1))}}}) //nolint:gosec // few
	}
	if all := page.Regions; len(all) > 1 {
		all[1].Controller, all[1].Leases, all[1].Frozen = netip.Addr{}, nil, true
	}
	page.More = q.After.IsNil()
	return page, nil
}

// Calls is a part of admin.Backend.
func (l *Large) Calls(_ context.Context, q gatekeeper.CallQuery) (page []gatekeeper.CallState, next gatekeeper.CallCursor, err error) {
	for i := range min(q.Limit, 1000) {
		page = append(page, gatekeeper.CallState{Call: fmt.Sprintf("%032x", i+1), Caller: l.Client, Callee: rackaddr.Node(uint64(i%200 + 1)), Service: "OrdersFront", Method: "put", B1: l.now()}) //nolint:gosec // few
	}
	return page, next, nil
}

// Policies is a part of admin.Backend.
func (l *Large) Policies(context.Context) (all []resources.MethodPolicy, err error) {
	for i := range l.overview.Services {
		v := &l.overview.Services[i]
		for _, m := range v.Methods {
			all = append(all, resources.MethodPolicy{Service: v.Name, Method: m.Name, Policy: rpcpacket.PolicyRecover, Origin: resources.Default, FailuresOrigin: resources.Default})
		}
	}
	return all, nil
}

// Deployments is a part of admin.Backend.
func (l *Large) Deployments(context.Context) (all []resources.Deployment, err error) {
	for _, name := range domains {
		d := resources.Deployment{Spec: resources.Spec{Name: name}, Rollout: resources.Rollout{Revision: 3, Former: 2, Done: true, Ready: 20, Nodes: 20, Since: l.now().Add(-time.Hour)}}
		for j, layer := range layers {
			d.Spec.Programs = append(d.Spec.Programs, resources.Program{Name: layer, Nodes: servers, Args: []string{"shop"}})
			for k := range servers {
				i := resources.Instance{Name: fmt.Sprintf("%s/%s/%d", name, layer, k+1), App: name, Program: layer, Number: k + 1, Status: resources.Running, Blade: fmt.Sprintf("c%d", j+1), Settled: true}
				if name == "Stock" && layer == "Store" && k == 1 {
					i.Status, i.Settled, i.Failures, i.Failure, i.Failed = resources.Waiting, false, 3, "it has ended: exit status 3", l.now()
				}
				d.Instances = append(d.Instances, i)
			}
		}
		all = append(all, d)
	}
	return all, nil
}

// FailureDomain is a part of admin.Backend.
func (l *Large) FailureDomain(context.Context, string) (gatekeeper.FailureDomain, error) {
	return gatekeeper.FailureDomain{}, nil
}

// Asked is what somebody has asked it to do.
func (l *Large) Asked() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.asked)
}

// Open is a call that is under way.
func (l *Large) Open() rpcpacket.ID {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// Restart notes that it was asked for.
func (l *Large) Restart(_ context.Context, app string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, "restart "+app)
	return nil
}

// Rollback notes that it was asked for.
func (l *Large) Rollback(_ context.Context, app string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, "rollback "+app)
	return nil
}

// Drain notes that it was asked for.
func (l *Large) Drain(_ context.Context, blade, cause string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, "drain "+blade+": "+cause)
	l.overview.Blades = slices.Clone(l.overview.Blades) // others read the former
	for i := range l.overview.Blades {
		if b := &l.overview.Blades[i]; b.Name == blade {
			b.Status, b.Cause = gatekeeper.StatusDraining, cause
		}
	}
	return nil
}

// CancelCall notes that it was asked for.
func (l *Large) CancelCall(_ context.Context, id rpcpacket.ID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, "cancel "+id.String())
	return nil
}

// Slots is a part of admin.Backend: a standing lease.
func (l *Large) Slots(context.Context, gatekeeper.SlotQuery) (gatekeeper.SlotPage, error) {
	return gatekeeper.SlotPage{Slots: []gatekeeper.SlotState{l.lease()}}, nil
}

func (l *Large) lease() gatekeeper.SlotState {
	return gatekeeper.SlotState{
		Slot: 1032192, Number: rpcpacket.NumberOf(3, 2), Caller: l.Client, Callee: rackaddr.Node(1), Regions: []string{"0:0:1001:0:0:1::"}, Standing: true, Step: "granted", Since: l.overview.Time,
	}
}

// FreeRegion notes that it was asked for.
func (l *Large) FreeRegion(_ context.Context, p dsmpacket.Pointer) (gatekeeper.RegionState, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, fmt.Sprintf("free %s", p))
	return gatekeeper.RegionState{Region: p.String() + "/112", Size: 1 << 16, Owner: l.Client, Frozen: true}, nil
}

// CancelSlot notes that it was asked for.
func (l *Large) CancelSlot(_ context.Context, slot rpcpacket.Slot) (gatekeeper.SlotState, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, fmt.Sprintf("cancel slot %d", slot))
	return l.lease(), nil
}

// Call is a part of admin.Backend.
func (l *Large) Call(context.Context, rpcpacket.ID) (gatekeeper.CallState, bool, error) {
	return gatekeeper.CallState{}, true, nil
}
