package gatekeeper

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/gatekeeper/lease"
	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// saved is the log's records by what they need to be restored after.
type saved struct {
	mirrors, blades, nodes, exports, windows, regions []log.Record
	calls                                             []savedCall // of either kind
	exact, recoveries                                 []log.Record
	fleet                                             *log.Record // nil for none
}

// restore makes a new controller know what is on the log. What other inputs would
// have followed from those on it, follows now: nodes that were being removed are.
func (c *controller) restore(l *log.Log) error {
	c.now = time.Now()
	var s saved
	for r, err := range l.Records() {
		if err == nil {
			err = c.sort(&s, r)
		}
		if err != nil {
			return err
		}
	}
	steps := []struct {
		records []log.Record
		restore func(*log.Record) error
	}{{s.mirrors, c.restoreMirror}, {s.blades, c.restoreBlade}, {s.nodes, c.restoreNode}, {s.exports, c.restoreExport},
		{s.windows, c.restoreWindow}, {s.regions, c.restoreRegion}}
	for i, step := range steps {
		for k := range step.records {
			if err := step.restore(&step.records[k]); err != nil {
				return err
			}
		}
		switch i {
		case 1:
			c.restoreMirrors()
			c.restoreLost()
		case 3:
			c.restoreRoutes()
		}
	}
	if err := c.loadCores(&s); err != nil {
		return err
	}
	c.endedOrigins()
	c.restoreCalls(s.calls)
	c.restoreGone(&s)
	c.keepRack()
	c.resuming.cores = true
	return c.restoreFleet(s.fleet)
}

// sort puts a record with its like.
func (c *controller) sort(s *saved, r log.Record) error {
	switch r.Kind {
	case log.KindOwner:
		return c.restoreOwner(&r)
	case log.KindRack:
		if r.ID == fleetID {
			s.fleet = &r
			return nil
		}
		return c.restoreRack(&r)
	case log.KindMirror:
		s.mirrors = append(s.mirrors, r)
	case log.KindBlade:
		s.blades = append(s.blades, r)
	case log.KindNode:
		s.nodes = append(s.nodes, r)
	case log.KindExport:
		s.exports = append(s.exports, r)
	case log.KindWindow, log.KindAllocs:
		s.windows = append(s.windows, r)
	case log.KindRegion:
		s.regions = append(s.regions, r)
	case log.KindCheckpoint, log.KindState, log.KindSession, log.KindCut:
		s.exact = append(s.exact, r)
	case log.KindRecovery:
		s.recoveries = append(s.recoveries, r)
	case log.KindCall, log.KindReply:
		k, err := readCall(&r)
		if err != nil {
			return err
		}
		if k.exact {
			s.exact = append(s.exact, r)
			if r.Kind == log.KindReply {
				return nil
			}
		}
		s.calls = append(s.calls, k)
	}
	return nil
}

// restoreRack also makes sure that the switch and the daemons see a later
// Gatekeeper than the one before.
func (c *controller) restoreRack(r *log.Record) error {
	var rack rackRecord
	if err := data(r, &rack); err != nil {
		return err
	}
	c.lastNode, c.began, c.run = rack.LastNode, rack.Began, rack.Run+1
	if e := rack.Election; !e.Less(c.cfg.Election) {
		if e.Low++; e.Low == 0 {
			e.High++
		}
		c.cfg.Election = e
	}
	return nil
}

// logFirst logs what restore has written down, the election id among it, before the
// switch sees that id: a successor whose clock is behind has to find it on the log, or
// the switch would refuse the successor for ever. A log without room gets it when there
// is some again.
func (c *controller) logFirst(l *log.Log) error {
	b := c.out.batch
	err := l.Append(context.Background(), &b)
	if errors.Is(err, log.ErrFull) {
		return nil
	}
	c.out.batch = log.Batch{}
	return err
}

// restoreBlade brings a blade back with its port. If it has failed meanwhile, its
// silence will tell.
func (c *controller) restoreBlade(r *log.Record) error {
	var s bladeRecord
	if err := data(r, &s); err != nil {
		return err
	}
	mac, err := frame.ParseMAC(s.MAC)
	if err != nil {
		return corrupt(r, "%v", err)
	}
	b := newBlade()
	b.hello, b.address, b.heard, b.missed, b.reserved, b.begin, b.anew, b.at = s.Hello, bladeAddress(s.Port), c.now, s.Missed, s.Reserved, s.Begin, s.Anew, place{s.Port, s.MAC}
	c.blades[s.Hello.Blade] = b
	if b.memory() {
		b.mirror = c.mirrorFor(&b.hello)
	}
	if !s.Alive {
		return nil
	}
	p := c.newPort(s.Port)
	p.mac, p.ready, p.blade, b.port = mac, true, b, p
	p.remote = netip.AddrPortFrom(b.address, rackaddr.PortControl)
	if b.memory() && b.holds() {
		c.serveMemory(b)
		c.resuming.blades = append(c.resuming.blades, b)
	}
	c.base.want(hopEntry(hopOf(p.num), p.num, p.mac, c.cfg.MAC))
	c.bladeRules(b)
	return nil
}

// restoreNode brings a node back with its exports.
func (c *controller) restoreNode(r *log.Record) error {
	var s nodeRecord
	if err := data(r, &s); err != nil {
		return err
	}
	b := c.blades[s.Blade]
	if b == nil || !b.alive() && !s.Gone {
		return corrupt(r, "node %s is on blade %q, which is not in service", r.Callee.Address, s.Blade)
	}
	n := &node{
		name: s.Name, address: r.Callee.Address, incarnation: r.Callee.Incarnation, token: s.Token, blade: b, joined: true, gone: s.Gone,
		instance: s.Instance, ledger: s.Ledger, writes: true, // as far as we know
		exports: map[netip.Addr]*exported{}, sessions: map[uint64]*session{}, calls: map[*call]struct{}{},
	}
	c.leases.AddNode(n.address)
	if n.gone {
		c.fallen[n.address] = n
		return nil
	}
	b.joins[n.token], b.nodes[n.address], c.nodes[n.address] = n, n, n
	c.base.want(identityEntry(b.port.num, host(n.address), false))
	c.base.want(l3Entry(host(n.address), hopOf(b.port.num)))
	return nil
}

