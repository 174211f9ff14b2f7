package transport

import (
	"bytes"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// ledgerReader reads a range of a ledger's chunks in order. A group of chunks is asked for
// with one request, and each chunk comes in a datagram of its own, from either copy: the
// copies are equal in the range.
type ledgerReader struct {
	next, end uint64                  // chunks next … end-1 have not been taken yet
	asked     uint64                  // chunks below it have been asked for
	window    uint64                  // how many chunks are under way at most
	group     uint64                  // how many chunks one request asks for
	got       map[uint64]packet.Chunk // of those under way
	first     time.Duration           // when next was first asked for, less than sent if again
	sent      time.Duration           // when next was last asked for
	rtt       estimator
	requests  []packet.LedgerRequest
	err       error
}

// maxReadWindow is how many chunks a reader has under way at most. There are as many
// only if chunks are small.
const maxReadWindow = 64

func newLedgerReader(now time.Duration, first, end uint64, maxData int) *ledgerReader {
	window := max(1, min(maxReadWindow, DefaultWindow/2/uint64(maxData+overhead))) // both copies answer
	r := &ledgerReader{next: first, end: end, asked: first, window: window, group: min(max(1, window/2), 1+packet.MaxMore), got: make(map[uint64]packet.Chunk)}
	r.ask(now)
	return r
}

// ask asks for the next groups as far as the window goes.
func (r *ledgerReader) ask(now time.Duration) {
	for r.asked < r.end && r.asked+min(r.group, r.end-r.asked) <= r.next+r.window {
		if r.asked == r.next {
			r.first, r.sent = now, now
		}
		r.request(r.asked, min(r.group, r.end-r.asked))
		r.asked += min(r.group, r.end-r.asked)
	}
}

func (r *ledgerReader) request(from, n uint64) {
	r.requests = append(r.requests, packet.LedgerRequest{
		Op: packet.LedgerRead, Chunk: packet.Chunk{Number: from}, Size: n << 16, More: uint8(n - 1), //nolint:gosec // at most MaxMore
	})
}

// again asks once more for the first chunk that is missing, and those behind it that are, too.
func (r *ledgerReader) again(now time.Duration) {
	n := uint64(1)
	for ; n < r.group && r.next+n < r.asked; n++ {
		if _, ok := r.got[r.next+n]; ok {
			break
		}
	}
	r.sent = now
	r.request(r.next, n)
}

// done reports whether all chunks have been taken.
func (r *ledgerReader) done() bool { return r.next >= r.end }

// ready reports whether there is something to take, or nothing more will come.
func (r *ledgerReader) ready() bool {
	_, ok := r.got[r.next]
	return ok || r.done() || r.err != nil
}

func (r *ledgerReader) wake() time.Duration {
	if r.ready() {
		return Never // until it is taken
	}
	return r.sent + r.rtt.timeout(r.rtt.backoff)
}

func (r *ledgerReader) tick(now time.Duration) {
	if now >= r.wake() {
		r.rtt.backoff = min(r.rtt.backoff+1, 10)
		r.again(now)
	}
}

// receive takes a chunk.
func (r *ledgerReader) receive(now time.Duration, c packet.Chunk) {
	if _, known := r.got[c.Number]; known || c.Number < r.next || c.Number >= r.asked {
		return
	}
	if c.Number == r.next && r.first == r.sent {
		r.rtt.sample(now - r.sent)
	}
	c.Data = bytes.Clone(c.Data)
	r.got[c.Number] = c
	if !r.ready() && c.Number >= r.next+appendReorder && now-r.sent >= r.rtt.lost() {
		r.again(now)
	}
}

// take returns the chunks that are due and have come, and asks for more.
func (r *ledgerReader) take(now time.Duration) (chunks []packet.Chunk) {
	for c, ok := r.got[r.next]; ok; c, ok = r.got[r.next] {
		chunks = append(chunks, c)
		delete(r.got, r.next)
		r.next++
	}
	if len(chunks) > 0 {
		r.first, r.sent = now-1, now // no round trip is measured from here
		r.ask(now)
	}
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
		l.reader = newLedgerReader(now, l.first, l.end, l.cfg.MaxData)
	}
}

// Readable reports whether Take has something to return, or nothing more will come.
func (l *Ledger) Readable() bool {
	return l.err != nil || l.reader != nil && l.reader.ready()
}

// Take returns the next chunks in order, none if none have come, and whether those were
// the last. The error says why nothing more will come: NotFound if the chunks are not kept
// any more, or what Err says.
func (l *Ledger) Take(now time.Duration) (chunks []packet.Chunk, last bool, err error) {
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
func (l *Ledger) readAnswer(now time.Duration, a *packet.LedgerAnswer) {
	r := l.reader
	switch {
	case r == nil || a.Chunk.Number < r.next || a.Chunk.Number >= r.asked || a.Mirror.Epoch < l.mirror.epoch:
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
