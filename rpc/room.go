package rpc

import (
	"maps"
	"math"
	"net/netip"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/share"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Room in a ledger is a promise (docs/exactly-once.md, "Room in a ledger"). What an execution writes was promised to it before:
//
//	a call comes ──── room for begun, and for a short outcome ──▶ accepted     else dropped: it is sent again
//	journal, answer, one-way ───────── the rest is asked for ───▶ written      else the execution waits, and fails as no space
//	over, delivered, forgotten ── are in the weight of what is on record ─────▶ written, and wait for nobody
//
// All that is promised may be written, and after that a base still fits. Whoever gets no room sees to it that there will be
// some (makeRoom).

// room is the account of a ledger's space, in bytes as the memory machine counts them (dsmclient.Ledger.Cost). The ledger's
// mutex guards it.
type room struct {
	space    int          // of the ledger; 0 before it is open
	promised int          // what executions may still write
	first    *share.Nodes // of that, what was promised when calls were accepted, without their arguments: to whom
	written  int          // the records since the last base, and it
	changes  int          // of that, states and their changes
	// base is the number of a base that is not settled, 0 if there is none. beforeBase and beforeChanges are what written and
	// changes were when it was written.
	base                      uint64
	beforeBase, beforeChanges int
	committing                int           // changes of states that are about to be written
	folding                   bool          // one is about to be written as a base: nobody else writes a base
	squeezed                  time.Duration // when a base was last written for little gain, in node time
	exceeds                   *execution    // that has more than its owner's share leaves it; nil if none has
	freed                     uint64        // counts what has been forgotten
	changed                   chan struct{} // closed when there may be more room; nil if nobody waits
	// short is the shortage of all callers, shortOf that of one owner's.
	short   shortage
	shortOf map[share.Owner]shortage
}

// shortage is a time in which calls were dropped for want of room, and none was accepted: when the first one was dropped, and the last one, in node time.
// It is over when no copy has come for shortGap. The zero shortage is over.
type shortage struct{ since, last time.Duration }

// over reports whether those who were dropped have not come again.
func (s shortage) over(now time.Duration) bool { return s.last == 0 || now > s.last+shortGap }

// dropped is the shortage when another call is dropped.
func (s shortage) dropped(now time.Duration) shortage {
	if s.over(now) {
		s.since = now
	}
	return shortage{s.since, now}
}

// promise is what a ledger has promised to an execution, in bytes. The ledger's mutex guards it.
type promise struct {
	left       int  // what it may still write
	first      int  // what was promised when its call was accepted, without its arguments
	beyond     int  // what it has beyond its owner's share
	end        int  // of left, what its outcome takes
	committing int  // a change of state that is about to be written
	folds      bool // its outcome is about to be written within a base
}

const (
	// leastBase is how many bytes of records are not worth a base.
	leastBase = 8 << 10
	// squeezeEvery is how often a base is written that gains little.
	squeezeEvery = time.Second
	// unknownRoom is how much is promised before the ledger is open.
	unknownRoom = 32 << 10
	// endSize is how many bytes the record of a short outcome has at most, endAnswer of them the answer.
	endSize, endAnswer = 1536, 1024
	// recordSize is how many bytes a record has beside what it carries, at most.
	recordSize = 400
	// machinesSize is how many bytes the record has that says which memory machines an execution is about to change.
	machinesSize = 128
	// calledSize is what a call that an execution makes adds to its journal, and to its outcome.
	calledSize = 64
	// roomPatience is how long whoever waits for room waits while nothing is forgotten, mostPatience how long in all.
	roomPatience, mostPatience = 2 * time.Second, 30 * time.Second
	// shortPatience is how long a call is dropped for want of room while nobody gets some: then it ends as no space.
	shortPatience = 10 * time.Second
	// shortGap is after how long without a copy a shortage is over. A caller that waits sends one each two seconds at least, of which some may be lost.
	shortGap = 5 * time.Second
	// mostShort is how many owners' shortages are known. Those of others last as long as that of all.
	mostShort = 1 << 10
)

// cost is how much of the ledger's space a record of so many bytes takes.
func (l *ledger) cost(bytes int) int {
	if l.file == nil {
		return bytes + 128 + bytes/16
	}
	return l.file.Cost(bytes)
}

// look brings the account up to date; false before the ledger is open.
func (l lockedLedger) look() (s dsmclient.Standing, open bool) {
	r := &l.room
	if l.file == nil {
		return s, false
	}
	s = l.file.Standing()
	if r.space = int(s.Space); r.space == 0 { //nolint:gosec // far below
		return s, false
	}
	if r.base != 0 && s.Settled >= r.base {
		r.base, r.beforeBase, r.beforeChanges = 0, 0, 0
	}
	s.Room = min(s.Room, math.MaxInt/16)
	return s, true
}

// forCalls is how much of the space is for calls: their records, and a base of these. States have as much as the whole space
// for the same (limitOf), beyond it.
func (r *room) forCalls() int { return r.space - r.space/8 }

// left is how many bytes may still be promised: twice as many fit, since a base must fit beside the records.
func (l lockedLedger) left() int {
	r := &l.room
	if l.lost != nil || !l.placed() {
		return math.MaxInt / 16 // nothing is written
	}
	s, open := l.look()
	if !open {
		return unknownRoom - r.promised
	}
	w, free := l.table.State().Weight(), int(s.Room) //nolint:gosec // bounded
	calls := r.written - r.changes
	left := min(r.forCalls()-calls-l.cost(w.Calls), free+r.beforeBase-l.cost(w.Calls+w.States))/2 - r.promised
	if r.base != 0 { // until it is settled, what lies before it is there, too
		left = min(left, r.forCalls()-(r.beforeBase-r.beforeChanges)-calls-r.promised, free-r.promised)
	}
	return left
}

// shareOf is how much of the room an owner may have who is alone: six tenths, so that others find some.
func shareOf(room int) int {
	return int(share.RoomOf(0, 0, 0, uint64(max(room, 0)))) //nolint:gosec // not negative, and not more
}

// never reports whether so many bytes never can be promised, whatever is forgotten.
func (l lockedLedger) never(bytes int) bool {
	return l.lost == nil && l.room.space > 0 && bytes > shareOf((l.room.forCalls()-l.cost(recordSize))/2)
}

// weightOf is how many bytes a call has in the record that it has begun, with so many bytes of arguments.
func weightOf(m *rpcpacket.Message, arguments int) int {
	return arguments + len(m.Trailer) + rpcpacket.ListSize*len(m.Lists)
}

// firstOf is what is promised to a call with so many bytes (weightOf) when it is accepted: that it may say that it has begun,
// which memory machines it will change, and how it has ended.
func (l *ledger) firstOf(arguments int) int {
	return l.cost(arguments+recordSize) + l.cost(machinesSize) + l.cost(endSize)
}

// mayBegin reports whether another call of a caller may be accepted; half of the room is for what calls ask for later, and owners share the
// other half. An eighth of that is for calls that executions make: others that run may wait for them. left is what left returns.
func (l lockedLedger) mayBegin(caller netip.Addr, h *rpcpacket.Header, left int) bool {
	r := &l.room
	used, most := int(r.first.Used()), (left+r.promised)/2 //nolint:gosec // far below
	if h.Parent.IsZero() {
		most -= most / 8
	}
	r.first.SetFree(uint64(max(most-used, 0))) //nolint:gosec // not negative
	return used == 0 || used+l.firstOf(0) <= most && r.first.Room(caller) > 0
}

// admits charges the owner of a new call's caller with so many bytes, and reports whether it has its share of the room already. left is what left
// returns.
func (l lockedLedger) admits(caller netip.Addr, h *rpcpacket.Header, bytes, left int) bool {
	ok := l.table.Admits(caller.As16(), h, bytes, left)
	if l.table.Crowded() || l.room.first.Crowded() {
		l.node.sharers.seekOwner(caller)
	}
	return ok
}

// charge charges the owner of an execution's caller with so many bytes, unless it has its share of the room. left is what left
// returns.
func (l lockedLedger) charge(e *execution, bytes, left int) bool {
	if e.main != nil {
		return bytes <= shareOf(left)
	}
	return l.table.Charge(e.from.Addr().As16(), bytes, left)
}

// promiseFirst promises a call that is accepted what it needs at least.
func (l lockedLedger) promiseFirst(e *execution, arguments int) {
	p := &e.promise
	p.end, p.first = l.cost(endSize), l.firstOf(0)
	l.promises(e, l.firstOf(arguments))
	l.room.first.Force(e.from.Addr(), uint64(p.first)) //nolint:gosec // not negative
}

// promiseAgain promises an execution that is run again what it had at least: that is not asked for, since it is accepted.
func (l lockedLedger) promiseAgain(e *execution) {
	e.promise.end = l.cost(endSize + calledSize*len(e.recorded.called))
	l.promises(e, e.promise.end)
}

// promises adds to what an execution may write.
func (l lockedLedger) promises(e *execution, bytes int) {
	e.promise.left += bytes
	l.room.promised += bytes
	l.table.Promises(e.call.Call, bytes)
}

// takes notes that an execution has written so many bytes.
func (l lockedLedger) takes(e *execution, bytes int) { l.promises(e, -min(bytes, e.promise.left)) }

// release gives back what is promised to an execution that writes nothing more.
func (l lockedLedger) release(e *execution) {
	p, r := &e.promise, &l.room
	l.promises(e, -p.left)
	r.first.Release(e.from.Addr(), uint64(p.first)) //nolint:gosec // not negative
	r.committing -= p.committing
	if p.folds {
		r.folding = false
	}
	if r.exceeds == e {
		r.exceeds = nil
	}
	*p = promise{}
	l.wakeWaiting()
}

// wakeWaiting has all look again that wait for room.
func (l lockedLedger) wakeWaiting() {
	if l.room.changed != nil {
		close(l.room.changed)
		l.room.changed = nil
	}
}

// hasFreed notes that something is forgotten.
func (l lockedLedger) hasFreed() {
	l.room.freed++
	l.wakeWaiting()
}

// garbage is how many bytes of the ledger a base would give back.
func (l lockedLedger) garbage() (bytes, base int) {
	w := l.table.State().Weight()
	base = l.cost(w.Calls + w.States)
	return l.room.written - base, base
}

// due reports whether a base is worth its bytes.
func (l lockedLedger) due() bool {
	garbage, base := l.garbage()
	return garbage > base+leastBase
}

// baseFits reports whether a base can be written now: if none is on its way, as good as always, since that is part of the promise.
func (l lockedLedger) baseFits() bool {
	s, open := l.look()
	_, base := l.garbage()
	return open && l.room.base == 0 && !l.room.folding && base+l.room.promised <= int(s.Room)+l.room.space/8 //nolint:gosec // bounded
}

// makeRoom writes a base for want of room, if that gives some.
func (l lockedLedger) makeRoom() {
	garbage, base := l.garbage()
	now := l.node.pulse.now()
	little := garbage <= base/4+leastBase/2
	if l.lost != nil || garbage <= 0 || little && now < l.room.squeezed+squeezeEvery || !l.baseFits() {
		return
	}
	if little {
		l.room.squeezed = now
	}
	l.last = max(l.last, l.base(0))
}

// base writes what all records add up to, which makes room of those before. The last records that were applied, so many, are
// not written but in the base.
func (l lockedLedger) base(unwritten int) uint64 {
	l.table.Unwritten(unwritten)
	state, r := l.table.State(), &l.room
	base := state.Base()
	b := record.Append(nil, base)
	l.apply(base)
	r.beforeBase, r.beforeChanges = r.written, r.changes
	r.written, r.changes = l.cost(len(b)), l.cost(state.Weight().States)
	r.base = l.file.Base(b)
	return r.base
}

// dropped notes that a call was dropped for want of room, of its owner's share of that if it is over its quota, and sees
// to it that there will be some. It reports whether that has gone on for too long.
func (l lockedLedger) dropped(caller netip.Addr, m *rpcpacket.Message, overQuota bool) (tooLong bool) {
	r, now := &l.room, max(l.node.pulse.now(), 1)
	if passed := l.table.Passed(caller.As16(), &m.Header); passed != nil {
		l.add(passed) // it asks for its former answers no more
	}
	l.makeRoom()
	since := r.isShort(l.node.sharers.ownerOf(caller), overQuota, now)
	left := l.left() + r.space/16
	return now >= since+shortPatience && l.allSettled() && l.firstOf(0) <= left && (!overQuota || l.mayBegin(caller, &m.Header, left))
}

// isShort notes that a call of an owner was dropped, and returns since when the owner's calls have been; if the owner is not over its quota, those of
// all owners, too.
func (r *room) isShort(owner share.Owner, overQuota bool, now time.Duration) (since time.Duration) {
	r.short = r.short.dropped(now)
	own, known := r.shortOf[owner]
	if !known && len(r.shortOf) >= mostShort {
		maps.DeleteFunc(r.shortOf, func(_ share.Owner, s shortage) bool { return s.over(now) })
	}
	if own = own.dropped(now); known || len(r.shortOf) < mostShort {
		if r.shortOf == nil {
			r.shortOf = map[share.Owner]shortage{}
		}
		r.shortOf[owner] = own
	} else {
		own = r.short
	}
	if overQuota {
		return own.since
	}
	return max(own.since, r.short.since)
}

// progresses notes that a call of a caller was accepted, or that it has something forgotten.
func (l lockedLedger) progresses(caller netip.Addr) {
	if l.room.short = (shortage{}); len(l.room.shortOf) > 0 {
		delete(l.room.shortOf, l.node.sharers.ownerOf(caller))
	}
}

// allSettled reports whether memory has all records.
func (l lockedLedger) allSettled() bool {
	s, open := l.look()
	return open && s.Settled >= l.last
}

// reserve promises an execution so many bytes more. It waits for a while, and reports whether there is room.
func (l *ledger) reserve(e *execution, bytes int) bool {
	return l.promised(e, bytes, func(l lockedLedger, left int) bool { return l.charge(e, bytes, left) })
}

// promised is reserve if a function, which is called with what is left, has charged somebody.
func (l *ledger) promised(e *execution, bytes int, charged func(l lockedLedger, left int) bool) bool {
	return l.awaitRoom(e, func(l lockedLedger, left int) bool {
		if !charged(l, left) {
			return false
		}
		l.promises(e, bytes)
		return true
	}, func(l lockedLedger) bool { return l.never(bytes) })
}

// mayExceed reports whether an execution may have so many bytes beyond its owner's share for its journal, which goes when it is done, and notes
// that it has them: one execution at a time may have a sixteenth of the space. If all that an owner's calls have is promised to calls that
// wait for more, one after the other comes to its end. left is what left returns.
func (l lockedLedger) mayExceed(e *execution, bytes, left int) bool {
	r, p := &l.room, &e.promise
	if r.exceeds != nil && r.exceeds != e || bytes > left || p.beyond+bytes > r.space/16 {
		return false
	}
	r.exceeds = e
	p.beyond += bytes
	return true
}

// mayTake is reserve for whoever does not wait.
func (l *ledger) mayTake(e *execution, bytes int) bool {
	b := l.lock()
	defer b.unlock()
	bytes = l.cost(bytes)
	if !b.charge(e, bytes, b.left()) {
		return false
	}
	b.promises(e, bytes)
	return true
}

// awaitRoom waits until a function, which is called with what is left, has taken what it needs, and reports whether it
// has. It gives up when nothing is forgotten for a while, and at once if never says so. The time for which memory is away does not
// count.
func (l *ledger) awaitRoom(e *execution, take func(l lockedLedger, left int) bool, never func(lockedLedger) bool) bool {
	n := l.node
	try := func() (ok, open bool) {
		b := l.lock()
		defer b.unlock()
		switch {
		case !l.placed():
			return true, true // nothing is written
		case b.openNow() != nil:
			return false, true
		}
		_, open = b.look()
		return open && take(b, b.left()), open
	}
	if ok, open := try(); ok || open && l.givesUp(never) {
		return ok
	}
	e.promote()
	if e.export != nil { // those that wait for its slot may be what gives room
		e.yield()
		defer e.resume()
	}
	if !l.awaitOpen() {
		return false
	}
	timer := time.NewTimer(roomPatience)
	defer timer.Stop()
	for waited, all := time.Duration(0), time.Duration(0); waited < roomPatience && all < mostPatience; {
		b := l.lock()
		if passed := l.table.Passed(e.from.Addr().As16(), &e.call.Header); passed != nil {
			b.add(passed)
		}
		b.makeRoom()
		last := l.last
		b.unlock()
		if !l.settle(last) || l.givesUp(never) {
			return false
		}
		if ok, _ := try(); ok {
			return true
		}
		l.mu.Lock()
		if l.room.changed == nil {
			l.room.changed = make(chan struct{})
		}
		changed, freed := l.room.changed, l.room.freed
		l.mu.Unlock()
		from := n.pulse.now()
		timer.Reset(squeezeEvery / 4)
		select {
		case <-changed:
		case <-timer.C:
		case <-n.life.base.Done():
			return false
		}
		took := n.pulse.now() - from
		waited, all = waited+took, all+took
		l.mu.Lock()
		if l.room.freed != freed {
			waited = 0
		}
		l.mu.Unlock()
	}
	return false
}

// awaitOpen waits until the ledger is open. It reports false if it never will be: then it is lost.
func (l *ledger) awaitOpen() bool {
	err := l.file.Wait(l.node.life.base, 0)
	if err != nil {
		b := l.lock()
		defer b.unlock()
		if l.node.life.base.Err() == nil {
			b.lose(err)
		} else if l.lost == nil {
			l.lost = err
		}
	}
	return err == nil
}

// givesUp reports whether there never will be room, or the ledger is lost.
func (l *ledger) givesUp(never func(lockedLedger) bool) bool {
	b := l.lock()
	defer b.unlock()
	return l.lost != nil || never(b)
}

// isLost reports whether nothing is written any more.
func (l *ledger) isLost() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost != nil
}

