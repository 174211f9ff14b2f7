package rpc

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// position names an operation of an execution: the index-th of a branch. A re-run
// that is deterministic has the same operations in the same places.
type position struct{ branch, index uint32 }

// journal is what an exactly-once execution got from outside of itself. An
// operation that a former attempt has journalled is answered from it; a new one
// is added, and is written to the ledger before anything leaves that may follow from it.
//
//	the ledger's entries ──▶ past ──▶ recall         add ◀── new operations
//	                                                  ▼
//	                                                fresh ──▶ unwritten ──▶ ledger
type journal struct {
	life    *lifetime // of the node
	mu      sync.Mutex
	past    map[position]trailer.Section // not asked for again so far
	last    map[uint32]uint32            // the highest index in past, by branch
	regions map[position]bool            // the allocations that the ledger has, or is to have
	fresh   []trailer.Section            // not in the ledger
	failed  *Error                       // the re-run has diverged
	taken   map[uint32]bool              // numbers of branches
	within  context.Context              //nolint:containedctx // of a main: the context that Main was given
	stopped bool                         // that has ended, and something that may follow from it was left out
	bytes   int                          // of fresh
	full    *Error                       // the ledger has no room for what the execution is to write, so its run has ended
}

// newJournal returns the journal of an execution that is run again, from the entries
// in the ledger; none make one of a first run. They are copied. The lifetime is the node's.
func newJournal(b []byte, life *lifetime) (*journal, error) {
	j := &journal{life: life}
	if len(b) == 0 {
		return j, nil
	}
	sections, err := trailer.Parse(slices.Clone(b))
	if err != nil {
		return nil, err
	}
	j.past, j.last = make(map[position]trailer.Section), make(map[uint32]uint32)
	for _, s := range sections {
		at := position{s.Branch, s.Index}
		if !s.Type.Journal() {
			return nil, wirefmt.Errorf("journal: %s is no entry", s.Type)
		}
		if s.Type == trailer.Region {
			j.hasRegion(at)
			continue
		}
		if _, twice := j.past[at]; twice {
			return nil, wirefmt.Errorf("journal: two entries for operation %d of branch %d", at.index, at.branch)
		}
		j.past[at] = s
		j.last[at.branch] = max(j.last[at.branch], at.index)
	}
	return j, nil
}

// recall returns what a former attempt has journalled for an operation, nil if it
// has not come so far. Wanted are the types of entry that such an operation makes;
// none, if it makes no entry. Finding another is Nondeterminism.
func (j *journal) recall(op string, at position, wanted ...trailer.Type) (*trailer.Section, *Error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed != nil {
		return nil, j.failed
	}
	if j.full != nil {
		return nil, j.full
	}
	if j.stopped {
		return nil, fault.FromContext(op, j.within.Err())
	}
	s, ok := j.past[at]
	switch {
	case ok && !slices.Contains(wanted, s.Type):
		return nil, j.diverge(op, "operation %d of branch %d was a %s when the execution ran before", at.index, at.branch, s.Type)
	case ok:
		delete(j.past, at)
		return &s, nil
	case len(wanted) > 0 && at.index <= j.last[at.branch]:
		return nil, j.diverge(op, "operation %d of branch %d was another when the execution ran before", at.index, at.branch)
	}
	return nil, nil
}

// add journals an operation. When the context has ended that a main was given, the next run of the main
// has another one: what follows from that end is left out, and nothing can follow from the operation.
func (j *journal) add(t trailer.Type, at position, data []byte) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.full != nil {
		return
	}
	if j.within != nil && j.within.Err() != nil {
		j.stopped = true
	}
	if j.stopped {
		return
	}
	s := trailer.Section{Type: t, Branch: at.branch, Index: at.index, Data: data}
	j.fresh, j.bytes = append(j.fresh, s), j.bytes+s.Size()
}

// hasRegion notes that an allocation is journalled, and reports whether that is news. Whoever shares j holds the lock.
func (j *journal) hasRegion(at position) (news bool) {
	if j.regions == nil {
		j.regions = make(map[position]bool)
	}
	news = !j.regions[at]
	j.regions[at] = true
	return news
}

// allocated journals that an allocation has got a region: whatever tells others of it is written after that.
func (j *journal) allocated(at position, region []byte) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.full != nil || j.stopped || !j.hasRegion(at) {
		return
	}
	s := trailer.Section{Type: trailer.Region, Branch: at.branch, Index: at.index, Data: region}
	j.fresh, j.bytes = append(j.fresh, s), j.bytes+s.Size()
}

// hasAllocated reports whether a former run has journalled that it has got a region for an allocation.
func (j *journal) hasAllocated(at position) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.regions[at]
}

