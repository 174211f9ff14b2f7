package gatekeeper

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Standing leases (docs/rights.md, section 4): a node lets another one read regions for longer than a call. Each is a call slot that the
// Gatekeeper opens and ends by its hand. Its record is on the log before that:
//
//	asked ─▶ coming ── lend ──▶ granted ── its owner, an operator, or a node's end ──▶ ending ── fail call ──▶ resting ── a second ──▶ ended
//
// One that has ended is kept until its owner lets go of it, or has ended itself.

// Nodes get the blocks of call slots below nodeBlocks. The others are for standing leases.
const (
	leaseBlocks = 1024
	nodeBlocks  = rpcpacket.Blocks - leaseBlocks
	maxLeases   = leaseBlocks * rpcpacket.BlockSlots
)

type leaseStep uint8

// The steps of a standing lease. The first three are on the log.
const (
	leaseComing  leaseStep = 1
	leaseGranted leaseStep = 2
	leaseEnding  leaseStep = 3
	leaseResting leaseStep = 4 // what had passed by it arrives
	leaseEnded   leaseStep = 5
	leaseRefused leaseStep = 6 // by the switch: it has never been there
)

var leaseSteps = [...]string{leaseComing: "coming", leaseGranted: "granted", leaseEnding: "ending", leaseResting: "resting", leaseEnded: "ended", leaseRefused: "refused"}

// LeaseStates are the states that Overview counts standing leases by.
func LeaseStates() []string { return leaseSteps[leaseComing : leaseEnded+1] }

func (s leaseStep) String() string { return leaseSteps[s] }

// lease is a standing lease.
type lease struct {
	slot    rpcpacket.Slot
	number  rpcpacket.Number
	owner   wal.Node
	id      uint64 // of the owner's
	lessee  netip.Addr
	regions []dsmpacket.RegionID
	step    leaseStep
	since   time.Time
	out     bool      // an operation on it is out
	due     time.Time // when it goes on, if it is among those that wait for a time
	pause   time.Duration
}

// leaseOf tells the leases of a rack apart.
type leaseOf struct {
	owner wal.Node
	id    uint64
}

// leases are the standing leases of a rack. They are pure: what they change is taken by changes, what is to be done in the switch by next.
type leases struct {
	at     map[rpcpacket.Slot]*lease
	of     map[leaseOf]*lease
	held   map[netip.Addr]int // by owners
	search rpcpacket.Slot     // where the search for a free slot goes on
	ready  []*lease           // an operation is to be done for them
	waits  []*lease           // they wait for a time
	dirty  []*lease           // their records are not what they are
	gone   []rpcpacket.Slot   // records to be struck out

	// incarnation takes an incarnation of the rack for the numbers of the slots, 0 if there is none left. row is that of a node.
	incarnation func() uint32
	row         func(netip.Addr) uint16
	now         func() time.Time
	numbers     uint32 // the incarnation that was taken
	counter     uint64
}

func newLeases(incarnation func() uint32, row func(netip.Addr) uint16, now func() time.Time) leases {
	return leases{at: map[rpcpacket.Slot]*lease{}, of: map[leaseOf]*lease{}, held: map[netip.Addr]int{}, incarnation: incarnation, row: row, now: now}
}

// give begins a lease. It fails as NoSpace if there is no slot left.
func (l *leases) give(owner wal.Node, q *control.Share, regions []dsmpacket.RegionID) (*lease, error) {
	x := &lease{owner: owner, id: q.ID, lessee: q.Lessee, regions: regions, step: leaseComing, since: l.now()}
	if x.slot = l.free(); x.slot == 0 {
		return nil, fault.New(fault.NoSpace, "share", "the rack has %d standing leases, its maximum", len(l.at))
	}
	if x.number = l.number(); x.number == 0 {
		return nil, fault.New(fault.NoSpace, "share", "the rack has had all incarnations that it can have: begin a new rack")
	}
	l.add(x)
	l.dirty = append(l.dirty, x)
	l.strike(x)
	return x, nil
}

// add makes a lease known.
func (l *leases) add(x *lease) {
	l.at[x.slot], l.of[leaseOf{x.owner, x.id}] = x, x
	l.held[x.owner.Address]++
}