// openNow has the ledger opened, unless it is lost.
func (l lockedLedger) openNow() error {
	if l.lost == nil {
		if err := l.open(); err != nil {
			l.lose(err)
		}
	}
	return l.lost
}

// bytesLeft is how many bytes new calls may take, for people; false if the node has written
// nothing yet, or writes nothing any more.
func (l lockedLedger) bytesLeft() (uint64, bool) {
	if _, open := l.look(); !open || l.lost != nil {
		return 0, false
	}
	return uint64(max(l.left(), 0)), true //nolint:gosec // not negative
}

// keeps is how many bytes the ledger has of the state that an execution changes: its service's, or a durable main's own.
func (l lockedLedger) keeps(e *execution) int {
	if e.main != nil {
		return l.table.State().Execution(e.call.Call).Size()
	}
	was, _ := l.table.State().Service(e.export.hash)
	return was.Size()
}

// limitOf is how many bytes the state may have that an execution changes: with all other states of the node, half of the ledger. It
// waits until the ledger is open.
func (l *ledger) limitOf(e *execution) (int, error) {
	b := l.lock()
	defer b.unlock()
	if b.openNow() != nil {
		return 0, l.node.life.whyEnded()
	}
	if _, open := b.look(); !open {
		b.unlock()
		open = l.awaitOpen()
		if b = l.lock(); !open {
			return 0, l.node.life.whyEnded()
		}
		b.look()
	}
	return l.room.space/2 - (l.table.State().Sizes() - b.keeps(e)), nil
}