func (c *controller) restoreExport(r *log.Record) error {
	var e exportRecord
	if err := data(r, &e); err != nil {
		return err
	}
	n := c.nodeOrFallen(r.Callee.Address)
	if n == nil {
		return corrupt(r, "there is no node %s", r.Callee.Address)
	}
	request := control.Export{Node: n.address, Incarnation: n.incarnation, Service: e.Service, Methods: e.Methods, Stateful: e.Stateful, IDL: e.IDL}
	methods, err := checkMethods(&request)
	if err != nil {
		return corrupt(r, "%v", err)
	}
	s := c.services[rackaddr.Service(e.Service)]
	if s == nil || !e.Away { // one that is away may be where another one is, for a while
		if s, err = c.serviceFor(n, &request); err != nil {
			return corrupt(r, "%v", err)
		}
	}
	x := &exported{node: n, methods: methods, stateful: e.Stateful, order: e.Order, away: e.Away || n.gone, moves: e.Moves, idl: e.IDL, resting: e.NotServing}
	n.exports[s.address] = x
	s.exports = append(s.exports, x)
	c.lastExport = max(c.lastExport, e.Order)
	return nil
}

// restoreRoutes gives the services the routes that they had: those follow from
// the order in which the exports came.
func (c *controller) restoreRoutes() {
	for _, s := range c.services {
		slices.SortFunc(s.exports, func(a, b *exported) int { return cmp.Compare(a.order, b.order) })
		c.reroute(s)
	}
}

// restoreWindow brings a session's floor or a window of allocations back.
func (c *controller) restoreWindow(r *log.Record) error {
	n := c.nodes[r.Caller.Address]
	if n == nil || n.incarnation != r.Caller.Incarnation {
		c.drop(r.Kind, r.ID)
		return nil
	}
	if r.Kind == log.KindWindow {
		id := binary.BigEndian.Uint64(r.ID[:])
		n.sessions[id] = &session{id: id, floor: r.Order}
		return nil
	}
	if len(r.Data)%8 != 0 {
		return corrupt(r, "%d bytes", len(r.Data))
	}
	a := &allocs{floor: r.Order, above: map[uint64]struct{}{}}
	for b := r.Data; len(b) > 0; b = b[8:] {
		a.above[binary.BigEndian.Uint64(b)] = struct{}{}
	}
	if n.allocs == nil {
		n.allocs = map[allocKey]*allocs{}
	}
	n.allocs[allocKey(r.ID[0])] = a
	return nil
}

// restoreRegion gives a region back to whom it belonged, or to its memory blade.
func (c *controller) restoreRegion(r *log.Record) error {
	if len(r.Data) < 2 || r.Data[1] > regionLost {
		return corrupt(r, "% x", r.Data)
	}
	region := packet.Region{Base: packet.FromAddr(netip.AddrFrom16(r.ID)), Class: r.Data[0]}
	holder, allocation := r.Data[2:], []byte(nil)
	if len(holder) >= originSize {
		holder, allocation = holder[:len(holder)-originSize], holder[len(holder)-originSize:]
		c.origins.note(parseOrigin(allocation), region)
	}
	if len(holder) != 0 && len(holder) != 16 {
		return corrupt(r, "% x", r.Data)
	}
	if r.Data[1] == regionLost {
		if len(allocation) == 0 {
			return corrupt(r, "% x", r.Data)
		}
		c.origins.lost[region.Base] = true
		return nil
	}
	if r.Data[1] == regionReclaimed {
		if !c.owe(region, control.RegionID{Offset: region.Base.Offset(), Class: region.Class}) {
			c.drop(r.Kind, r.ID)
		}
		return nil
	}
	if a := r.Caller.Address; a.IsValid() {
		c.leases.AddNode(a)
	}
	v := lease.Region{Region: region, Owner: r.Callee.Address, Controller: r.Caller.Address, Freeing: r.Data[1] == regionFreeing}
	if !c.leases.Adopt(v) {
		return corrupt(r, "another region is there")
	}
	if len(holder) > 0 {
		c.holdings.hold(region, rpc.ID(holder))
	}
	if v.Freeing && r.Order != 0 {
		c.frees[region.Base] = freeing{request: r.Order, incarnation: r.Caller.Incarnation, execution: r.Parent}
	}
	if v.Freeing && !r.Parent.IsZero() {
		c.deferFree(r.Parent, region) // at the latest: it was answered, or is rolled back
	}
	return nil
}

// restoreGone does what follows from the absence of nodes that regions and calls
// still speak of: they were being removed.
func (c *controller) restoreGone(s *saved) {
	gone := map[netip.Addr]bool{}
	note := func(a netip.Addr) {
		if a.IsValid() && c.nodes[a] == nil && c.fallen[a] == nil {
			gone[a] = true
		}
	}
	for _, r := range s.regions {
		note(r.Caller.Address)
	}
	for _, k := range s.calls {
		note(k.caller.Address)
		note(k.callee.Address)
	}
	for _, a := range slices.SortedFunc(maps.Keys(gone), netip.Addr.Compare) {
		c.steps(c.leases.RemoveNode(a)) // it was fenced before
	}
	c.steps(c.leases.Sweep())
}