// free is a slot of no lease, 0 if there is none.
func (l *leases) free() rpcpacket.Slot {
	for range min(maxLeases, len(l.at)+1) {
		s := nodeBlocks*rpcpacket.BlockSlots + l.search%maxLeases
		l.search++
		if l.at[s] == nil {
			return s
		}
	}
	return 0
}

// number is the next number of a slot: above all that were used before.
func (l *leases) number() rpcpacket.Number {
	if l.numbers == 0 || l.counter >= rpcpacket.MaxCount-2 {
		if l.numbers, l.counter = l.incarnation(), 0; l.numbers == 0 {
			return 0
		}
	}
	l.counter += 2
	return rpcpacket.NumberOf(l.numbers, l.counter)
}

// end has a lease end, if it does not yet.
func (l *leases) end(x *lease) {
	if x.step == leaseComing || x.step == leaseGranted {
		x.step = leaseEnding
		l.dirty = append(l.dirty, x)
		l.strike(x)
	}
}

// endOf has leases end that a node's incarnation has given. Nobody hears of them any more.
func (l *leases) endOf(owner wal.Node) {
	for _, x := range l.all() {
		if x.owner == owner {
			l.end(x)
			l.forsake(x)
		}
	}
}

// endWith has the leases end that a node has.
func (l *leases) endWith(lessee netip.Addr) {
	for _, x := range l.all() {
		if x.lessee == lessee {
			l.end(x)
		}
	}
}

// letGo strikes out a lease that is over, since its owner knows that.
func (l *leases) letGo(x *lease) {
	if x.step != leaseEnded && x.step != leaseRefused || l.at[x.slot] != x {
		return
	}
	delete(l.at, x.slot)
	delete(l.of, leaseOf{x.owner, x.id})
	if l.held[x.owner.Address]--; l.held[x.owner.Address] == 0 {
		delete(l.held, x.owner.Address)
	}
	l.gone = append(l.gone, x.slot)
}

// forsake is letGo for a lease whose owner has ended: nobody can let go of it, now or when it is over.
func (l *leases) forsake(x *lease) {
	delete(l.of, leaseOf{x.owner, x.id})
	x.id = 0
	l.letGo(x)
}

// former is how many leases are not over that earlier incarnations of a node have given.
func (l *leases) former(n wal.Node) (count int) {
	for _, x := range l.at {
		if x.owner.Address == n.Address && x.owner.Incarnation < n.Incarnation && x.step != leaseEnded && x.step != leaseRefused {
			count++
		}
	}
	return count
}

// strike has the operation done that a lease needs, when the one that is out is answered: the end of a lease must not overtake its beginning.
func (l *leases) strike(x *lease) {
	if (x.step == leaseComing || x.step == leaseEnding) && !x.out && !slices.Contains(l.ready, x) {
		l.ready = append(l.ready, x)
	}
}

// next implements handJob.
func (l *leases) next() (handOp, bool) {
	for len(l.ready) > 0 {
		x := l.ready[0]
		l.ready = l.ready[1:]
		switch x.step {
		case leaseComing:
			x.out = true
			return handOp{kind: handLend, slot: uint32(x.slot), number: x.number, owner: l.row(x.owner.Address), lessee: l.row(x.lessee), regions: x.regions}, true
		case leaseEnding:
			x.out = true
			return handOp{kind: handFail, slot: uint32(x.slot), number: x.number}, true
		default: // it needs none any more
		}
	}
	return handOp{}, false
}

// took implements handJob.
func (l *leases) took(o handOp, a *handAnswer) {
	x := l.at[rpcpacket.Slot(o.slot)]
	if x == nil || x.number != o.number {
		return
	}
	x.out = false
	switch {
	case o.kind == handFail && a.outcome == handHasChildren:
		x.pause = endPauses.Next(x.pause)
	case o.kind == handFail:
		x.step, x.pause = leaseResting, rest
	case x.step == leaseEnding: // it is to end, if it has begun
		x.pause = 0
	case a.outcome == handDenied:
		x.step = leaseRefused
		return
	default:
		x.step = leaseGranted
		l.dirty = append(l.dirty, x)
		return
	}
	x.due = l.now().Add(x.pause)
	l.waits = append(l.waits, x)
}

