package gatekeeper

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/mains"
	"github.com/bifrost-rack/bifrost/gatekeeper/recovery"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
)

// saved is the log's records by what they need to be restored after.
type saved struct {
	mirrors, blades, nodes, exports, reclaims []wal.Record
	mains, recoveries, batches, leases        []wal.Record
	fleet                                     *wal.Record // nil for none
}

// restore makes a new controller know what is on the log. What other inputs would
// have followed from those on it, follows now: nodes that were being removed are.
func (c *controller) restore(l *wal.Log) error {
	c.now = time.Now()
	if err := checkFormat(l); err != nil {
		return err
	}
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
		records []wal.Record
		restore func(*wal.Record) error
	}{{s.mirrors, c.restoreMirror}, {s.blades, c.restoreBlade}, {s.nodes, c.restoreNode}, {s.exports, c.restoreExport},
		{s.reclaims, c.restoreReclaim}, {s.batches, c.restoreBatch}, {s.leases, func(r *wal.Record) error { return c.leases.restore(r, &c.population) }}}
	for i, step := range steps {
		for k := range step.records {
			if err := step.restore(&step.records[k]); err != nil {
				return err
			}
		}
		switch i {
		case 1:
			c.restoreMirrors()
		case 3:
			for _, s := range c.services { // the order in which the exports came says which routes there were
				slices.SortFunc(s.exports, func(a, b *exported) int { return cmp.Compare(a.order, b.order) })
				c.reroute(s)
			}
		}
	}
	if err := c.loadCores(&s); err != nil {
		return err
	}
	c.keepRack()
	c.resuming.cores = true
	return c.restoreFleet(s.fleet)
}

// sort puts a record with its like.
func (c *controller) sort(s *saved, r wal.Record) error {
	switch r.Kind {
	case wal.KindOwner:
		return c.owners.restore(&r)
	case wal.KindRack:
		if r.ID == fleetID {
			s.fleet = &r
			return nil
		}
		return c.restoreRack(&r)
	case wal.KindMirror:
		s.mirrors = append(s.mirrors, r)
	case wal.KindBlade:
		s.blades = append(s.blades, r)
	case wal.KindNode:
		s.nodes = append(s.nodes, r)
	case wal.KindExport:
		s.exports = append(s.exports, r)
	case wal.KindRegion:
		s.reclaims = append(s.reclaims, r)
	case wal.KindMain:
		s.mains = append(s.mains, r)
	case wal.KindBatch:
		s.batches = append(s.batches, r)
	case wal.KindLease:
		s.leases = append(s.leases, r)
	case wal.KindRegisters:
		if c.saved == nil {
			c.saved = &image{}
		}
		return c.saved.restore(&r)
	case wal.KindRecovery:
		s.recoveries = append(s.recoveries, r)
	default: // its kind is no more written
		return corrupt(&r, "a record of kind %d", r.Kind)
	}
	return nil
}

// checkFormat refuses a log that another version wrote, whose records mean something else.
func checkFormat(l *wal.Log) error {
	r, written, err := l.Get(wal.KindRack, wal.ID{})
	if !written || err != nil {
		return err
	}
	var rack rackRecord
	if err := data(&r, &rack); err != nil || rack.Format == logFormat {
		return err
	}
	return fmt.Errorf("the log is %w: it has format %d, this program knows %d. Move it away, which begins a new rack, and deploy again; "+
		"or start the program that wrote it, whose `bifrost apps --json` tells what was deployed", wal.ErrVersion, rack.Format, logFormat)
}

// restoreRack also makes sure that the switch and the daemons see a later
// Gatekeeper than the one before.
func (c *controller) restoreRack(r *wal.Record) error {
	var rack rackRecord
	if err := data(r, &rack); err != nil {
		return err
	}
	if len(rack.Secret) != len(c.secret) {
		return corrupt(r, "a secret of %d bytes", len(rack.Secret))
	}
	c.lastNode, c.lastIncarnation, c.began, c.secret, c.rows.last = rack.LastNode, rack.LastIncarnation, rack.Began, endpoint.Secret(rack.Secret), rack.LastRow
	if e := rack.Election; !e.Less(c.cfg.Election) {
		if e.Low++; e.Low == 0 {
			e.High++
		}
		c.cfg.Election = e
	}
	return nil
}

// rule makes the switch's word on the election id known to the log and to the daemons.
func (c *controller) rule(e control.Election) {
	if e == c.cfg.Election {
		return
	}
	c.cfg.Election = e
	for _, p := range c.ports {
		p.peer.Rule(e)
	}
	c.keepRack()
}

