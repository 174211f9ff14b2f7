package transport

import (
	"math"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// LedgerConfig says which ledger a run writes.
type LedgerConfig struct {
	// Name is the ledger's, Birth the birth number of the machine that keeps it.
	Name  [16]byte
	Birth uint64
	// Run is the run that opens it, Incarnation that of the node.
	Run, Incarnation uint32
	// MaxData is how many bytes of a chunk one datagram carries.
	MaxData int
}

// Ledger is a run of a writer: it opens the ledger, and appends what it was given then.
// Like an Endpoint it does no I/O, reads no clock and has one owner.
//
//	opening ──every copy of the newest epoch has said yes──▶ appending
//	   └────────── or one has refused for good ──────────────────┴──▶ failed
type Ledger struct {
	cfg      LedgerConfig
	appender *Appender // nil while opening
	waiting  []ledgerRecord
	mirror   mirror
	opened   map[uint8]packet.LedgerAnswer // by copy
	tries    uint
	due      time.Duration
	err      error
	send     []packet.LedgerRequest

	first, end uint64 // chunks of former runs: first … end-1
	reading    bool
	reader     *ledgerReader // nil unless reading, and before the ledger is open
}

// Bounds of the time between two requests to open a ledger: it is refused while the former
// run is not sealed, which the Gatekeeper does within milliseconds of a fence.
const (
	firstOpen = 2 * time.Millisecond
	maxOpen   = 256 * time.Millisecond
)

// grantPatience is for how many requests, some ten seconds, a ledger may be unknown: the
// Gatekeeper grants it when the node joins, or when the memory blade is back.
const grantPatience = 48

// NewLedger begins to open a ledger.
func NewLedger(now time.Duration, cfg LedgerConfig) *Ledger {
	l := &Ledger{cfg: cfg, opened: make(map[uint8]packet.LedgerAnswer)}
	l.open(now)
	return l
}

func (l *Ledger) open(now time.Duration) {
	l.send = append(l.send, packet.LedgerRequest{
		Op: packet.LedgerOpen, Ledger: l.cfg.Name, Run: l.cfg.Run, Incarnation: l.cfg.Incarnation, Birth: l.cfg.Birth,
	})
	l.due = now + min(firstOpen<<min(l.tries, 16), maxOpen)
	l.tries++
}

// Append adds a record and returns its number; the first one of the run has number 1. The
// bytes must not change until the record is settled.
func (l *Ledger) Append(now time.Duration, data []byte) uint64 {
	return l.add(now, ledgerRecord{data: data})
}

// Base adds a record that stands for all before it (Appender.Base).
func (l *Ledger) Base(now time.Duration, data []byte) uint64 {
	return l.add(now, ledgerRecord{data: data, base: true})
}

func (l *Ledger) add(now time.Duration, r ledgerRecord) uint64 {
	if l.appender != nil {
		return l.appender.add(now, r)
	}
	l.waiting = append(l.waiting, r)
	return uint64(len(l.waiting))
}

// Settled returns the number of the last record that every copy has, with all before it.
func (l *Ledger) Settled() uint64 {
	if l.appender == nil {
		return 0
	}
	return l.appender.Settled()
}

// Open reports whether the ledger is open.
func (l *Ledger) Open() bool { return l.appender != nil }

// Room is Appender.Room; unlimited before the ledger is open.
func (l *Ledger) Room() uint64 {
	if l.appender == nil {
		return math.MaxUint64
	}
	return l.appender.Room()
}

// Err returns why nothing is appended any more, nil while all is well: besides what an
// Appender says, NotFound if the machine does not have the ledger, PermissionDenied if it
// was granted to somebody else.
func (l *Ledger) Err() error {
	if l.appender != nil && l.err == nil {
		return l.appender.Err()
	}
	return l.err
}

// Busy reports whether an answer is awaited.
func (l *Ledger) Busy() bool {
	switch {
	case l.Err() != nil:
		return false
	case l.appender == nil, l.reader != nil && !l.reader.ready():
		return true
	}
	return l.appender.Busy()
}

// Wake is when Tick is to be called; it may be earlier than needed.
func (l *Ledger) Wake() time.Duration {
	switch {
	case l.err != nil:
		return Never
	case l.appender == nil:
		return l.due
	case l.reader != nil:
		return min(l.appender.Wake(), l.reader.wake())
	}
	return l.appender.Wake()
}

// Send returns the requests to be sent to the machine, and forgets that it was asked.
func (l *Ledger) Send() []packet.LedgerRequest {
	s := l.send
	l.send = nil
	if l.appender == nil {
		return s
	}
	for _, p := range l.appender.Send() {
		s = append(s, packet.LedgerRequest{
			Op: packet.LedgerAppend, Ledger: l.cfg.Name, Run: l.cfg.Run, Incarnation: l.cfg.Incarnation, Birth: l.cfg.Birth, Chunk: p.Chunk, Keep: p.Keep,
		})
	}
	if l.reader == nil {
		return s
	}
	for _, q := range l.reader.requests {
		q.Ledger, q.Run, q.Incarnation, q.Birth = l.cfg.Name, l.cfg.Run, l.cfg.Incarnation, l.cfg.Birth
		s = append(s, q)
	}
	l.reader.requests = nil
	return s
}

// Tick sends again what is due.
func (l *Ledger) Tick(now time.Duration) {
	switch {
	case l.err != nil:
	case l.appender != nil:
		l.appender.Tick(now)
		if l.reader != nil {
			l.reader.tick(now)
		}
	case now >= l.due:
		l.open(now)
	}
}

// Receive takes the answer of one copy.
func (l *Ledger) Receive(now time.Duration, a *packet.LedgerAnswer) {
	switch {
	case l.err != nil || a.Ledger != l.cfg.Name || a.Incarnation != l.cfg.Incarnation || a.Mirror.Members == 0:
	case a.Op == packet.LedgerOpen && l.appender == nil:
		l.answered(now, a)
	case a.Op == packet.LedgerAppend && l.appender != nil:
		l.appender.Receive(now, a)
	case a.Op == packet.LedgerRead:
		l.readAnswer(now, a)
	}
}

// answered takes the answer to a request to open the ledger.
func (l *Ledger) answered(now time.Duration, a *packet.LedgerAnswer) {
	switch {
	case a.Mirror.Epoch < l.mirror.epoch:
		return
	case a.Birth != l.cfg.Birth:
		l.fail(fault.NotFound, "the machine has birth number %#x, the ledger was granted at %#x: it is lost", a.Birth, l.cfg.Birth)
		return
	case a.Status == fault.Unavailable, a.Status == fault.Overloaded, a.Status == fault.NotFound && l.tries < grantPatience:
		return // asked again
	case a.Status != fault.OK:
		l.fail(a.Status, "copy %d refuses to open it for run %d; it knows run %d", a.Mirror.Copy, l.cfg.Run, a.Run)
		return
	case a.Mirror.Epoch > l.mirror.epoch:
		clear(l.opened)
	}
	l.mirror = mirror{epoch: a.Mirror.Epoch, members: a.Mirror.Members}
	l.opened[a.Mirror.Copy] = *a
	if len(l.opened) < int(a.Mirror.Members) {
		return
	}
	l.first, l.end = a.Chunk.Number, a.Next
	room := a.Room
	for _, o := range l.opened {
		if o.Next != a.Next {
			clear(l.opened) // the Gatekeeper has not made the copies equal yet
			return
		}
		l.first = max(l.first, o.Chunk.Number) // what one of them has dropped is not needed
		room = min(room, o.Room)
	}
	l.appender = NewAppender(AppenderConfig{MaxData: l.cfg.MaxData, Next: a.Next, Birth: l.cfg.Birth, Epoch: a.Mirror.Epoch, Members: int(a.Mirror.Members), Room: room})
	for _, r := range l.waiting {
		l.appender.add(now, r)
	}
	l.waiting = nil
	l.beginReading(now)
}

func (l *Ledger) fail(code fault.Code, format string, args ...any) {
	l.err = fault.Remote(code, "open the ledger", format, args...)
}