// end ends the run of an execution for want of room: whatever it does from now on fails with this error, and is not journalled. The
// first reason counts.
func (j *journal) end(why *Error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.full == nil {
		j.full = why
	}
}

// ended is why the run has ended for want of room, nil if it has not.
func (j *journal) ended() *Error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.full
}

// claim takes a number for a branch. It reports false if another has it.
func (j *journal) claim(branch uint32) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.taken[branch] {
		return false
	}
	if j.taken == nil {
		j.taken = make(map[uint32]bool)
	}
	j.taken[branch] = true
	return true
}

// unwritten returns, as sections of a trailer, the entries that the ledger does not have yet, and
// counts them as written.
func (j *journal) unwritten() []byte {
	j.mu.Lock()
	defer j.mu.Unlock()
	b := trailer.Append(nil, j.fresh)
	j.fresh, j.bytes = nil, 0
	return b
}

// begin begins anew: a checkpoint stands for what there is.
func (j *journal) begin() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.fresh, j.bytes, j.regions = nil, 0, nil
}

// size is how many bytes unwritten would return.
func (j *journal) size() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.bytes
}

// fail notes that the re-run has diverged; the first reason counts.
func (j *journal) fail(op, format string, args ...any) *Error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.diverge(op, format, args...)
}

// diverge is fail for whoever holds the lock. What a re-run comes to when its node has ended says nothing about it: all that it
// does fails then.
func (j *journal) diverge(op, format string, args ...any) *Error {
	if over := j.life.isOver(); over != nil && j.failed == nil {
		return plain(op, over)
	}
	if j.failed == nil {
		j.failed = fault.New(Nondeterminism, op, format, args...)
	}
	return j.failed
}

// failure is why the re-run has diverged, nil if it has not.
func (j *journal) failure() *Error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.failed
}

// close judges the execution at its end, by its outcome: it must have done all that it did before, unless
// it has failed because memory is away or lost, which it was not before, or its node has ended.
func (j *journal) close(code Code) *Error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if code == Unavailable || code == NoSpace || j.full != nil || j.life.isOver() != nil {
		return j.failed
	}
	if j.failed == nil && len(j.past) > 0 {
		for at, s := range j.past { // any of them says enough
			return j.diverge("", "the %s of branch %d, operation %d, was not asked for again", s.Type, at.branch, at.index)
		}
	}
	return j.failed
}

// callJournalled makes a call of an exactly-once execution, unless a former attempt
// has journalled how it ended. The id of an exactly-once call is the
// same in each attempt, so its answer is found at its callee; all else is answered
// from the journal: errors that arose here, and what calls of policy none brought.
func (c *client) callJournalled(ctx context.Context, b *opSequence, m *method, codec *codec, kind thrift.TMessageType, result thrift.TStruct) error {
	o, err := b.begin(m.op, trailer.Outcome)
	if err != nil {
		return err
	}
	defer o.end()
	o.fingerprint = c.fingerprint(codec)
	if o.known == nil {
		if err := ctx.Err(); err != nil {
			why := fault.FromContext(m.op, err)
			if !o.sentBefore(m.policy) {
				return o.decided(neverBegan(why))
			}
			ctx, o.expired = context.WithoutCancel(ctx), why
		}
		return c.perform(ctx, b, o, m, codec, kind, result)
	}
	was, err := parseOutcome(o.known.Data)
	switch {
	case err != nil:
		return o.diverged("%v", err)
	case was.fingerprint != o.fingerprint:
		return o.diverged("the service or the arguments were others when the execution ran before")
	case was.code != OK:
		return &Error{Code: was.code, Op: m.op, Msg: was.message, NeverBegan: was.neverBegan}
	case m.policy != PolicyNone:
		// It was answered, so it will be: the answer is in the callee's ledger.
		return c.perform(context.WithoutCancel(ctx), b, o, m, codec, kind, result)
	case (was.answer == nil) != (result == nil):
		return o.diverged("the call was another when the execution ran before")
	case result == nil:
		return nil
	}
	p := &pending{answer: *was.answer}
	o.gains(p)
	return c.decode(ctx, codec, p, m, result)
}

// decided journals an error that this side decided on, and returns it as a re-run
// will see it.
func (o *operation) decided(err error) error {
	if o == nil {
		return err
	}
	if full := o.b.e.journal.ended(); full != nil {
		return full
	}
	failure := plain(o.op, err)
	if o.known != nil {
		return o.diverged("the call was answered when the execution ran before, and now: %s", failure)
	}
	o.record(trailer.Outcome, outcome{code: failure.Code, fingerprint: o.fingerprint, message: failure.Msg, neverBegan: failure.NeverBegan}.encode())
	return failure
}

