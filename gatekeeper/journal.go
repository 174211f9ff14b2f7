package gatekeeper

import (
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
)

// What the controller changes it writes down here, in the batch of the input that
// it handles. The batch is logged before any packet goes out that the input, or a
// later one, causes. So a Gatekeeper that begins with the log knows at least all
// that anybody has been told; what it does not know, its sender sends again.

// journal is what inputs write down, until the turn hands it to the log. Without a log nothing is written.
type journal struct {
	on      bool
	batch   wal.Batch
	records uint64 // so far
}

// put writes a record down.
func (j *journal) put(r wal.Record) {
	if j.on {
		j.records++
		j.batch.Put(r)
	}
}

// drop strikes a record out.
func (j *journal) drop(kind wal.Kind, id wal.ID) {
	if j.on {
		j.batch.Delete(kind, id)
	}
}

// putData writes a record down whose data is JSON.
func (j *journal) putData(r wal.Record, data any) {
	if !j.on {
		return
	}
	var err error
	if r.Data, err = json.Marshal(data); err != nil {
		panic(err) // plain structures only
	}
	j.put(r)
}

// logFormat is the version of what the Gatekeeper's records mean. A Gatekeeper reads no other.
const logFormat = 8

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
func (j *journal) keepBlade(b *blade, p *port) {
	b.at = portAddress{p.num, p.mac.String()}
	j.keepMissed(b)
}

// keepMissed writes a blade down that may be out of service.
func (j *journal) keepMissed(b *blade) {
	j.putData(wal.Record{Kind: wal.KindBlade, ID: wal.NameID(b.hello.Blade)}, bladeRecord{b.hello, b.at.port, b.at.mac, b.alive(), b.missed, b.reserved, b.begin, b.floor, b.anew})
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

func (j *journal) keepNode(n *node) {
	if !j.on {
		return
	}
	j.putData(wal.Record{Kind: wal.KindNode, ID: wal.AddrID(n.address), Callee: n.logged()},
		nodeRecord{
			Name: n.name, Blade: n.blade.hello.Blade, Token: n.token, Gone: n.gone, Instance: n.instance, Ledger: n.ledger, Orderly: n.orderly, Owes: n.owes,
			Exited: n.exited, First: n.first, Before: n.before, AfterExit: n.afterExit, User: n.user, Blocks: n.blocks, Row: n.row, Going: n.going, Unheard: n.unheard,
		})
}

// keepExports writes all services of a node down, after a change that concerns them all.
func (j *journal) keepExports(n *node) {
	for _, a := range sortedServices(n.exports) {
		j.keepExport(n, a)
	}
}

// keepExport writes one service of a node down.
func (j *journal) keepExport(n *node, service netip.Addr) {
	if !j.on {
		return
	}
	x := n.exports[service]
	methods := slices.SortedFunc(maps.Values(x.methods), func(a, b control.Method) int {
		return slices.Compare([]byte(a.Name), []byte(b.Name))
	})
	j.putData(wal.Record{Kind: wal.KindExport, ID: exportID(n.address, service), Callee: n.logged()},
		exportRecord{x.service.name, methods, x.stateful, x.order, x.away, x.moves, x.idl, x.resting})
}

// exportID names a service of a node.
func exportID(n, service netip.Addr) (id wal.ID) {
	a, s := n.As16(), service.As16()
	copy(id[:], s[8:])
	copy(id[8:], a[8:])
	return id
}

// keepReclaim writes down that a memory blade has to free a region.
func (j *journal) keepReclaim(r dsmpacket.Region) {
	j.put(wal.Record{Kind: wal.KindRegion, ID: wal.AddrID(r.Base.Addr()), Data: []byte{r.Class}})
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

// outbox keeps packets back until all that led to them is logged: what an input
// has changed, and what inputs before it have. Without a log nothing waits.
//
//	batch, packets ─▶ tail ─ Submit ─▶ waiting ─ logged ─▶ the switch
//	                    └─ the log is busy: it grows until that takes it
type outbox struct {
	store    *wal.Log
	transmit func(packetOut)
	confirm  func(error) // called by the log for each batch, in order

	waiting []pendingBatch // submitted, oldest first
	tail    pendingBatch   // not yet submitted
}

// pendingBatch is a batch and the packets that wait for it.
type pendingBatch struct {
	batch   *wal.Batch
	packets []packetOut
	since   time.Time // when the first of that came
}

func newOutbox(store *wal.Log, transmit func(packetOut), confirm func(error)) *outbox {
	return &outbox{store: store, transmit: transmit, confirm: confirm, tail: pendingBatch{batch: new(wal.Batch)}}
}

// put takes what an input has changed, and the packets that it caused.
func (o *outbox) put(now time.Time, b *wal.Batch, packets []packetOut) error {
	if o.tail.batch.Len()+len(o.tail.packets) == 0 {
		o.tail.since = now
	}
	o.tail.batch.Append(b)
	o.tail.packets = append(o.tail.packets, packets...)
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
// waited for it. It returns since when that has waited.
func (o *outbox) confirmed(err error) (since time.Time, _ error) {
	if err != nil {
		return since, err
	}
	since = o.waiting[0].since
	o.deliver(o.waiting[0].packets)
	o.waiting[0] = pendingBatch{}
	o.waiting = o.waiting[1:]
	if o.tail.batch.Len() == 0 {
		return since, nil
	}
	return since, o.flush()
}

func (o *outbox) deliver(packets []packetOut) {
	for _, p := range packets {
		o.transmit(p)
	}
}

// pressure is how full the log is. No limit: there is no log, or it takes any number of bytes.
type pressure struct{ used, limit uint64 }

// nearlyFull reports whether half of the log is used. A rack takes a small part of it.
func (p *pressure) nearlyFull() bool { return p.limit > 0 && p.used > p.limit/2 }

func (o *outbox) pressure() pressure {
	s := o.store.Stats()
	return pressure{used: s.Bytes, limit: s.Limit}
}

// tellPressure tells people that the log is nearly full, or has room again; at most once in tellFull.
func (c *controller) tellPressure() {
	full := c.pressure.nearlyFull()
	if full == c.full || c.now.Sub(c.fullTold) < tellFull {
		return
	}
	c.full, c.fullTold = full, c.now
	if full {
		c.logger.Warn("the log is nearly full: when it is, nothing that has to be on it goes on", "bytes", c.pressure.used, "limit", c.pressure.limit, "remedy", "give the log more room")
		return
	}
	c.logger.Info("the log has room again", "bytes", c.pressure.used, "limit", c.pressure.limit)
}
