package rpc

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/share"
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
	// brought are answers to calls of executions that nobody has waited for, with what they hand over; heard are calls that were given up, and what they have
	// handed over is being freed. mu guards them.
	brought map[rpcpacket.ID]rpcpacket.Message
	heard   map[rpcpacket.ID]record.Call
	// denied are calls whose answers the switch did not let hand their results over, which are to be freed; mu guards them.
	denied map[rpcpacket.ID]bool
	// place is where it is; nil while no memory machine is in service: then nothing is written. Granted is closed when it
	// is known.
	place   atomic.Pointer[control.LedgerPlace]
	granted chan struct{}

	mu    sync.Mutex
	file  *dsmclient.Ledger // nil before the first record
	lost  error             // nothing is written any more
	table *direct.Table
	last  uint64 // the last record's number
	room  room
	// appended is the cost of all records so far.
	appended int
	// settling are the calls that are done, and whose record is not settled yet.
	settling map[rpcpacket.ID]bool
	resumes  resumption
	// forgets is when the next words about what is to be forgotten leave; see forget.go.
	forgets forgets
	frees   frees
	// hands has the durable mains that wait for what they hand over; see awaitTaken.
	hands map[rpcpacket.ID]chan struct{}
}

// lockedLedger is the ledger for whoever has its mutex. After unlock it is no ledger any more, and whoever uses it panics.
type lockedLedger struct{ *ledger }

// lock takes the mutex.
func (l *ledger) lock() lockedLedger {
	l.mu.Lock()
	return lockedLedger{l}
}

// unlock gives the mutex back.
func (l *lockedLedger) unlock() {
	mu := &l.mu
	l.ledger = nil
	mu.Unlock()
}

// newLedger returns the ledger of a node.
func newLedger(n *Node) *ledger {
	l := &ledger{node: n, granted: make(chan struct{}), table: direct.New(new(record.State), n.sharers.ownerOf), settling: map[rpcpacket.ID]bool{}}
	l.room.first = share.NewNodes(0, n.sharers.ownerOf)
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
	case <-n.life.done:
		return n.life.failure()
	case <-ctx.Done():
		return &Error{Code: fault.CodeOf(ctx.Err()), Op: op, Msg: "no memory blade is in service that could keep the node's ledger (bifrost memory)", Err: ctx.Err()}
	}
}

// seekLedger gets a ledger for a node that has joined when no memory machine was in service.
func (n *Node) seekLedger() {
	for {
		if r := n.session.Rack(); len(r.Memories)+len(r.Others) > 0 {
			place, err := n.session.Ledger(n.life.base)
			if err == nil && place != nil {
				n.ledger.grant(place)
				n.log.Info("rpc: the node has a ledger now", "node", n.self.Name)
				return
			}
		}
		select {
		case <-time.After(servingLifetime):
		case <-n.life.base.Done():
			return
		}
	}
}

// read takes in what earlier incarnations of the node have written. The node does nothing
// before.
func (l *ledger) read(ctx context.Context) error {
	if !l.placed() || l.node.self.Before == 0 {
		return nil
	}
	b := l.lock()
	err := b.open()
	file := l.file
	b.unlock()
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
	l.table = direct.New(state, l.node.sharers.ownerOf)
	for _, b := range records {
		l.room.written += l.cost(len(b))
	}
	l.room.changes = min(l.room.written, l.cost(state.Weight().States))
	return nil
}