// tooLarge is why a state is not kept that has more bytes than limitOf.
func tooLarge(op, whose string, size, limit int) *Error {
	return fault.New(NoSpace, op, "the %s's state would have %d bytes, and may have %d: the states of a node may take half of its ledger; keep large data in distributed memory, or give the ledgers more room (bifrost memory --ledger-space)",
		whose, size, limit)
}

// awaitState waits until a change of a state, of so many bytes, may be written, after which the state has size bytes: beside what is
// written, or in the place of it within a base. Calls take no room from states.
func (l *ledger) awaitState(e *execution, change, size int) bool {
	return l.awaitRoom(e, func(l lockedLedger, _ int) bool {
		s, _ := l.look()
		r, p, w := &l.room, &e.promise, l.table.State().Weight()
		cost, states, free := l.cost(change), l.cost(w.States+size-l.keeps(e)), int(s.Room) //nolint:gosec // bounded
		switch {
		case r.changes+r.committing+cost+states <= r.space && r.promised+cost <= free:
			p.committing = cost
			r.committing += cost
		case r.base == 0 && !r.folding && l.cost(w.Calls)+states+r.promised <= free+r.space/8:
			p.folds, r.folding = true, true
		default:
			return false
		}
		return true
	}, func(lockedLedger) bool { return false })
}