// tick goes on with what is due.
func (l *leases) tick() {
	waits := l.waits
	l.waits = nil
	for _, x := range waits {
		switch {
		case l.now().Before(x.due):
			l.waits = append(l.waits, x)
		case x.step != leaseResting:
			l.strike(x)
		default:
			if x.step = leaseEnded; x.id == 0 {
				l.letGo(x)
			}
		}
	}
}

// deadline tells when tick has something to do.
func (l *leases) deadline(earliest func(time.Time)) {
	for _, x := range l.waits {
		earliest(x.due)
	}
}

// lost says that operations which are out are lost with the registers. They are done again when again says so.
func (l *leases) lost() {
	l.ready = nil
	for _, x := range l.at {
		x.out = false
	}
}

// again has done again what was lost, or what is known from the log.
func (l *leases) again() {
	for _, x := range l.all() {
		if !slices.Contains(l.waits, x) {
			l.strike(x)
		}
	}
}

// blocks are those with leases in them.
func (l *leases) blocks() []uint32 {
	some := map[uint32]bool{}
	for s := range l.at {
		some[s.Block()] = true
	}
	return slices.Sorted(maps.Keys(some))
}

// all lists the leases by slot.
func (l *leases) all() (all []*lease) {
	for _, s := range slices.Sorted(maps.Keys(l.at)) {
		all = append(all, l.at[s])
	}
	return all
}

// count is how many leases there are at each step.
func (l *leases) count() map[string]int {
	steps := map[string]int{}
	for _, x := range l.at {
		steps[x.step.String()]++
	}
	return steps
}

// reply is what the owner is told.
func (x *lease) reply() control.ShareReply {
	switch x.step {
	case leaseComing:
		return control.ShareReply{State: control.ShareComes}
	case leaseGranted:
		return control.ShareReply{State: control.ShareHolds, Slot: x.slot, Number: x.number}
	case leaseEnding, leaseResting:
		return control.ShareReply{State: control.ShareEnds}
	default:
		return control.ShareReply{State: control.ShareEnded}
	}
}

// cell is the call slot of a lease that holds, or may.
func (x *lease) cell(owner, lessee uint16) slotCell {
	return slotCell{slot: x.slot, number: x.number, state: slotOpen, standing: true, length: 1, caller: owner, callee: lessee, regions: x.regions}
}

// build has the slots of leases open that are granted, as registers are rebuilt. Their regions have not changed hands.
func (l *leases) build(b *building, of func(dsmpacket.RegionID) *claims) {
	for _, x := range l.all() {
		owner, lessee := l.row(x.owner.Address), l.row(x.lessee)
		if x.step != leaseGranted && x.step != leaseEnding || owner == 0 || lessee == 0 {
			continue
		}
		for _, id := range x.regions {
			of(id).owners = append(of(id).owners, owner)
		}
		b.slots[x.slot] = x.cell(owner, lessee)
	}
}

// leaseRecord is the data of wal.KindLease.
type leaseRecord struct {
	Number  uint64     `json:"number"`
	ID      uint64     `json:"id"`
	Step    leaseStep  `json:"step"`
	Since   time.Time  `json:"since"`
	Regions []uint64   `json:"regions"`
	Lessee  netip.Addr `json:"lessee"`
}

func leaseID(s rpcpacket.Slot) (id wal.ID) {
	binary.BigEndian.PutUint32(id[:], uint32(s))
	return id
}

// ---- what the controller does with them

// shares takes a node's request about a standing lease.
func (c *controller) shares(p *port, m control.Message) error {
	var q control.Share
	if err := m.Decode(&q); err != nil {
		return err
	}
	n, err := p.nodeAt("share", q.Node, q.Incarnation)
	if err != nil {
		return err
	}
	reply, err := c.leases.share(n, &q, &c.population)
	c.goOnLeases()
	if err != nil {
		return err
	}
	p.answer(m, reply)
	return nil
}