// open begins to open the ledger.
func (l lockedLedger) open() error {
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

// add adds records, and returns the number of the last one. Those that follow from them are added, too.
func (l lockedLedger) add(rs ...record.Record) (n uint64) { return l.write(false, rs...) }

// write is add; folded says that a base is written in the place of the records, if it can be.
func (l lockedLedger) write(folded bool, rs ...record.Record) (n uint64) {
	if l.lost != nil || !l.placed() || len(rs) == 0 {
		return 0
	}
	if err := l.open(); err != nil {
		l.lose(err)
		return 0
	}
	var all [][]byte
	cost, changes := 0, 0
	for len(rs) > 0 {
		r := rs[0]
		b := record.Append(make([]byte, 0, usualRecord), r)
		switch r := r.(type) {
		case *record.Done:
			changes += len(r.State)
		case *record.Checkpoint:
			changes += len(r.State)
		}
		cost += l.cost(len(b))
		rs = append(rs[1:len(rs):len(rs)], l.apply(r)...)
		all = append(all, b)
	}
	l.appended += cost
	l.room.written += cost
	l.room.changes += changes
	due := l.due()
	if folded {
		l.room.folding = false // this is the base that others have waited for
	}
	if (folded || due && cost > l.room.written/2) && l.baseFits() {
		l.room.written -= cost // they are not there: the base stands for them
		l.room.changes -= changes
		l.last = max(l.last, l.base(len(all)))
		return l.last
	}
	n = l.file.Append(all...)
	l.last = max(l.last, n)
	if due && l.baseFits() {
		l.last = max(l.last, l.base(0))
	}
	return n
}

// apply keeps what the records add up to. It returns records that are to follow.
func (l lockedLedger) apply(r record.Record) []record.Record {
	weight := l.table.State().Weight()
	follow, err := l.table.Apply(r)
	if l.table.State().Weight().Calls < weight.Calls {
		l.hasFreed()
	}
	if err != nil {
		l.node.log.Error("rpc: a ledger's record does not follow from those before it", "node", l.node.self.Name, "err", err)
	}
	if l.table.Owes() {
		l.forgets.hurry(l.node)
	}
	if f, ok := r.(*record.Forgotten); ok && (len(f.Callers) > 0 || len(l.node.fates.waiting) > 0) {
		l.heedFates()
	}
	l.freeDue()
	return follow
}

// lose gives the ledger up.
func (l lockedLedger) lose(why error) {
	if l.lost != nil {
		return
	}
	l.lost = why
	l.node.log.Warn("rpc: the node's ledger is lost", "node", l.node.self.Name, "err", why)
	err := &Error{Code: Unavailable, Op: "node " + l.node.self.Name, Msg: "the node's ledger is lost", Err: why}
	l.node.life.die(err) // at once: executions see that the ledger is lost, and what they come to says nothing about them
	go l.node.resign(err)
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
	b := l.lock()
	file, lost := l.file, l.lost
	b.unlock()
	if lost != nil || n == 0 {
		return lost == nil // nothing is to be settled
	}
	err := file.Wait(l.node.life.base, n)
	if err == nil {
		return true
	}
	if l.node.life.base.Err() != nil {
		return false // the node has ended
	}
	b = l.lock()
	defer b.unlock()
	b.lose(err)
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

// opened reports whether the ledger is open, and has it opened.
func (l lockedLedger) opened() bool {
	if l.lost == nil {
		err := l.open()
		if err == nil {
			_, err = l.file.Settled() // nobody waits for a record, who would learn of it
		}
		if err != nil && l.node.life.base.Err() == nil {
			l.lose(err)
		}
	}
	if l.lost != nil {
		return true
	}
	_, open := l.look()
	return open
}

// recorded is what the ledger has of an execution. The execution's mutex guards it.
type recorded struct {
	begun  bool
	last   uint64 // the execution's last record
	called []record.Call
	// tries finds the last try of a call in called, of which so many are indexed: none while there are at most fewCalls.
	tries   map[rpcpacket.ID]int
	indexed int
	sent    []direct.Item // of them, those that this incarnation has sent
	// open are those that this run has no answer to. A former run may have made some that this one does not make.
	open []rpcpacket.ID
	// refused are those that a node has refused for good.
	refused []record.Call
	// machines are the memory machines that the execution may have written to.
	machines []uint8
	// foreseen are those that the ledger has although it has not written to them yet.
	foreseen []uint8
}

// fewCalls is how many calls of an execution are looked through sooner than indexed.
const fewCalls = 16

// durable makes sure, before an execution does what others see and rollback does not
// undo, that the ledger has it as begun, with what it has journalled so far. A child is
// the exactly-once call that is about to leave, if any. It reports whether the execution
// may go on.
func (e *execution) durable(child record.Call) bool {
	l := e.node.ledger
	if e.journal == nil {
		return true
	}
	e.promote()
	if !e.writeDown(child) {
		return false
	}
	e.mu.Lock()
	last := e.recorded.last
	e.mu.Unlock()
	return l.settle(last)
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
	call := rpcpacket.Message{Header: e.call.Header, Lists: e.call.Lists, Payload: e.call.Payload, Trailer: e.call.Trailer}
	r := &record.Begun{
		Execution: e.call.Call, Caller: e.from.Addr().As16(), Incarnation: e.call.CallerIncarnation, Attempt: uint32(e.call.Attempt), Arguments: e.arguments,
		Run: e.node.self.Incarnation, Slot: e.call.Slot, Number: e.call.Number,
	}
	r.Call = call.Append(nil)
	return r
}

// whenSettled does something when all records so far are settled: at once if they are. If the ledger is lost before, it does nothing.
func (l *ledger) whenSettled(do func()) {
	last, settled := l.unsettled()
	if settled {
		do()
		return
	}
	go func() {
		if l.settle(last) {
			do()
		}
	}()
}
