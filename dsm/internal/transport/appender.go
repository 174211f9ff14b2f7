package transport

import (
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/copies"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/stream"
)

// appendWindow is how many chunks an Appender has in flight at most. A memory server
// keeps four times as many that overtake each other (memory/ledger.Window).
const appendWindow = 64

// AppenderConfig says what a run knows of its ledger once it has opened it.
type AppenderConfig struct {
	// MaxData is how many bytes of a chunk one datagram carries.
	MaxData int
	// Next is the number of the first chunk, Birth the machine's birth number.
	Next, Birth uint64
	// Mirror says which copies the machine has.
	Mirror dsmpacket.Mirror
	// Room is how many bytes may be appended, as the copies said at the opening.
	Room uint64
	// Limits say when chunks are sent again.
	Limits Limits
}

// Appender is the writer's half of one ledger (design section 3): it packs records into
// chunks, sends each chunk until every copy has it, and says up to which record the
// ledger is settled. Like an Endpoint it does no I/O, reads no clock and has one owner.
//
// While nothing is in flight a record leaves at once. Records that come meanwhile, or
// together, share chunks (group commit). A record that does not fit into a chunk has several for itself,
// each of which but the last continues.
//
// A chunk for which a copy has no room is sent again until there is some, as one for which nobody answers, and at once when a base before it
// is settled: that makes room, or another node does.
type Appender struct {
	cfg      AppenderConfig
	appended uint64               // number of the last record
	settled  uint64               // number of the last record that every copy has
	waiting  []ledgerRecord       // in no chunk yet, or only in part
	flight   stream.Flight[chunk] // not known to be everywhere
	bases    []base               // not settled, in order
	keep     uint64               // the first chunk that is still needed
	copies   copies.Answers[standing]
	full     bool // a copy has refused a chunk for want of room, and none is settled since
	err      error
	send     []Append
}

// Append is one chunk to be sent to all copies.
type Append struct {
	dsmpacket.Chunk
	// Keep is the first chunk that is still needed.
	Keep uint64
}

// standing is how the ledger stands at a copy: which chunk it lacks first, and for how many bytes it has room.
type standing struct{ next, room uint64 }

// ledgerRecord is one record on its way into chunks.
type ledgerRecord struct {
	data []byte // what is in no chunk yet
	part bool   // the rest of a record whose first part is in a chunk
	base bool   // it stands for all before it: once it is settled, the memory servers need not keep what lies before
}

// base is where a record that stands for all before it begins.
type base struct{ record, chunk uint64 }

// chunk is one chunk in flight.
type chunk struct {
	Append
	ends uint64 // number of the last record that ends in it or before it
}

// NewAppender returns the appender of a run that has opened its ledger.
func NewAppender(cfg AppenderConfig) *Appender {
	limits := cfg.Limits.withDefaults()
	a := &Appender{cfg: cfg, flight: stream.NewFlight[chunk](cfg.Next, stream.NewWindow(appendWindow, appendWindow, appendWindow, 1), limits.timeout())}
	a.copies.Meet(cfg.Mirror)
	return a
}

func ledgerRecords(records [][]byte) []ledgerRecord {
	rs := make([]ledgerRecord, len(records))
	for i, data := range records {
		rs[i].data = data
	}
	return rs
}

// add adds records, and returns the number of the last one; the first record of a run has
// number 1. They share chunks as far as those have room. The bytes must not change until the
// records are settled.
func (a *Appender) add(now time.Duration, rs ...ledgerRecord) uint64 {
	a.appended += uint64(len(rs))
	a.waiting = append(a.waiting, rs...)
	if a.flight.Len() == 0 {
		a.pump(now)
	}
	return a.appended
}

// Settled returns the number of the last record that every copy has, with all before it.
func (a *Appender) Settled() uint64 { return a.settled }

// Err returns why nothing is appended any more, nil while all is well: Stale if the run
// has ended, Internal if a copy is not the one that the run has opened.
func (a *Appender) Err() error { return a.err }

// Room is how many bytes may still be appended: what the copy with the least has left
// but for an eighth of the ledger's space, without what is on its way there.
func (a *Appender) Room() uint64 {
	room, heard := a.cfg.Room, false
	for s := range a.copies.Said() {
		if !heard || s.room < room {
			room, heard = s.room, true
		}
	}
	for _, c := range a.flight.Missing() {
		room -= min(room, uint64(len(c.Data))+dsmpacket.ChunkCost)
	}
	for _, r := range a.waiting {
		chunks := 1 + len(r.data)/a.cfg.MaxData
		room -= min(room, uint64(len(r.data)+chunks*dsmpacket.ChunkCost)) //nolint:gosec // lengths
	}
	return room
}

// Busy reports whether an answer is awaited.
func (a *Appender) Busy() bool { return a.err == nil && (a.flight.Len() > 0 || len(a.waiting) > 0) }

// Wake is when Tick is to be called.
func (a *Appender) Wake() time.Duration {
	if due, ok := a.flight.Due(); ok && a.err == nil {
		return due
	}
	return Never
}