// logFirst logs what restore has written down, the election id among it, before the
// switch sees that id: a successor whose clock is behind finds it on the log. One whose log has lost it takes the id that
// follows the one which the switch names (p4rtclient.Client.Keep). A log without room gets it when there is some again.
func (j *journal) logFirst(l *wal.Log) error {
	b := j.batch
	err := l.Append(context.Background(), &b)
	if errors.Is(err, wal.ErrFull) {
		return nil
	}
	j.batch = wal.Batch{}
	return err
}

// restoreBlade brings a blade back with its port. If it has failed meanwhile, its
// silence will tell.
func (c *controller) restoreBlade(r *wal.Record) error {
	var s bladeRecord
	if err := data(r, &s); err != nil {
		return err
	}
	mac, err := frame.ParseMAC(s.MAC)
	if err != nil {
		return corrupt(r, "%v", err)
	}
	b := newBlade()
	b.hello, b.address, b.heard, b.missed, b.reserved, b.begin, b.floor, b.anew, b.at = s.Hello, bladeAddress(s.Port), c.now, s.Missed, s.Reserved, s.Begin, s.Floor, s.Anew, portAddress{s.Port, s.MAC}
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
	c.want(hopEntry(hopOf(p.num), p.num, p.mac, c.cfg.MAC))
	c.bladeRules(b, c.tcpPeers(b))
	return nil
}

// restoreNode brings a node back with its exports.
func (c *controller) restoreNode(r *wal.Record) error {
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
		instance: s.Instance, ledger: s.Ledger, orderly: s.Orderly, owes: s.Owes, exited: s.Exited, first: s.First, before: s.Before, afterExit: s.AfterExit, user: s.User, blocks: s.Blocks, row: s.Row, going: s.Going, unheard: s.Unheard,
		exports: map[netip.Addr]*exported{},
		named:   c.now, bound: c.now, // perhaps
	}
	c.charge(n)
	for _, block := range n.blocks {
		c.blocks.has(n.address, block)
	}
	if n.rights() {
		c.rows.give(n)
		c.wantBlocks(n)
	}
	if n.gone {
		c.fallen[n.address] = n
		if n.rights() {
			c.want(nodeRoute(n))
		}
		return nil
	}
	b.joins[n.token], b.nodes[n.address], c.nodes[n.address] = n, n, n
	c.want(nodeIdentity(b.port.num, n))
	c.want(nodeRoute(n))
	return nil
}

func (c *controller) restoreExport(r *wal.Record) error {
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
		if s, err = c.services.entry(n, &request); err != nil {
			return corrupt(r, "%v", err)
		}
	}
	x := &exported{node: n, service: s, methods: methods, stateful: e.Stateful, order: e.Order, away: e.Away || n.gone, moves: e.Moves, idl: e.IDL, resting: e.NotServing}
	n.exports[s.address] = x
	s.exports = append(s.exports, x)
	c.lastExport = max(c.lastExport, e.Order)
	return nil
}

// restoreReclaim has a region reclaimed that a memory blade may still have, though nobody has it.
func (c *controller) restoreReclaim(r *wal.Record) error {
	if len(r.Data) != 1 {
		return corrupt(r, "% x", r.Data)
	}
	if !c.owe(dsmpacket.Region{Base: dsmpacket.FromAddr(netip.AddrFrom16(r.ID)), Class: r.Data[0]}) {
		c.drop(r.Kind, r.ID)
	}
	return nil
}

// loadCores makes the Table of durable mains and the recovery Machine what they were.
// Memory blades are restored by then, nodes too.
func (c *controller) loadCores(s *saved) (err error) {
	if c.mains, err = mains.Load(all(s.mains)); err != nil {
		return err
	}
	if c.recoveries, err = recovery.Load(all(s.recoveries)); err != nil {
		return err
	}
	for _, b := range c.servers {
		c.recoveries.AddServer(b.server()) // Resume tells them what there is to fence
	}
	return nil
}

func all(records []wal.Record) iter.Seq2[wal.Record, error] {
	return func(yield func(wal.Record, error) bool) {
		for _, r := range records {
			if !yield(r, nil) {
				return
			}
		}
	}
}

