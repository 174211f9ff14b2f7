package rpc

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// ledger is what a node writes down in the memory of the rack, and what that adds up to. It is
// all that says what has become of direct calls, and a node that cannot write it any more ends.
//
//	child call, effect ◀── begun, journal settled        REPLY ◀── done settled
type ledger struct {
	node *Node
	// place is where it is; nil while no memory machine is in service: then nothing is written. Granted is closed when it
	// is known.
	place   atomic.Pointer[control.LedgerPlace]
	granted chan struct{}

	mu    sync.Mutex
	file  *dsmclient.Ledger // nil before the first record
	lost  error             // nothing is written any more
	table *direct.Table
	since int    // bytes since the last base
	last  uint64 // the last record's number
	based int    // bytes of the last base
	// reserved is how many bytes large messages will take of whose executions there is no
	// record yet (execution.reserved).
	reserved int
	// squeezed is when a base was last written for want of room, in node time.
	squeezed time.Duration
	// most is how many bytes the ledger has room for, as far as is known.
	most int
	// settling are the calls that are done, and whose record is not settled yet.
	settling map[rpcpacket.ID]bool
	resumes  resumption
	// forgets is when the next words about what is to be forgotten leave; see forget.go.
	forgets forgets
	reports reports
	told    told
	// hands has the durable mains that wait for what they hand over; see awaitTaken.
	hands map[rpcpacket.ID]chan struct{}
}

// leastBase is how many bytes of records are not worth a base.
const leastBase = 8 << 10

// squeezeEvery is how often a base is written for want of room.
const squeezeEvery = time.Second

// newLedger returns the ledger of a node.
func newLedger(n *Node) *ledger {
	l := &ledger{node: n, granted: make(chan struct{}), table: direct.New(new(record.State)), settling: map[rpcpacket.ID]bool{}}
	if n.self.Ledger != nil {
		l.grant(n.self.Ledger)
	}
	return l
}

// placed reports whether the node has a ledger.
func (l *ledger) placed() bool { return l.place.Load() != nil }

// grant says where the ledger is.
func (l *ledger) grant(place *control.LedgerPlace) {
	l.place.Store(place)
	close(l.granted)
}

// awaitPlace waits until the node has a ledger. Without one no service of it keeps a state, and no durable main runs.
func (l *ledger) awaitPlace(ctx context.Context, op string) error {
	if l.placed() {
		return nil
	}
	n := l.node
	n.log.Warn("rpc: waits for a memory blade: none is in service, and the node's ledger is kept in one", "node", n.self.Name, "for", op)
	select {
	case <-l.granted:
		return nil
	case <-n.done:
		return n.failure()
	case <-ctx.Done():
		return &Error{Code: fault.CodeOf(ctx.Err()), Op: op, Msg: "no memory blade is in service that could keep the node's ledger (bifrost memory)", Err: ctx.Err()}
	}
}

// seekLedger gets a ledger for a node that has joined when no memory machine was in service.
func (n *Node) seekLedger() {
	for {
		if r := n.session.Rack(); len(r.Memories)+len(r.Others) > 0 {
			place, err := n.session.Ledger(n.base)
			if err == nil && place != nil {
				n.ledger.grant(place)
				n.log.Info("rpc: the node has a ledger now", "node", n.self.Name)
				return
			}
		}
		select {
		case <-time.After(servingLifetime):
		case <-n.base.Done():
			return
		}
	}
}

// read takes in what earlier incarnations of the node have written. The node does nothing
// before.
func (l *ledger) read(ctx context.Context) error {
	if !l.placed() || l.node.self.Incarnation == 1 {
		return nil
	}
	l.mu.Lock()
	err := l.open()
	file := l.file
	l.mu.Unlock()
	if err != nil {
		return err
	}
	var records [][]byte
	if err := file.Read(ctx, func(b []byte) error {
		records = append(records, b)
		return nil
	}); err != nil {
		return fault.New(fault.CodeOf(err), "join", "read the node's ledger: %v", err)
	}
	state, err := record.Fold(records)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.table = direct.New(state)
	for _, b := range records {
		l.since += len(b)
	}
	return nil
}