// answered journals that the call has been answered; p is nil for a one-way of policy none.
func (o *operation) answered(m *method, p *pending) {
	if o == nil || p != nil && p.err != nil {
		return
	}
	out := outcome{fingerprint: o.fingerprint}
	if p != nil && m.policy == PolicyNone {
		out.answer = &p.answer
	}
	o.record(trailer.Outcome, out.encode())
}

// durable is execution.durable of the execution whose operation it is; nil is none.
func (o *operation) durable(child record.Call) bool { return o == nil || o.b.e.durable(child) }

// whyEnded is execution.whyEnded of the execution whose operation it is; nil is none.
func (o *operation) whyEnded(n *Node) error {
	if o == nil {
		return n.life.whyEnded()
	}
	return o.b.e.whyEnded()
}

// outcome is how a call of an exactly-once execution ended, as it is journalled:
// error code (1 byte), fingerprint of the call (8), then the error's message. After code 0
// comes nothing if the callee's ledger has the answer. With policy none the answer's type
// (1), code (1), if it has handed regions over their number (1) and regions (8 each), and payload come.
type outcome struct {
	code        Code
	fingerprint uint64
	message     string
	neverBegan  bool
	answer      *rpcpacket.Message // of policy none; nil for a one-way
}

const outcomeSize = 9

// outcomeUnbegun in the error code's byte: the call never began.
const outcomeUnbegun = 0x80

// In the byte of an answer's type: the payload begins with headers, and the answer has handed regions over.
const outcomeHeaders, outcomeRegions = 0x80, 0x40

func (o outcome) encode() (b []byte) {
	code := byte(o.code)
	if o.neverBegan {
		code |= outcomeUnbegun
	}
	b = append(b, code)
	b = binary.BigEndian.AppendUint64(b, o.fingerprint)
	if o.code != OK {
		return append(b, o.message...)
	}
	if o.answer != nil {
		kind := byte(o.answer.Type)
		if o.answer.Flags&rpcpacket.FlagHeaders != 0 {
			kind |= outcomeHeaders
		}
		all := listed(o.answer)
		if len(all) > 0 {
			kind |= outcomeRegions
		}
		if b = append(b, kind, byte(o.answer.Code)); len(all) > 0 {
			b = append(b, byte(len(all)))
			for _, r := range all {
				b = binary.BigEndian.AppendUint64(b, uint64(r))
			}
		}
		b = append(b, o.answer.Payload...)
	}
	return b
}

func parseOutcome(b []byte) (o outcome, err error) {
	if len(b) < outcomeSize {
		return o, wirefmt.Errorf("outcome of %d bytes, want %d", len(b), outcomeSize)
	}
	o.neverBegan = b[0]&outcomeUnbegun != 0
	o.code, o.fingerprint = Code(b[0]&^outcomeUnbegun), binary.BigEndian.Uint64(b[1:])
	b = b[outcomeSize:]
	switch {
	case o.code != OK:
		o.message = string(b)
	case len(b) == 1:
		return o, wirefmt.Errorf("outcome: an answer of 1 byte")
	case len(b) > 1:
		kind := b[0]
		o.answer = &rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Type(kind &^ (outcomeHeaders | outcomeRegions)), Code: Code(b[1])}, Payload: b[2:]}
		if kind&outcomeHeaders != 0 {
			o.answer.Flags = rpcpacket.FlagHeaders
		}
		if kind&outcomeRegions != 0 {
			return o, o.parseRegions()
		}
	}
	return o, nil
}

// parseRegions takes the regions that an answer has handed over off its payload.
func (o *outcome) parseRegions() error {
	m, b := o.answer, o.answer.Payload
	if m.Type != rpcpacket.Reply && m.Type != rpcpacket.Exception || len(b) == 0 || b[0] == 0 || b[0] > rpcpacket.MaxRegions || len(b) < 1+8*int(b[0]) {
		return wirefmt.Errorf("outcome: an answer of type %d with regions, and %d bytes", m.Type, len(b))
	}
	m.Payload = b[1+8*int(b[0]):]
	for i := range int(b[0]) {
		r := rpcpacket.Region(binary.BigEndian.Uint64(b[1+8*i:]))
		if !r.Valid() || m.Names(r) {
			return wirefmt.Errorf("outcome: region %d of an answer is %s", i, r)
		}
		if i%rpcpacket.ListRegions == 0 {
			m.Lists = append(m.Lists, rpcpacket.List{})
		}
		l := &m.Lists[len(m.Lists)-1]
		l.Regions[l.Count] = r
		l.Count++
	}
	return nil
}

// plain makes an error what it is after a replay, so that both attempts of an
// execution see the same: code and message, without the cause.
func plain(op string, err error) *Error {
	var e *Error
	if !errors.As(err, &e) {
		return fault.New(Application, op, "%s", err)
	}
	msg := e.Msg
	if e.Err != nil {
		if msg != "" {
			msg += ": "
		}
		msg += e.Err.Error()
	}
	return &Error{Code: e.Code, Op: op, Msg: msg[:min(len(msg), maxMessage)], NeverBegan: e.NeverBegan}
}

