package rpc

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
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
		b := record.Append(nil, r)
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
	}
	r.Lane, r.Number = direct.LaneOf(&e.call.Header)
	r.Call = call.Append(nil)
	return r
}

// The Gatekeeper sees at most the rights of direct calls, so the node that serves them tells it: what is
// under way, the latest that have ended, and how many have. Nothing depends on that but what
// people see.
//
//	a call begins or ends ── reportAfter ──▶ report ──▶ daemon ──▶ Gatekeeper

const (
	// reportAfter is how long news of direct calls are gathered.
	reportAfter = 250 * time.Millisecond
	// reportAgain is how often it is told that calls are still under way.
	reportAgain = 2 * time.Second
	// namedInReport is how many calls a report names at most that have begun and ended since the one before: the
	// latest. All are counted. Each name costs the Gatekeeper some microseconds.
	namedInReport = 16
)

// reports is what the node tells of direct calls. The ledger's mutex guards it.
type reports struct {
	running map[rpcpacket.ID]*execution
	ended   []ended // the latest since the last report, namedInReport at most
	oldest  int     // of ended, once that is full
	known   []ended // that an earlier report has named as under way
	counts  map[counted]uint64
	told    bool          // something, before
	news    bool          // there are some
	due     time.Duration // when the next report leaves, if there are news or calls under way
	telling bool
}

// ended is a direct call that has ended.
type ended struct {
	call       rpcpacket.Header
	from       netip.Addr
	method     counted
	began, end time.Duration
}

// counted is what calls are counted by. It says how one has ended, too.
type counted struct {
	service, method string
	code            fault.Code
}

// takeUp notes that a direct call is under way. The caller holds l.mu.
func (l *ledger) takeUp(e *execution) {
	r := &l.reports
	if r.running == nil {
		r.running, r.counts = map[rpcpacket.ID]*execution{}, map[counted]uint64{}
	}
	e.takenUp = l.node.now()
	r.running[e.call.Call] = e
	l.haveNews(e.takenUp)
}

// leave notes that a call was not run after all. The caller holds l.mu.
func (l *ledger) leave(id rpcpacket.ID) { delete(l.reports.running, id) }

// ended notes how a direct call has ended. The caller holds l.mu.
func (l *ledger) ended(e *execution, code fault.Code) {
	r := &l.reports
	if r.running[e.call.Call] != e {
		return
	}
	delete(r.running, e.call.Call)
	k := ended{call: e.call.Header, from: e.from.Addr(), method: e.countedAs(code), began: e.takenUp, end: l.node.now()}
	r.counts[k.method]++
	switch {
	case e.reported && len(r.known) < control.MaxDirectCalls-namedInReport:
		r.known = append(r.known, k)
	case len(r.ended) < namedInReport:
		r.ended = append(r.ended, k)
	default:
		r.ended[r.oldest] = k
		r.oldest = (r.oldest + 1) % len(r.ended)
	}
	l.haveNews(k.end)
}

// countedAs is what the execution's call is counted by.
func (e *execution) countedAs(code fault.Code) counted {
	c := counted{service: e.export.name, code: code}
	if m := e.export.offer.Load().methods[e.call.Method]; m != nil {
		c.method = m.name
	} else {
		c.method = e.call.Method.String()
	}
	return c
}

// haveNews has a report leave soon. The caller holds l.mu.
func (l *ledger) haveNews(now time.Duration) {
	r := &l.reports
	if r.news {
		return
	}
	if r.news = true; r.due == 0 || r.due > now+reportAfter {
		r.due = now + reportAfter
	}
	l.node.wakeAt(r.due)
}

// tellOver tells the Gatekeeper, after drainDirect, that no direct call that is still out to the
// node has run, or will: their callers choose other nodes.
func (n *Node) tellOver(ctx context.Context) {
	l := n.ledger
	l.mu.Lock()
	over := l.lost == nil && l.table.Idle()
	l.mu.Unlock()
	if !over {
		return
	}
	if err := n.session.Calls(ctx, control.NodeCalls{Over: true}); err != nil {
		n.log.Debug("rpc: the Gatekeeper does not know that the node leaves in order", "node", n.self.Name, "err", err)
	}
}

// tickReports sends the report that is due, and returns when it has to be called next.
func (n *Node) tickReports(now time.Duration) (next time.Duration, ok bool) {
	l := n.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &l.reports
	switch {
	case !r.news && len(r.running) == 0:
		return 0, false
	case now < r.due:
		return r.due, true
	case r.telling: // the last one is on its way
		r.due = now + reportAfter
		return r.due, true
	}
	report := l.report(now)
	r.news, r.telling, r.told, r.due = false, true, true, now+reportAgain
	go func() {
		err := n.session.Calls(n.base, report)
		l.mu.Lock()
		defer l.mu.Unlock()
		if r.telling = false; err != nil {
			n.log.Debug("rpc: the Gatekeeper has not heard of direct calls", "node", n.self.Name, "err", err)
			l.haveNews(n.now())
		}
	}()
	return r.due, len(r.running) > 0
}

// report is what is to be told now. What has ended is told once. The caller holds l.mu.
func (l *ledger) report(now time.Duration) (c control.NodeCalls) {
	r := &l.reports
	c.First = !r.told
	if room, ok := l.bytesLeft(); ok {
		c.Room = &room
	}
	running := slices.SortedFunc(maps.Values(r.running), func(a, b *execution) int { return cmp.Compare(a.takenUp, b.takenUp) })
	c.More = max(0, len(running)-control.MaxDirectCalls)
	for _, e := range running[:len(running)-c.More] {
		e.reported = true
		k := ended{call: e.call.Header, from: e.from.Addr(), method: e.countedAs(fault.OK), began: e.takenUp}
		c.Running = append(c.Running, k.tell(now))
	}
	for i := range r.known {
		c.Ended = append(c.Ended, r.known[i].tell(now))
	}
	for i := range r.ended {
		c.Ended = append(c.Ended, r.ended[(r.oldest+i)%len(r.ended)].tell(now))
	}
	r.known, r.ended, r.oldest = r.known[:0], r.ended[:0], 0
	for _, k := range slices.SortedFunc(maps.Keys(r.counts), func(a, b counted) int {
		return cmp.Or(cmp.Compare(a.service, b.service), cmp.Compare(a.method, b.method), cmp.Compare(a.code, b.code))
	}) {
		if len(c.Counts) < control.MaxMethodCounts {
			c.Counts = append(c.Counts, control.MethodCount{Service: k.service, Method: k.method, Code: k.code, Calls: r.counts[k]})
		}
	}
	return c
}

// tell is the call as the Gatekeeper is told of it. One that is under way has no end.
func (k *ended) tell(now time.Duration) control.DirectCall {
	h := &k.call
	c := control.DirectCall{
		ID: control.ExecutionID(h.Call), Parent: control.ExecutionID(h.Parent), Caller: k.from, Incarnation: h.CallerIncarnation,
		Service: k.method.service, Method: k.method.method, Began: (now - k.began).Microseconds(), Attempt: h.Attempt, Code: k.method.code,
		Oneway: h.Type == rpcpacket.Oneway, Policy: uint8(h.Flags.Policy()),
	}
	if k.end != 0 {
		c.Took = max(1, (k.end - k.began).Microseconds())
	}
	return c
}

// underWay is the execution of a direct call that the node runs, nil if it does not. The caller
// does not hold l.mu.
func (l *ledger) underWay(id rpcpacket.ID) *execution {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reports.running[id]
}
