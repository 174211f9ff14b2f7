package transport

import (
	"bytes"
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/copies"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/pace"
	"github.com/bifrost-rack/bifrost/internal/stream"
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
	// Limits say when chunks and requests are sent again.
	Limits Limits
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
	opened   copies.Answers[dsmpacket.LedgerAnswer]
	tries    int
	due      time.Duration
	err      error
	send     []dsmpacket.LedgerRequest

	space      uint64 // how many bytes of records the ledger may take
	first, end uint64 // chunks of former runs: first … end-1
	reading    bool
	reader     *ledgerReader // nil unless reading, and before the ledger is open
}

// askPauses are those between two requests to open a ledger, which is refused while the former run is not sealed (the
// Gatekeeper does that within milliseconds of a fence), and between two sendings of a Verdict.
var askPauses = pace.Pauses{First: 2 * time.Millisecond, Most: 256 * time.Millisecond}

// grantPatience is for how many requests, some ten seconds, a ledger may be unknown: the
// Gatekeeper grants it when the node joins, or when the memory blade is back.
const grantPatience = 48

// NewLedger begins to open a ledger.
func NewLedger(now time.Duration, cfg LedgerConfig) *Ledger {
	cfg.Limits = cfg.Limits.withDefaults()
	l := &Ledger{cfg: cfg}
	l.open(now)
	return l
}

func (l *Ledger) open(now time.Duration) {
	l.send = append(l.send, dsmpacket.LedgerRequest{
		Op: dsmpacket.LedgerOpen, Ledger: l.cfg.Name, Run: l.cfg.Run, Incarnation: l.cfg.Incarnation, Birth: l.cfg.Birth,
	})
	l.due = now + askPauses.After(l.tries)
	l.tries++
}

// Append adds records, which share chunks, and returns the number of the last one; the first one
// of the run has number 1. The bytes must not change until the records are settled.
func (l *Ledger) Append(now time.Duration, records ...[]byte) uint64 {
	return l.add(now, ledgerRecords(records)...)
}

// Base adds a record that stands for all records before it. Once it is settled, the
// memory servers are told that they need not keep what lies before it.
func (l *Ledger) Base(now time.Duration, data []byte) uint64 {
	return l.add(now, ledgerRecord{data: data, base: true})
}

