package rpc

import (
	"context"
	"math"
	"time"

	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

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
