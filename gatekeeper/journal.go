package gatekeeper

import (
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/lease"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// What the controller changes it writes down here, in the batch of the input that
// it handles. The batch is logged before any packet goes out that the input, or a
// later one, causes. So a Gatekeeper that begins with the log knows at least all
// that anybody has been told; what it does not know, its sender sends again.

// logging reports whether there is a log.
func (c *controller) logging() bool { return c.cfg.Store != nil }

// put writes a record down.
func (c *controller) put(r wal.Record) {
	if c.logging() {
		c.count.Logged++
		c.out.batch.Put(r)
	}
}

// drop strikes a record out.
func (c *controller) drop(kind wal.Kind, id wal.ID) {
	if c.logging() {
		c.out.batch.Delete(kind, id)
	}
}

// putData writes a record down whose data is JSON.
func (c *controller) putData(r wal.Record, data any) {
	if !c.logging() {
		return
	}
	var err error
	if r.Data, err = json.Marshal(data); err != nil {
		panic(err) // plain structures only
	}
	c.put(r)
}

// logFormat is the version of what the Gatekeeper's records mean. A Gatekeeper reads no other.
const logFormat = 7

// rackRecord is the data of KindRack.
type rackRecord struct {
	Format          int              `json:"format"`           // logFormat
	LastNode        uint64           `json:"last_node"`        // number given out
	LastIncarnation uint32           `json:"last_incarnation"` // likewise
	Election        control.Election `json:"election"`         // under which the Gatekeeper rules
	Began           uint64           `json:"began"`            // control.Welcome.Began
	Secret          []byte           `json:"secret"`           // endpoint.Secret
	LastRow         uint16           `json:"last_row,omitempty"`
}

func (c *controller) keepRack() { c.putData(wal.Record{Kind: wal.KindRack}, c.rackRecord()) }

func (c *controller) rackRecord() rackRecord {
	return rackRecord{Format: logFormat, LastNode: c.lastNode, LastIncarnation: c.lastIncarnation, Election: c.cfg.Election, Began: c.began, Secret: slices.Clone(c.secret[:]), LastRow: c.rows.last}
}

// bladeRecord is the data of KindBlade.
type bladeRecord struct {
	Hello control.Hello `json:"hello"`
	// Port is where it is, or was last, and MAC from which it speaks there.
	Port  uint16 `json:"port"`
	MAC   string `json:"mac"`
	Alive bool   `json:"alive"`
	// Missed is what a memory blade was out of service for.
	Missed missed `json:"missed,omitzero"`
	// Reserved is at least the generation of each region that a memory blade's starts so far may have made.
	Reserved uint32 `json:"reserved,omitempty"`
	// Begin is at least those of earlier starts.
	Begin uint32 `json:"begin,omitempty"`
	// Floor is below those of this start.
	Floor uint32 `json:"floor,omitempty"`
	// Anew says that it serves another machine than it knows.
	Anew bool `json:"anew,omitempty"`
}

// keepBlade writes down a blade that is, or was last, at a port.
func (c *controller) keepBlade(b *blade, p *port) {
	b.at = portAddress{p.num, p.mac.String()}
	c.keepMissed(b)
}

// keepMissed writes a blade down that may be out of service.
func (c *controller) keepMissed(b *blade) {
	c.putData(wal.Record{Kind: wal.KindBlade, ID: wal.NameID(b.hello.Blade)}, bladeRecord{b.hello, b.at.port, b.at.mac, b.alive(), b.missed, b.reserved, b.begin, b.floor, b.anew})
}

// nodeRecord is the data of KindNode.
type nodeRecord struct {
	Name  string `json:"name"`
	Blade string `json:"blade"`
	Token uint64 `json:"token"`          // of its join
	Gone  bool   `json:"gone,omitempty"` // its end has begun
	// Instance is what it runs of a deployment.
	Instance string `json:"instance,omitempty"`
	// Ledger is where it keeps its ledger.
	Ledger *control.LedgerPlace `json:"ledger,omitempty"`
	// Orderly: its program has left by itself.
	Orderly bool `json:"orderly,omitempty"`
	// Owes: its ledger may have one-ways that are not delivered.
	Owes bool `json:"owes,omitempty"`
	// Blocks are its blocks of call slots.
	Blocks []uint32 `json:"blocks,omitempty"`
	// Exited: it has ended with its program.
	Exited bool `json:"exited,omitempty"`
	// First is its first incarnation.
	First uint32 `json:"first"`
	// Before is the incarnation before this one, 0 for none. AfterExit: that has ended with its program.
	Before    uint32 `json:"before,omitempty"`
	AfterExit bool   `json:"after_exit,omitempty"`
	// User is the Unix user that its program runs as.
	User uint32 `json:"user,omitempty"`
	// Row is its place in the switch's registers. Going: it is gone for good.
	Row   uint16 `json:"row,omitempty"`
	Going bool   `json:"going,omitempty"`
	// Unheard: it has not heard yet what its row has.
	Unheard bool `json:"unheard,omitempty"`
}

// exportRecord is the data of KindExport, one service of a node. Order is its place among all exports,
// since a service's routes depend on it.
type exportRecord struct {
	Service  string           `json:"service"`
	Methods  []control.Method `json:"methods"`
	Stateful bool             `json:"stateful,omitempty"`
	Order    uint64           `json:"order"`
	// Away: the node has failed, and its next incarnation has not exported it yet.
	Away bool `json:"away,omitempty"`
	// Moves: the node is on its way to another blade.
	Moves bool `json:"moves,omitempty"`
	// IDL and NotServing are as in control.Export.
	IDL        string `json:"idl,omitempty"`
	NotServing bool   `json:"not_serving,omitempty"`
}

func (c *controller) keepNode(n *node) {
	if !c.logging() {
		return
	}
	c.putData(wal.Record{Kind: wal.KindNode, ID: wal.AddrID(n.address), Callee: n.logged()},
		nodeRecord{
			Name: n.name, Blade: n.blade.hello.Blade, Token: n.token, Gone: n.gone, Instance: n.instance, Ledger: n.ledger, Orderly: n.orderly, Owes: n.owes,
			Exited: n.exited, First: n.first, Before: n.before, AfterExit: n.afterExit, User: n.user, Blocks: n.blocks, Row: n.row, Going: n.going, Unheard: n.unheard,
		})
}

// keepExports writes all services of a node down, after a change that concerns them all.
func (c *controller) keepExports(n *node) {
	for _, a := range sortedServices(n.exports) {
		c.keepExport(n, a)
	}
}

// keepExport writes one service of a node down.
func (c *controller) keepExport(n *node, service netip.Addr) {
	if !c.logging() {
		return
	}
	x := n.exports[service]
	methods := slices.SortedFunc(maps.Values(x.methods), func(a, b control.Method) int {
		return slices.Compare([]byte(a.Name), []byte(b.Name))
	})
	c.putData(wal.Record{Kind: wal.KindExport, ID: exportID(n.address, service), Callee: n.logged()},
		exportRecord{c.services[service].name, methods, x.stateful, x.order, x.away, x.moves, x.idl, x.resting})
}

// exportID names a service of a node.
func exportID(n, service netip.Addr) (id wal.ID) {
	a, s := n.As16(), service.As16()
	copy(id[:], s[8:])
	copy(id[8:], a[8:])
	return id
}

// dropAllocs strikes out what is logged of a node's allocations.
func (c *controller) dropAllocs(n *node) {
	for machine := range n.allocs {
		c.drop(wal.KindAllocs, allocsID(n.address, machine))
	}
}

// allocsID names a node's window at a memory machine.
func allocsID(n netip.Addr, machine allocKey) wal.ID {
	id := wal.AddrID(n)
	id[0] = byte(machine)
	return id
}

// keepAllocs writes a window down: allocs.kept is its data.
func (c *controller) keepAllocs(n *node, machine uint8) {
	if !c.logging() || n.gone {
		return
	}
	a := n.allocs[allocKey(machine)]
	c.put(wal.Record{
		Kind: wal.KindAllocs, ID: allocsID(n.address, allocKey(machine)), Caller: wal.Node{Address: n.address, Incarnation: n.incarnation},
		Order: a.floor, Data: a.kept(),
	})
}

// The states of a region's record, byte 1 of its data; byte 0 is its size class. Byte 2 is 1 if
// it is a program's own; of one that is reclaimed there is none.
const (
	regionKept      = 0
	regionFreeing   = 1
	regionReclaimed = 2 // nobody has it, but its memory blade may
)

// keepRegion writes down in whose hands a region is, if anybody's.
func (c *controller) keepRegion(r dsmpacket.Region) {
	id := wal.AddrID(r.Base.Addr())
	v, ok := c.leases.Find(r.Base)
	if !ok || v.Region != r {
		c.drop(wal.KindRegion, id)
		return
	}
	data := []byte{r.Class, regionKept, 0}
	if v.Freeing {
		data[1] = regionFreeing
	}
	if c.ofPrograms[r.Base] {
		data[2] = 1
	}
	f := c.frees[r.Base]
	c.put(wal.Record{
		Kind: wal.KindRegion, ID: id, Caller: wal.Node{Address: v.Controller, Incarnation: f.incarnation}, Callee: wal.Node{Address: v.Owner},
		Order: f.request, Data: data,
	})
}

// keepReclaim writes down that a memory blade has to free a region.
func (c *controller) keepReclaim(r dsmpacket.Region) {
	c.put(wal.Record{Kind: wal.KindRegion, ID: wal.AddrID(r.Base.Addr()), Data: []byte{r.Class, regionReclaimed}})
}

// dropReclaims strikes out regions that a memory blade has freed or lost.
func (c *controller) dropReclaims(b *blade, regions []control.RegionID) {
	for _, r := range regions {
		if o := c.other(b); o != nil && slices.Contains(o.reclaims, r) {
			continue // the other copy has it still
		}
		c.drop(wal.KindRegion, wal.AddrID(r.Region(c.cfg.DSMPrefix, b.hello.Machine).Base.Addr()))
	}
}

// keepStep writes down what an event has changed, when it has been judged: its
// rules may still be on their way to the switch, but it will not be judged again.
func (c *controller) keepStep(s lease.Step) {
	if !c.logging() {
		return
	}
	if !c.keptLater(s) {
		c.keepChanged(s)
	}
	for _, r := range s.Reclaim {
		c.keepReclaim(r)
	}
}

// keptLater reports whether what an event changes is written down when its rules are in
// place, since what has caused it is. A Gatekeeper that begins between the two judges the
// next copy anew: of a direct one-way, which would else be refused, for its caller
// would not control any more what it hands over; of a free; of the
// answer to a direct call, which would be denied, for its callee would not control any more what it hands over.
func (c *controller) keptLater(s lease.Step) bool {
	switch e := s.Event.(type) {
	case lease.Oneway:
		return c.loans[e.ID] != nil
	case lease.Free:
		return true
	case lease.Reply:
		return len(e.Results) > 0 && c.loans[e.ID] != nil
	}
	return false
}

// keepChanged writes down in whose hands the regions are now that an event has changed.
func (c *controller) keepChanged(s lease.Step) {
	for _, r := range s.Changed {
		c.keepRegion(r)
	}
}

// outbox keeps packets back until all that led to them is logged: what an input
// has changed, and what inputs before it have. Without a log nothing waits.
//
//	batch, packets ─▶ tail ─ Submit ─▶ waiting ─ logged ─▶ the switch
//	                    └─ the log is busy: it grows until that takes it
type outbox struct {
	store    *wal.Log
	most     int // packets that may wait
	transmit func(packetOut)
	confirm  func(error) // called by the log for each batch, in order

	waiting []pendingBatch // submitted, oldest first
	tail    pendingBatch   // not yet submitted
	held    int            // packets in all of them
}

// pendingBatch is a batch and the packets that wait for it.
type pendingBatch struct {
	batch   *wal.Batch
	packets []packetOut
}

func newOutbox(store *wal.Log, most int, transmit func(packetOut), confirm func(error)) *outbox {
	return &outbox{store: store, most: most, transmit: transmit, confirm: confirm, tail: pendingBatch{batch: new(wal.Batch)}}
}

// put takes what an input has changed, and the packets that it caused.
func (o *outbox) put(b *wal.Batch, packets []packetOut) error {
	o.tail.batch.Append(b)
	o.tail.packets = append(o.tail.packets, packets...)
	o.held += len(packets)
	return o.flush()
}

// flush hands the tail to the log, or to the switch if nothing is to be logged.
func (o *outbox) flush() error {
	switch {
	case o.tail.batch.Len() > 0:
		switch err := o.store.Submit(o.tail.batch, o.confirm); {
		case errors.Is(err, wal.ErrBusy), errors.Is(err, wal.ErrFull):
			return nil
		case err != nil:
			return err
		}
		o.waiting = append(o.waiting, o.tail)
		o.tail = pendingBatch{batch: new(wal.Batch)}
	case len(o.waiting) > 0:
		last := &o.waiting[len(o.waiting)-1]
		last.packets = append(last.packets, o.tail.packets...)
		o.tail.packets = nil
	default:
		o.deliver(o.tail.packets)
		o.tail.packets = nil
	}
	return nil
}

// confirmed takes the log's word about the oldest batch, and lets go on what has
// waited for it.
func (o *outbox) confirmed(err error) error {
	if err != nil {
		return err
	}
	o.deliver(o.waiting[0].packets)
	o.waiting[0] = pendingBatch{}
	o.waiting = o.waiting[1:]
	if o.tail.batch.Len() == 0 {
		return nil
	}
	return o.flush()
}

func (o *outbox) deliver(packets []packetOut) {
	o.held -= len(packets)
	for _, p := range packets {
		o.transmit(p)
	}
}

// pressure is how much the log can take. What is under way must be able to end: so each
// kind of record may fill the log only up to a mark, in sixteenths of it.
//
//	0              8       10        14      15    16
//	├──────────────┴───────┴─────────┴───────┴─────┤
//	outermost calls│       │         │       │     what makes room
//	calls made for others ─┘         │       │
//	answers to these, allocations ───┘       │
//	answers to outermost calls ──────────────┘
type pressure struct {
	// stalled: the log does not take what it gets, or keeps too many packets waiting.
	// What is sent again anyway should not wait in the outbox once more.
	stalled bool
	// used of limit are the bytes that the log holds. No limit: there is no log.
	used, limit uint64
}

// The marks, in sixteenths.
const (
	callMark       = 8
	innerCallMark  = 10 // of a call that another one waits for
	allocationMark = 14 // of what an execution under way needs beside calls
)

// fits reports whether so many bytes do not pass a mark.
func (p *pressure) fits(size int, mark uint64) bool {
	return p.limit == 0 || p.used+uint64(size) <= p.limit/16*mark //nolint:gosec // not negative
}

// keepsAway reports whether a new call should stay away; inner is for one that another call waits for.
func (p *pressure) keepsAway(inner bool, size int) bool {
	mark := uint64(callMark)
	if inner {
		mark = innerCallMark
	}
	return p.stalled || !p.fits(size, mark)
}

// most is how many bytes a logged message has at most: an eighth of the log, so that a call,
// the one that it makes, and the answers to both find room in any case. 0 stands for any number.
func (p *pressure) most() uint64 { return p.limit / logShare }

func (o *outbox) pressure() pressure {
	s := o.store.Stats()
	return pressure{stalled: o.tail.batch.Len() > 0 || o.held >= o.most, used: s.Bytes, limit: s.Limit}
}

// tooLarge reports why a message will never be logged, nil if it may be.
func (c *controller) tooLarge(size int) *fault.Error {
	most := c.pressure.most()
	if most == 0 || uint64(size) <= most { //nolint:gosec // not negative
		return nil
	}
	return fault.New(fault.NoSpace, "call", "a message of %d bytes; the Gatekeeper's log, of %d bytes, takes %d at most: give it more room", size, c.pressure.limit, most)
}

// tellPressure tells people that the log has become too full for outermost calls, or has
// room again; at most once in tellFull.
func (c *controller) tellPressure() {
	full := !c.pressure.fits(0, callMark)
	if full == c.full || c.now.Sub(c.fullTold) < tellFull {
		return
	}
	c.full, c.fullTold = full, c.now
	if full {
		c.logger.Warn("the log is nearly full: new calls wait until others have ended",
			"bytes", c.pressure.used, "limit", c.pressure.limit, "remedy", "end the callers that have most calls out (bifrost calls); if that is often so, give the log more room")
		return
	}
	c.logger.Info("the log has room again", "bytes", c.pressure.used, "limit", c.pressure.limit)
}