func (l *Ledger) add(now time.Duration, rs ...ledgerRecord) uint64 {
	if l.appender != nil {
		return l.appender.add(now, rs...)
	}
	l.waiting = append(l.waiting, rs...)
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

// Space is how many bytes of records the ledger may take, as its memory machine says; 0 before the ledger is open.
func (l *Ledger) Space() uint64 { return l.space }

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
func (l *Ledger) Send() []dsmpacket.LedgerRequest {
	s := l.send
	l.send = nil
	if l.appender == nil {
		return s
	}
	for _, p := range l.appender.Send() {
		s = append(s, dsmpacket.LedgerRequest{
			Op: dsmpacket.LedgerAppend, Ledger: l.cfg.Name, Run: l.cfg.Run, Incarnation: l.cfg.Incarnation, Birth: l.cfg.Birth, Chunk: p.Chunk, Keep: p.Keep,
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
func (l *Ledger) Receive(now time.Duration, a *dsmpacket.LedgerAnswer) {
	switch {
	case l.err != nil || a.Ledger != l.cfg.Name || a.Incarnation != l.cfg.Incarnation || a.Mirror.Members == 0:
	case a.Op == dsmpacket.LedgerOpen && l.appender == nil:
		l.answered(now, a)
	case a.Op == dsmpacket.LedgerAppend && l.appender != nil:
		l.appender.Receive(now, a)
	case a.Op == dsmpacket.LedgerRead:
		l.readAnswer(now, a)
	}
}

// answered takes the answer to a request to open the ledger.
func (l *Ledger) answered(now time.Duration, a *dsmpacket.LedgerAnswer) {
	switch {
	case l.opened.Old(a.Mirror):
		return
	case a.Birth != l.cfg.Birth:
		l.fail(fault.NotFound, "the machine has birth number %#x, the ledger was granted at %#x: it is lost", a.Birth, l.cfg.Birth)
		return
	case a.Status == fault.Unavailable, a.Status == fault.Overloaded, a.Status == fault.NotFound && l.tries < grantPatience:
		return // asked again
	case a.Status != fault.OK:
		l.fail(a.Status, "copy %d refuses to open it for run %d; it knows run %d", a.Mirror.Copy, l.cfg.Run, a.Run)
		return
	}
	said, _ := l.opened.From(a.Mirror)
	*said = *a
	if !l.opened.All() {
		return
	}
	l.first, l.end = a.Chunk.Number, a.Next
	room := a.Room
	l.space = a.Space
	for o := range l.opened.Said() {
		if o.Next != a.Next {
			l.opened.Again() // the Gatekeeper has not made the copies equal yet
			return
		}
		l.first = max(l.first, o.Chunk.Number) // what one of them has dropped is not needed
		room = min(room, o.Room)
		l.space = min(l.space, o.Space)
	}
	l.appender = NewAppender(AppenderConfig{MaxData: l.cfg.MaxData, Next: a.Next, Birth: l.cfg.Birth, Mirror: a.Mirror, Room: room, Limits: l.cfg.Limits})
	l.appender.add(now, l.waiting...)
	l.waiting = nil
	l.beginReading(now)
}

func (l *Ledger) fail(code fault.Code, format string, args ...any) {
	l.err = fault.Remote(code, "open the ledger", format, args...)
}

// ledgerReader reads a range of a ledger's chunks in order. A group of chunks is asked for
// with one request, and each chunk comes in a datagram of its own, from either copy: the
// copies are equal in the range.
type ledgerReader struct {
	next, end uint64                     // chunks next … end-1 have not been taken yet
	window    uint64                     // how many chunks are asked for and not taken at most
	got       map[uint64]dsmpacket.Chunk // of those
	flight    stream.Flight[struct{}]    // the others of them
	requests  []dsmpacket.LedgerRequest
	err       error
}

// maxReadWindow is how many chunks a reader has under way at most. There are as many
// only if chunks are small.
const maxReadWindow = 64

func newLedgerReader(now time.Duration, first, end uint64, maxData int, rtt pace.Timeout) *ledgerReader {
	window := max(1, min(maxReadWindow, DefaultWindow/2/(maxData+overhead))) // both copies answer
	r := &ledgerReader{
		next: first, end: end, window: uint64(window), got: make(map[uint64]dsmpacket.Chunk),
		flight: stream.NewFlight[struct{}](first, stream.NewWindow(window, window, window, 1), rtt),
	}
	r.ask(now)
	return r
}

// group is how many chunks one request asks for.
func (r *ledgerReader) group() uint64 {
	return uint64(min(max(1, r.flight.Window.Size()/2), 1+dsmpacket.MaxMore)) //nolint:gosec // not negative
}

// ask asks for what is lost, and for the next groups as far as the window goes.
func (r *ledgerReader) ask(now time.Duration) {
	for number := range r.flight.Again(now) {
		r.request(number)
	}
	for {
		from := r.flight.Next()
		n := min(r.group(), r.end-from)
		if n == 0 || from+n > r.next+r.window || !r.flight.Window.Fits(r.flight.Out(), int(n)) { //nolint:gosec // few
			return
		}
		for range n {
			r.request(r.flight.Send(now, 1, struct{}{}))
		}
	}
}

// request asks for a chunk, together with the one before it if there is room in its group.
func (r *ledgerReader) request(number uint64) {
	if last := len(r.requests) - 1; last >= 0 {
		if q := &r.requests[last]; q.Chunk.Number+uint64(q.More)+1 == number && uint64(q.More)+1 < r.group() {
			q.More, q.Size = q.More+1, q.Size+1<<16
			return
		}
	}
	r.requests = append(r.requests, dsmpacket.LedgerRequest{Op: dsmpacket.LedgerRead, Chunk: dsmpacket.Chunk{Number: number}, Size: 1 << 16})
}

// done reports whether all chunks have been taken.
func (r *ledgerReader) done() bool { return r.next >= r.end }

// ready reports whether there is something to take, or nothing more will come.
func (r *ledgerReader) ready() bool {
	_, ok := r.got[r.next]
	return ok || r.done() || r.err != nil
}

func (r *ledgerReader) wake() time.Duration {
	if due, ok := r.flight.Due(); ok && r.err == nil {
		return due
	}
	return Never
}

func (r *ledgerReader) tick(now time.Duration) {
	if now >= r.wake() {
		r.flight.Tick(now)
		r.ask(now)
	}
}

// receive takes a chunk.
func (r *ledgerReader) receive(now time.Duration, c dsmpacket.Chunk) {
	if r.flight.Came(now, c.Number) {
		c.Data = bytes.Clone(c.Data)
		r.got[c.Number] = c
		r.ask(now)
	}
}

// take returns the chunks that are due and have come, and asks for more.
func (r *ledgerReader) take(now time.Duration) (chunks []dsmpacket.Chunk) {
	for c, ok := r.got[r.next]; ok; c, ok = r.got[r.next] {
		chunks = append(chunks, c)
		delete(r.got, r.next)
		r.next++
	}
	r.ask(now)
	return chunks
}

// Read begins to read the chunks that former runs have left, as soon as the ledger is
// open. Take returns them.
func (l *Ledger) Read(now time.Duration) {
	l.reading = true
	l.beginReading(now)
}

func (l *Ledger) beginReading(now time.Duration) {
	if l.reading && l.appender != nil {
		l.reader = newLedgerReader(now, l.first, l.end, l.cfg.MaxData, l.cfg.Limits.timeout())
	}
}

// Readable reports whether Take has something to return, or nothing more will come.
func (l *Ledger) Readable() bool {
	return l.err != nil || l.reader != nil && l.reader.ready()
}

// Take returns the next chunks in order, none if none have come, and whether those were
// the last. The error says why nothing more will come: NotFound if the chunks are not kept
// any more, or what Err says.
func (l *Ledger) Take(now time.Duration) (chunks []dsmpacket.Chunk, last bool, err error) {
	r := l.reader
	switch {
	case l.err != nil:
		return nil, false, l.err
	case r == nil:
		return nil, false, nil
	case r.err == nil:
		chunks = r.take(now)
	}
	return chunks, r.done(), r.err
}

// StopReading ends Read, if it has not come to its end.
func (l *Ledger) StopReading() { l.reading, l.reader = false, nil }

// readAnswer takes the answer to a read. A copy that has not got the chunk, or is not the
// one that was opened, tells nothing while there is another one.
func (l *Ledger) readAnswer(now time.Duration, a *dsmpacket.LedgerAnswer) {
	r := l.reader
	switch {
	case r == nil || a.Chunk.Number < r.next || a.Chunk.Number >= r.flight.Next() || l.opened.Old(a.Mirror):
	case a.Birth != l.cfg.Birth:
		if a.Mirror.Members == 1 {
			r.err = fault.Remote(fault.NotFound, readOp, "the machine has birth number %#x, the ledger was granted at %#x: it is lost", a.Birth, l.cfg.Birth)
		}
	case a.Status == fault.NotFound, a.Status == fault.PermissionDenied:
		r.err = fault.Remote(a.Status, readOp, "copy %d does not give chunk %d", a.Mirror.Copy, a.Chunk.Number)
	case a.Status == fault.OK && a.Chunk.Number < a.Next:
		r.receive(now, a.Chunk)
	}
}

const readOp = "read the ledger"

// Verdict is a node's word to a memory machine about a run of one of its executions: commit it,
// or take it back. It is sent until every copy of the machine's newest epoch has obeyed, and has told all that is left of the run. Like an
// Endpoint it does no I/O, reads no clock and has one owner.
type Verdict struct {
	request dsmpacket.LedgerRequest
	left    map[dsmpacket.RegionID]dsmpacket.Left
	rest    dsmpacket.RegionID // where that begins which some copy has not told yet; math.MaxUint64 if there is nothing
	obeyed  copies.Answers[struct{}]
	tries   int
	due     time.Duration
	send    bool
	done    bool
	err     error
}

// NewVerdict begins to tell a machine q, whose operation is a LedgerOp.Word.
func NewVerdict(now time.Duration, q dsmpacket.LedgerRequest) *Verdict {
	v := &Verdict{request: q, left: map[dsmpacket.RegionID]dsmpacket.Left{}, rest: math.MaxUint64}
	v.transmit(now)
	return v
}

func (v *Verdict) transmit(now time.Duration) {
	v.send = true
	v.due = now + askPauses.After(v.tries)
	v.tries++
}

// Send returns the request to be sent to the machine, if one is, and forgets that it was asked.
func (v *Verdict) Send() (q dsmpacket.LedgerRequest, ok bool) {
	ok, v.send = v.send, false
	return v.request, ok
}

// Wake is when Tick is to be called.
func (v *Verdict) Wake() time.Duration {
	if v.Over() {
		return Never
	}
	return v.due
}

// Tick sends again what is due.
func (v *Verdict) Tick(now time.Duration) {
	if !v.Over() && now >= v.due {
		v.transmit(now)
	}
}

// Over reports whether every copy has obeyed, or one has refused for good; Err then says why.
func (v *Verdict) Over() bool { return v.done || v.err != nil }

// Err is why the machine refuses, nil while it does not: Stale if this incarnation of the node
// is fenced, or a later run has changed something.
func (v *Verdict) Err() error { return v.err }

// Left is what the runs that were taken back have allocated and any copy has, for the next run to find, in the order of their ids. It is complete when
// the verdict is over.
func (v *Verdict) Left() []dsmpacket.Left {
	return slices.SortedFunc(maps.Values(v.left), func(a, b dsmpacket.Left) int { return cmp.Compare(a.ID, b.ID) })
}

// tells takes what a copy has told of what is left.
func (v *Verdict) tells(a *dsmpacket.LedgerAnswer) {
	for _, l := range a.Left {
		v.left[l.ID] = l
	}
	if n := len(a.Left); a.More && n > 0 {
		v.rest = min(v.rest, a.Left[n-1].ID+1)
	}
}

// Receive takes the answer of one copy, and reports whether it is to this request.
func (v *Verdict) Receive(now time.Duration, a *dsmpacket.LedgerAnswer) bool {
	q := &v.request
	if a.Op != q.Op || a.Ledger != q.Ledger || a.Run != q.Run || a.Incarnation != q.Incarnation || a.Mirror.Members == 0 {
		return false
	}
	if a.Main != q.Main || a.Checkpoint != q.Checkpoint || a.From != q.From {
		return false // it is about another checkpoint of the durable main, or tells again what is known
	}
	switch {
	case v.Over() || v.obeyed.Old(a.Mirror):
	case a.Status == fault.Overloaded || a.Status == fault.Unavailable: // it is asked again
	case a.Status != fault.OK:
		v.err = fault.Remote(a.Status, q.Op.String()+" an execution", "copy %d refuses it", a.Mirror.Copy)
	default:
		again := v.obeyed.Known()
		if _, newer := v.obeyed.From(a.Mirror); newer {
			if v.rest = math.MaxUint64; again {
				v.transmit(now) // the other copies of the new epoch may not have heard it
			}
		}
		v.tells(a)
		switch {
		case !v.obeyed.All():
		case v.rest == math.MaxUint64:
			v.done = true
		default:
			v.request.From, v.rest, v.tries = v.rest, math.MaxUint64, 0
			v.obeyed.Again()
			v.transmit(now)
		}
	}
	return true
}