// resumeCores goes on with what a Gatekeeper that was killed may not have got done. It needs the switch.
func (c *controller) resumeCores() {
	c.recover(c.recoveries.Resume())
	var known []recovery.Failure
	for _, v := range c.recoveries.Recoveries() {
		known = append(known, v.Failure)
	}
	for _, n := range c.sortedFallen() {
		if !slices.ContainsFunc(known, func(f recovery.Failure) bool { return f.Node.Address == n.address }) {
			c.recover(c.recoveries.Fail(c.now, recovery.Failure{Node: n.logged(), Gone: n.going || !c.goesOn(n), Cause: n.why}))
		}
	}
	c.giveUpFallen()
	for _, b := range c.sortedBlades() {
		for _, n := range b.sortedNodes() {
			c.recover(c.recoveries.Joined(n.logged()))
		}
	}
}

// What people have asked of the rack outlives the Gatekeeper: deployments, and
// blades that are drained or marked failed. Blades and nodes as such have records
// of their own.

// fleetID tells the registry's record from the rack's own, whose id is zero.
var fleetID = wal.NameID("fleet")

// keepFleet writes the registry down if it has changed and holds more than the
// records of blades and nodes do.
func (c *controller) keepFleet() {
	if !c.on || c.fleetKept == c.fleet.Version() {
		return
	}
	c.fleetKept = c.fleet.Version()
	if c.fleet.Plain() {
		c.drop(wal.KindRack, fleetID)
		return
	}
	data, err := c.fleet.Save()
	if err != nil {
		panic(err) // plain structures only
	}
	c.put(wal.Record{Kind: wal.KindRack, ID: fleetID, Data: data})
}

// restoreFleet brings the registry back, once blades and nodes are, and goes on
// with what it had not got done.
func (c *controller) restoreFleet(r *wal.Record) error {
	if r == nil {
		return nil
	}
	fleet, err := resources.Load(fleetConfig(), &c.population, r.Data, c.now)
	if err != nil {
		return corrupt(r, "%v", err)
	}
	c.fleet = fleet
	for _, b := range fleet.Blades() {
		if known := c.blades[b.Name]; known == nil || !known.alive() {
			c.act(fleet.Lost(b.Name, "out of service after a restart of the Gatekeeper", c.now))
		}
	}
	for _, n := range fleet.Nodes("") {
		if c.nodes[n.Address] == nil && c.fallen[n.Address] == nil {
			c.act(fleet.Leave(n.Address, n.Incarnation, true, "gone after a restart of the Gatekeeper", c.now))
			c.act(fleet.Ended(n.Address, n.Incarnation, false, c.now))
		}
	}
	c.act(fleet.Resume(c.now))
	return nil
}

// logged waits until all that has been handled by now is on the log, if there
// is one.
func (g *Gatekeeper) logged(ctx context.Context) error {
	for taken := g.cfg.Store == nil; !taken; {
		// A turn has handed on what was handled before, unless the log was busy.
		if err := g.do(ctx, func() { taken = g.outbox.tail.batch.Len() == 0 }); err != nil {
			return err
		}
		var last wal.Batch
		last.Delete(wal.KindRack, wal.NameID("nothing")) // batches are logged in order
		if err := g.cfg.Store.Append(ctx, &last); err != nil {
			return err
		}
	}
	return nil
}

// resumption is what a Gatekeeper has to do when it has begun with a log, once
// the switch is as it should be.
type resumption struct {
	blades []*blade // memory blades to be asked for what they have
	// mirrors are the machines whose copies are to be told what they are.
	mirrors []*mirror
	cores   bool // what is left to do of recoveries
}

// due reports whether there is something left.
func (r *resumption) due() bool { return len(r.blades)+len(r.mirrors) > 0 || r.cores }

// resume does what is left.
func (c *controller) resume() {
	if !c.connected {
		return
	}
	if c.resuming.cores {
		c.resuming.cores = false
		c.resumeCores()
		c.evict()
	}
	for _, m := range c.resuming.mirrors {
		c.resumeMirror(m)
	}
	c.resuming.mirrors = nil
	for _, b := range c.resuming.blades {
		if b.alive() {
			c.grantAll(b)
			c.reclaimMore(b)
			c.reconcileLedgers(b)
		}
	}
	c.resuming.blades = nil
}

// corrupt says which record makes no sense.
func corrupt(r *wal.Record, format string, args ...any) error {
	return wal.Refuse(fmt.Errorf("the log is %w: record %d, %s: %s", wal.ErrCorrupt, r.Sequence, r.Key(), fmt.Sprintf(format, args...)))
}

// data reads a record's JSON.
func data(r *wal.Record, v any) error {
	if err := json.Unmarshal(r.Data, v); err != nil {
		return corrupt(r, "%v", err)
	}
	return nil
}