// tryWrite writes what the ledger does not have yet of an execution that is about to go on, to make a call if child is one, and to change
// memory machines. If more is needed for that than was promised, it writes nothing, and returns how much is missing. It reports false if
// the execution has not begun and its call slot has gone on: nobody waits for it, and a ledger in which it begins now could not be
// read. The caller holds e.mu.
func (e *execution) tryWrite(child record.Call, machines ...uint8) (missing int, written bool) {
	l, p := e.node.ledger, &e.promise
	b := l.lock()
	defer b.unlock()
	var called []record.Call
	if !child.ID.IsZero() {
		if last, known := e.lastTry(child.ID); !known || last != child {
			called = []record.Call{child}
		}
	}
	need, end := 0, calledSize*len(called)
	if e.main != nil {
		end += max(0, leastMainRoom-p.end)
	}
	if !e.recorded.begun {
		need += l.cost(recordSize + weightOf(&e.call, len(e.call.Payload)))
	}
	if n := e.journal.size() + calledSize*len(called); n > 0 {
		need += l.cost(recordSize + n)
	}
	if len(machines) > 0 {
		need += l.cost(machinesSize)
	}
	if need > 0 && l.lost == nil && l.placed() && need+end > p.left-p.end {
		return need + end - (p.left - p.end), false
	}
	rs := e.unwritten(called)
	if len(machines) > 0 {
		rs = append(rs, &record.Journal{Execution: e.call.Call, Machines: machines})
	}
	if len(rs) == 0 {
		return 0, true
	}
	if _, begins := rs[0].(*record.Begun); begins && l.table.Obsolete(e.from.Addr().As16(), &e.call.Header) {
		e.recorded.begun = false
		return 0, false
	}
	e.recorded.called = append(e.recorded.called, called...)
	before := l.appended
	e.recorded.last = b.add(rs...)
	b.takes(e, l.appended-before)
	p.end += end
	return 0, true
}