// open begins to open the ledger. The caller holds l.mu.
func (l *ledger) open() error {
	if l.file != nil {
		return nil
	}
	place := l.place.Load()
	f, err := l.node.memory.OpenLedger(dsmclient.LedgerConfig{Machine: place.Machine, Birth: place.Birth, Run: l.node.self.Incarnation})
	l.file = f
	return err
}

// usualRecord is about how many bytes the record of a short call has.
const usualRecord = 256

// add adds records, and returns the number of the last one. The caller holds l.mu.
func (l *ledger) add(rs ...record.Record) (n uint64) {
	if l.lost != nil || !l.placed() || len(rs) == 0 {
		return 0
	}
	if err := l.open(); err != nil {
		l.lose(err)
		return 0
	}
	var all [][]byte
	for len(rs) > 0 {
		r := rs[0]
		b := record.Append(make([]byte, 0, usualRecord), r)
		l.since += len(b)
		rs = append(rs[1:len(rs):len(rs)], l.apply(r)...)
		all = append(all, b)
	}
	n = l.file.Append(all...)
	l.last = max(l.last, n)
	if l.since > leastBase {
		l.last = max(l.last, l.base())
	}
	return n
}

// base writes what all records add up to, which makes room of those before. The caller holds
// l.mu.
func (l *ledger) base() uint64 {
	base := l.table.State().Base()
	b := record.Append(nil, base)
	l.apply(base)
	l.based, l.since = len(b), -len(b) // the next one when there is twice as much
	return l.file.Base(b)
}

// apply keeps what the records add up to. It returns records that are to follow.
func (l *ledger) apply(r record.Record) []record.Record {
	follow, err := l.table.Apply(r)
	if err != nil {
		l.node.log.Error("rpc: a ledger's record does not follow from those before it", "node", l.node.self.Name, "err", err)
	}
	if l.table.Owes() {
		l.forgets.hurry(l.node)
	}
	if f, ok := r.(*record.Forgotten); ok && (len(f.Callers) > 0 || len(l.node.fates.waiting) > 0) {
		l.heedFates()
	}
	l.tellLater()
	return follow
}

// lose gives the ledger up. The caller holds l.mu.
func (l *ledger) lose(why error) {
	if l.lost != nil {
		return
	}
	l.lost = why
	l.node.log.Warn("rpc: the node's ledger is lost", "node", l.node.self.Name, "err", why)
	go l.node.resign(&Error{Code: Unavailable, Op: "node " + l.node.self.Name, Msg: "the node's ledger is lost", Err: why})
}

// end ends the ledger with its node: what handlers that are cut off come to is not written.
func (l *ledger) end(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost == nil {
		l.lost = why
	}
}

// resign ends the node, and gives its identity back, so that the rack starts its program anew
// if it runs that.
func (n *Node) resign(why error) {
	n.fail(why)
	n.session.Crash(why.Error())
}

// settle waits until a record is settled, none if its number is 0, and reports whether it is.
func (l *ledger) settle(n uint64) bool {
	l.mu.Lock()
	file, lost := l.file, l.lost
	l.mu.Unlock()
	if lost != nil || n == 0 {
		return lost == nil // nothing is to be settled
	}
	err := file.Wait(l.node.base, n)
	if err == nil {
		return true
	}
	if l.node.base.Err() != nil {
		return false // the node has ended
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lose(err)
	return false
}

// unsettled returns the number of the last record, and whether all records are settled.
func (l *ledger) unsettled() (last uint64, settled bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return l.last, l.last == 0
	}
	n, _ := l.file.Settled()
	return l.last, n >= l.last
}

// room says whether a ledger has room for a new call.
type room uint8

const (
	someRoom  room = iota
	noRoom         // not yet
	neverRoom      // it is too large
)

// roomOf is how much room a large message needs: for its record, and for a base with it.
func roomOf(size int) int { return 2 * size }

// shareOf is how much of the room in a ledger one large message may take: a ninth is left for others.
func shareOf(room int) int { return room - room/9 }