// Send returns the chunks to be sent, and forgets that it was asked.
func (a *Appender) Send() []Append {
	s := a.send
	a.send = nil
	return s
}

// pump sends what is lost again, and makes chunks of the records that wait, as many as the window has room for.
func (a *Appender) pump(now time.Duration) {
	if a.err != nil {
		return
	}
	for _, c := range a.flight.Again(now) {
		a.transmit(c)
	}
	for len(a.waiting) > 0 && a.flight.Window.Fits(a.flight.Out(), 1) {
		var c chunk
		if a.waiting[0].base {
			a.bases = append(a.bases, base{a.appended - uint64(len(a.waiting)) + 1, a.flight.Next()})
		}
		if r := &a.waiting[0]; r.part || dsmpacket.RecordSize(len(r.data)) > a.cfg.MaxData {
			a.fragment(&c, r)
		} else {
			a.pack(&c)
		}
		a.begin(now, c)
	}
}

// begin sends the next chunk.
func (a *Appender) begin(now time.Duration, c chunk) {
	c.Number, c.ends = a.flight.Next(), a.appended-uint64(len(a.waiting))
	a.transmit(&c)
	a.flight.Send(now, 1, c)
}

// fragment puts the next part of a record into a chunk of its own. The first part never
// is the whole record: a reader tells fragments by the chunk that continues.
func (a *Appender) fragment(c *chunk, r *ledgerRecord) {
	n := min(a.cfg.MaxData, len(r.data))
	if !r.part {
		n = min(n, len(r.data)-1)
	}
	c.Data, c.Continues = r.data[:n:n], n < len(r.data)
	*r = ledgerRecord{data: r.data[n:], part: true}
	if !c.Continues {
		a.waiting = a.waiting[1:]
	}
}

// pack puts as many whole records into a chunk as fit. A base begins a chunk.
func (a *Appender) pack(c *chunk) {
	for n := 0; len(a.waiting) > 0; n++ {
		r := &a.waiting[0]
		if n > 0 && (r.base || len(c.Data)+dsmpacket.RecordSize(len(r.data)) > a.cfg.MaxData) {
			return
		}
		c.Data = dsmpacket.AppendRecord(c.Data, r.data)
		a.waiting = a.waiting[1:]
	}
}

// transmit sends a chunk to all copies.
func (a *Appender) transmit(c *chunk) {
	c.Keep = a.keep
	a.send = append(a.send, c.Append)
}

// Tick sends again what is due.
func (a *Appender) Tick(now time.Duration) {
	a.flight.Tick(now)
	a.pump(now)
}

// Receive takes the answer of one copy. A copy of an older epoch does not count; the first
// answer of a newer one begins the count anew.
func (a *Appender) Receive(now time.Duration, r *dsmpacket.LedgerAnswer) {
	m := r.Mirror
	switch {
	case a.err != nil || a.copies.Old(m):
		return
	case r.Birth != a.cfg.Birth:
		a.fail(fault.Internal, "copy %d has birth number %#x, the ledger was opened at %#x", m.Copy, r.Birth, a.cfg.Birth)
		return
	case r.Status == fault.OK, r.Status == fault.Overloaded:
	case r.Status == fault.NoSpace:
		a.full = true
	case r.Status == fault.Stale:
		a.fail(fault.Stale, "another run has the ledger")
		return
	default:
		a.fail(r.Status, "copy %d refuses chunk %d", m.Copy, r.Chunk.Number)
		return
	}
	said, newer := a.copies.From(m)
	if newer {
		a.flight.Lose(a.flight.Next()) // the copies of the new epoch may not have it
	}
	if r.Next >= said.next {
		*said = standing{r.Next, r.Room}
	}
	a.settle(now)
	if first := a.flight.First(); a.full && first != nil && first.Keep < a.keep { // the copies may have refused it before they dropped what need not be kept
		a.flight.Lose(a.flight.Next())
	}
	if r.Status != fault.NoSpace {
		a.flight.Overtaken(r.Next, r.Chunk.Number)
	}
	a.pump(now)
}

func (a *Appender) fail(code fault.Code, format string, args ...any) {
	a.err = fault.Remote(code, "append to the ledger", format, args...)
}

// settle takes the chunks out of flight that every copy has. When a base has been settled
// and no other record is to be sent, a chunk without records tells the copies what they need
// not keep.
func (a *Appender) settle(now time.Duration) {
	if !a.copies.All() {
		return
	}
	least := a.flight.Next()
	for s := range a.copies.Said() {
		least = min(least, s.next)
	}
	if least <= a.flight.Low() {
		return
	}
	for number, c := range a.flight.Missing() {
		if number < least {
			a.settled = c.ends
		}
	}
	a.flight.Below(now, least)
	if a.full {
		a.full = false
		a.flight.Lose(a.flight.Next()) // they have been refused, too
	}
	keep := a.keep
	for len(a.bases) > 0 && a.bases[0].record <= a.settled {
		a.keep = a.bases[0].chunk
		a.bases = a.bases[1:]
	}
	if a.keep != keep && len(a.waiting) == 0 { // no record is about to carry keep
		a.begin(now, chunk{})
	}
}