// writeDown is tryWrite, and waits for the room that is missing. If it gets none, the run of the execution ends: all that it does
// from then on fails as no space.
func (e *execution) writeDown(child record.Call, machines ...uint8) bool {
	for {
		e.mu.Lock()
		missing, written := e.tryWrite(child, machines...)
		e.mu.Unlock()
		if missing == 0 {
			return written
		}
		if !e.needsRoom(missing, "for what it does next") {
			return false
		}
	}
}

// needsRoom has so many bytes more promised. It reports false if there are none, and the run of the execution has ended, or if the node
// has.
func (e *execution) needsRoom(bytes int, what string) bool {
	l := e.node.ledger
	charged := func(l lockedLedger, left int) bool { return l.charge(e, bytes, left) || l.mayExceed(e, bytes, left) }
	return l.promised(e, bytes, charged) || e.hasNoRoom(what)
}

// noRoom is why an execution was promised nothing: there is no room, or the node has ended meanwhile.
func (n *Node) noRoom(op, format string, args ...any) *Error {
	if n.life.base.Err() != nil || n.ledger.isLost() {
		return codedIn(coded(op, n.life.whyEnded()))
	}
	return fault.New(NoSpace, op, format, args...)
}

// hasNoRoom ends the run of an execution for want of room. It reports false.
func (e *execution) hasNoRoom(what string) bool {
	remedy, op := "a call has to do less, or to keep large data in distributed memory", "call"
	if e.main != nil {
		remedy, op = "the main has to make checkpoints more often, or have a smaller state", "main"
	}
	if n := e.node; n.life.base.Err() == nil && !n.ledger.isLost() {
		e.journal.end(fault.New(NoSpace, op, "the ledger of node %s has no room %s: %s; or give the ledgers more room (bifrost memory --ledger-space)",
			n.self.Name, what, remedy))
	}
	return false
}