// roomFor reports whether the ledger has room for a new call with so many bytes of arguments: for
// what it writes at least, and for a base that stands for all records so far. The last eighth of
// the space is not counted: it is for what ends the executions that have begun. If there is no
// room, a base may give some back. The caller holds l.mu.
func (l *ledger) roomFor(m *rpcpacket.Message, size int) room {
	large := m.Flags&rpcpacket.FlagMore != 0
	if large && !l.opened() {
		return noRoom // nobody knows yet
	}
	left := l.left()
	if large {
		left = shareOf(left)
	}
	if left >= roomOf(size) {
		return someRoom
	}
	if large && l.neverFits(m.Call, roomOf(size)) {
		return neverRoom
	}
	l.squeeze()
	return noRoom
}

// opened reports whether the ledger is open, and has it opened. The caller holds l.mu.
func (l *ledger) opened() bool {
	if l.lost == nil {
		err := l.open()
		if err == nil {
			_, err = l.file.Settled() // nobody waits for a record, who would learn of it
		}
		if err != nil && l.node.base.Err() == nil {
			l.lose(err)
		}
	}
	return l.lost != nil || l.file.Room() < math.MaxInt
}

// neverFits reports whether there will be no room for a call that needs so many bytes, whatever is
// forgotten. The caller holds l.mu.
func (l *ledger) neverFits(id rpcpacket.ID, bytes int) bool {
	if l.lost != nil {
		return false
	}
	written := l.based + (l.since + l.based)
	l.most = max(l.most, int(min(l.file.Room(), math.MaxInt/16))+written) //nolint:gosec // far below
	if bytes > shareOf(l.most-leastBase) {
		return true
	}
	settled, _ := l.file.Settled()
	return l.table.Alone(id) && l.squeezed > 0 && l.node.now() > l.squeezed+squeezeEvery/2 && settled >= l.last
}

// squeeze writes a base for want of room. The caller holds l.mu.
func (l *ledger) squeeze() {
	if now := l.node.now(); l.since+l.based > 0 && now >= l.squeezed+squeezeEvery {
		l.squeezed = now
		l.last = max(l.last, l.base())
	}
}

// roomPatience bounds the wait for room for a large answer. Within it an idle session has its
// last answer forgotten.
const roomPatience = 2 * time.Second

// reserve keeps room for a large answer: for its record, and for a base with it. It waits for a
// while, and reports whether there is room.
func (l *ledger) reserve(e *execution, bytes int) bool {
	take := func() (missing int) {
		if missing = bytes - shareOf(l.left()); missing <= 0 {
			l.reserved, e.reserved = l.reserved+bytes, e.reserved+bytes
		}
		return missing
	}
	l.mu.Lock()
	err := l.openNow()
	l.mu.Unlock()
	if err != nil || !l.file.WaitRoom(l.node.base, 0) {
		return false
	}
	l.mu.Lock()
	short := take()
	l.mu.Unlock()
	if short <= 0 {
		return true
	}
	if e.promote(); !e.durable(record.Call{}) { // the caller asks no more for its last call in the lane
		return false
	}
	return l.awaitRoom(take)
}

// awaitRoom waits for a while until a function, which is called with l.mu held, says that no bytes are missing, and reports
// whether it has. The time for which memory is away does not count.
func (l *ledger) awaitRoom(missing func() int) bool {
	ctx, waited := l.node.base, time.Duration(0)
	for {
		l.mu.Lock()
		short := missing()
		if short <= 0 {
			l.mu.Unlock()
			return true
		}
		if err := l.openNow(); err != nil {
			l.mu.Unlock()
			return false
		}
		file, room := l.file, l.file.Room()+uint64(short) //nolint:gosec // positive
		l.squeeze()
		last := l.last
		l.mu.Unlock()
		if !l.settle(last) {
			return false
		}
		from := l.node.now()
		again, stop := context.WithTimeout(ctx, squeezeEvery)
		file.WaitRoom(again, room)
		stop()
		if waited += l.node.now() - from; waited >= roomPatience || ctx.Err() != nil {
			return false
		}
	}
}

// openNow has the ledger opened, unless it is lost. The caller holds l.mu.
func (l *ledger) openNow() error {
	if l.lost == nil {
		if err := l.open(); err != nil {
			l.lose(err)
		}
	}
	return l.lost
}

// release gives back what is reserved for an execution: there is a record now, or none will come.
// The caller holds l.mu.
func (l *ledger) release(e *execution) {
	l.reserved, e.reserved, e.kept = l.reserved-e.reserved-e.kept, 0, 0
}