func (l *leases) share(n *node, q *control.Share, all *population) (control.ShareReply, error) {
	x := l.of[leaseOf{n.logged(), q.ID}]
	switch {
	case q.ID == 0 && q.End:
		if l.former(n.logged()) > 0 {
			return control.ShareReply{State: control.ShareEnds}, nil
		}
		return control.ShareReply{State: control.ShareEnded}, nil
	case q.ID == 0:
		return control.ShareReply{}, fault.New(fault.BadRequest, "share", "lease 0")
	case q.End && x == nil:
		return control.ShareReply{State: control.ShareEnded}, nil
	case q.End:
		l.end(x)
		l.letGo(x)
		return x.reply(), nil
	case x != nil && x.step == leaseRefused:
		l.letGo(x)
		return control.ShareReply{}, fault.New(fault.PermissionDenied, "share", "a region is not node %s's, or it is lent too often", n.address)
	case x != nil:
		return x.reply(), nil
	}
	regions := idsOf(q.Regions)
	if len(regions) != len(q.Regions) || len(regions) == 0 || len(regions) > control.MaxShared {
		return control.ShareReply{}, fault.New(fault.BadRequest, "share", "%d regions, of which %d are valid: want 1 to %d", len(q.Regions), len(regions), control.MaxShared)
	}
	switch lessee := all.nodeOrFallen(q.Lessee); {
	case q.Lessee == n.address:
		return control.ShareReply{}, fault.New(fault.BadRequest, "share", "node %s would share with itself: it reads what is its own", n.address)
	case lessee == nil || lessee.going || !lessee.rights():
		return control.ShareReply{}, fault.New(fault.NotFound, "share", "there is no node %s", q.Lessee)
	case !n.rights():
		return control.ShareReply{}, fault.New(fault.PermissionDenied, "share", "node %s has no rights", n.address)
	case all.room(n, func(o *node) int { return l.held[o.address] }, len(l.at), maxLeases) == 0:
		return control.ShareReply{}, fault.New(fault.NoSpace, "share", "user %d of blade %q has its share of the rack's %d standing leases: end some", n.user, n.blade.hello.Blade, maxLeases)
	}
	x, err := l.give(n.logged(), q, regions)
	if err != nil {
		return control.ShareReply{}, err
	}
	return x.reply(), nil
}

// goOnLeases writes down what has changed of standing leases, and has done what they need.
func (c *controller) goOnLeases() {
	l := &c.leases
	l.tick()
	for _, x := range l.dirty {
		if r := (leaseRecord{uint64(x.number), x.id, x.step, x.since, nil, x.lessee}); l.at[x.slot] == x && x.step <= leaseEnding {
			for _, id := range x.regions {
				r.Regions = append(r.Regions, uint64(id))
			}
			c.putData(wal.Record{Kind: wal.KindLease, ID: leaseID(x.slot), Callee: x.owner}, r)
		}
	}
	for _, s := range l.gone {
		if l.at[s] == nil {
			c.drop(wal.KindLease, leaseID(s))
		}
	}
	l.dirty, l.gone, c.timers = nil, nil, true
	if len(l.ready) > 0 && c.rebuild == nil {
		c.hand.begin(l)
		c.reach()
	}
}

// takeIncarnation takes an incarnation for the Gatekeeper itself, 0 if there is none left.
func (c *controller) takeIncarnation() uint32 {
	if c.lastIncarnation == rpcpacket.MaxIncarnation {
		return 0
	}
	c.lastIncarnation++
	c.keepRack()
	return c.lastIncarnation
}

// restore brings a standing lease back, once the nodes are there. It ends if its owner or its lessee has.
func (l *leases) restore(r *wal.Record, all *population) error {
	var s leaseRecord
	if err := data(r, &s); err != nil {
		return err
	}
	x := &lease{
		slot: rpcpacket.Slot(binary.BigEndian.Uint32(r.ID[:])), number: rpcpacket.Number(s.Number), owner: r.Callee, id: s.ID, lessee: s.Lessee,
		step: s.Step, since: s.Since,
	}
	for _, id := range s.Regions {
		x.regions = append(x.regions, dsmpacket.RegionID(id))
	}
	if x.slot.Block() < nodeBlocks || !x.slot.Valid() || r.ID != leaseID(x.slot) || x.number == 0 || len(x.regions) == 0 || len(x.regions) > control.MaxShared ||
		x.step < leaseComing || x.step > leaseEnding {
		return corrupt(r, "a standing lease in slot %d", x.slot)
	}
	l.add(x)
	if n := all.nodes[x.owner.Address]; n == nil || n.incarnation != x.owner.Incarnation {
		l.end(x)
		l.forsake(x)
	}
	if n := all.nodeOrFallen(x.lessee); n == nil || n.going {
		l.end(x)
	}
	return nil
}