// fingerprint tells calls apart: service, arguments and pointers. Headers may be others when an
// execution runs again, since they may tell of the run.
func (c *client) fingerprint(codec *codec) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(binary.BigEndian.AppendUint64(nil, c.hash)) // never fails
	_, _ = h.Write(codec.payload()[codec.headed:])
	return h.Sum64()
}

// Now is the time of day. Exactly-once executions must get it here: it is
// journalled, so that a re-run sees the same. It has no monotonic reading. When
// a re-run has diverged, which its answer will tell, it is the time of the re-run.
func Now(ctx context.Context) time.Time {
	b := branchOf(ctx)
	if !b.journalled() {
		return time.Unix(0, time.Now().UnixNano())
	}
	now := time.Now().UnixNano()
	o, err := b.begin("rpc.Now", trailer.Time)
	if err != nil {
		return time.Unix(0, now)
	}
	defer o.end()
	switch {
	case o.known == nil:
		o.record(trailer.Time, binary.BigEndian.AppendUint64(nil, uint64(now)))
	case len(o.known.Data) != 8:
		_ = o.diverged("a time of %d bytes", len(o.known.Data))
	default:
		now = int64(binary.BigEndian.Uint64(o.known.Data))
	}
	return time.Unix(0, now)
}

// Random fills b with random bytes from the system's secure source. Exactly-once
// executions must get randomness here: it is journalled, and so it costs room in
// the execution's next message.
func Random(ctx context.Context, b []byte) error {
	branch := branchOf(ctx)
	if !branch.journalled() {
		_, err := rand.Read(b)
		return err
	}
	o, err := branch.begin("rpc.Random", trailer.Random)
	if err != nil {
		return err
	}
	defer o.end()
	if o.known == nil {
		_, _ = rand.Read(b) // never fails
		o.record(trailer.Random, append([]byte(nil), b...))
		return nil
	}
	if len(o.known.Data) != len(b) {
		return o.diverged("%d random bytes, there were %d when the execution ran before", len(b), len(o.known.Data))
	}
	copy(b, o.known.Data)
	return nil
}

// Effect does something outside of the rack, or asks something there, and returns
// what f does. In an exactly-once execution the result is journalled and f is not
// run again, unless a crash comes before the execution's next message: so it runs
// at least once, and f should pass the key on, for the other side to tell a
// repetition. The key has at most 65,535 bytes.
//
// The context that f gets belongs to no execution: calls that it makes are part of
// the effect. An error of f is journalled as well, and comes back as an *Error
// with its code (Application if it has none) and message.
func Effect(ctx context.Context, key string, f func(ctx context.Context) ([]byte, error)) ([]byte, error) {
	b := branchOf(ctx)
	outside := context.WithValue(ctx, branchKey{}, (*opSequence)(nil))
	if !b.journalled() {
		return f(outside)
	}
	op := "effect " + key
	if len(key) > 0xffff {
		return nil, fault.New(BadRequest, "effect", "a key of %d bytes: want %d at most", len(key), 0xffff)
	}
	o, err := b.begin(op, trailer.Effect)
	if err != nil {
		return nil, err
	}
	defer o.end()
	if o.known != nil {
		return o.sameEffect(key)
	}
	b.e.promote()
	if !o.durable(record.Call{}) {
		return nil, b.e.whyEnded()
	}
	result, err := f(outside)
	data := binary.BigEndian.AppendUint16(nil, uint16(len(key)))
	data = append(data, key...)
	if err != nil {
		failure := plain(op, err)
		data = append(data, byte(failure.Code))
		o.record(trailer.Effect, append(data, failure.Msg...))
		return nil, failure
	}
	data = append(data, byte(OK))
	o.record(trailer.Effect, append(data, result...))
	return result, nil
}

// sameEffect is what the effect was when the execution ran before.
func (o *operation) sameEffect(key string) ([]byte, error) {
	data := o.known.Data
	if len(data) < 2 {
		return nil, o.diverged("an effect's entry of %d bytes", len(data))
	}
	n := int(binary.BigEndian.Uint16(data))
	if data = data[2:]; len(data) < n+1 {
		return nil, o.diverged("an effect's entry of %d bytes with a key of %d", len(data), n)
	}
	if was := string(data[:n]); was != key {
		return nil, o.diverged("the effect's key was %q when the execution ran before", was)
	}
	code, rest := Code(data[n]), data[n+1:]
	if code != OK {
		return nil, &Error{Code: code, Op: o.op, Msg: string(rest)}
	}
	return append([]byte{}, rest...), nil
}