// bytesLeft is how many bytes new calls may take, for people; false if the node has written
// nothing yet, or writes nothing any more. The caller holds l.mu.
func (l *ledger) bytesLeft() (uint64, bool) {
	if l.file == nil || l.lost != nil || l.file.Room() == math.MaxUint64 {
		return 0, false
	}
	return uint64(max(l.left(), 0)), true //nolint:gosec // not negative
}

// left is how many bytes new calls may take. The caller holds l.mu.
func (l *ledger) left() int {
	if l.file == nil || l.lost != nil {
		return math.MaxInt / 16 // nothing is written
	}
	base := l.based + (l.since + l.based)                                          // at most: the last one, and what has come since
	return int(min(l.file.Room(), math.MaxInt/16)) - base - leastBase - l.reserved //nolint:gosec // far below
}

// recorded is what the ledger has of an execution. The execution's mutex guards it.
type recorded struct {
	begun  bool
	last   uint64 // the execution's last record
	called []record.Call
	sent   []direct.Item // of them, those that this incarnation has sent
	// open are those that this run has no answer to. A former run may have made some that this one does not make.
	open []rpcpacket.ID
	// refused are those that a node has refused for good.
	refused []record.Call
	// machines are the memory machines that the execution may have written to.
	machines []uint8
	// foreseen are those that the ledger has although it has not written to them yet.
	foreseen []uint8
}

// durable makes sure, before an execution does what others see and rollback does not
// undo, that the ledger has it as begun, with what it has journalled so far. A child is
// the exactly-once call that is about to leave, if any. It reports whether the execution
// may go on.
func (e *execution) durable(child record.Call) bool {
	l := e.node.ledger
	if e.journal == nil {
		return true
	}
	if e.writes(child) && !e.needsRoom() {
		return false
	}
	e.promote()
	e.mu.Lock()
	var called []record.Call
	if last, known := e.lastTry(child.ID); !child.ID.IsZero() && (!known || last != child) {
		e.recorded.called = append(e.recorded.called, child)
		called = append(called, child)
	}
	written := true
	if rs := e.unwritten(called); len(rs) > 0 {
		written = e.write(rs...)
	}
	last := e.recorded.last
	e.mu.Unlock()
	return written && l.settle(last)
}

// writes reports whether durable has something to write: a run that repeats what an earlier one did has not.
func (e *execution) writes(child record.Call) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	last, known := e.lastTry(child.ID)
	return !e.recorded.begun || !child.ID.IsZero() && (!known || last != child) || e.journal.hasUnwritten()
}

// write adds records of the execution, which has begun then. It reports false, and adds nothing, if the execution has not begun
// and its lane has gone on: nobody waits for it, and a ledger in which it begins now could not be read. The caller holds e.mu.
func (e *execution) write(rs ...record.Record) bool {
	l := e.node.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, begins := rs[0].(*record.Begun); begins && l.table.Obsolete(&e.call.Header) {
		e.recorded.begun = false
		return false
	}
	e.recorded.last = l.add(rs...)
	l.reserved, e.reserved = l.reserved-e.reserved, 0
	return true
}

// unwritten is what the ledger does not have yet of an execution that is about to go on.
// The caller holds e.mu.
func (e *execution) unwritten(called []record.Call) (rs []record.Record) {
	if !e.recorded.begun {
		e.recorded.begun = true
		rs = append(rs, e.asBegun())
	}
	if entries := e.journal.unwritten(); len(entries)+len(called) > 0 {
		rs = append(rs, &record.Journal{Execution: e.call.Call, Entries: entries, Called: called})
	}
	return rs
}

func (e *execution) asBegun() *record.Begun {
	call := rpcpacket.Message{Header: e.call.Header, Pointers: e.call.Pointers, Payload: e.call.Payload, Trailer: e.call.Trailer}
	r := &record.Begun{
		Execution: e.call.Call, Caller: e.from.Addr().As16(), Incarnation: e.call.CallerIncarnation, Attempt: uint32(e.call.Attempt), Arguments: e.arguments,
		Run: e.node.self.Incarnation,
	}
	r.Lane, r.Number = direct.LaneOf(&e.call.Header)
	r.Call = call.Append(nil)
	return r
}
