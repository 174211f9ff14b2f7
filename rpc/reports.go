package rpc

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/pace"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// The Gatekeeper sees at most the rights of direct calls, so the node that serves them tells it: what is
// under way, the latest that have ended, and how many have. Nothing depends on that but what
// people see.
//
//	a call is under way for reportAfter, or ends ── report ──▶ daemon ──▶ Gatekeeper
//
// A report costs the Gatekeeper more than many a call that it tells of. So a node whose calls are all short does not tell of each tenth of a second: the
// more calls there are, the longer its reports wait, up to half a second. Calls that people may have seen under way are told at once when they end.
//
// Direct calls go past the Gatekeeper, so nobody sees at once that some of them wait for each
// other. A call whose lineage has the execution that its service runs is refused when it comes.
// Longer circles the Gatekeeper finds: the nodes tell it which calls wait for their turn, and it
// has one of the circle refused where it waits (package callgraph, Waits).
//
//	a call has waited for waitsAfter ── report ──▶ Gatekeeper: a circle? ── refuse ──▶ the call's node
//	             ▲                                      │
//	             └──────────── again, slower ◀──────────┘ acknowledged

// reports is what the node tells of direct calls.
type reports struct {
	life  *lifetime
	pulse *pulse
	log   *slog.Logger
	tells func(context.Context, control.NodeCalls) error // tells the Gatekeeper
	room  func(*control.NodeCalls)                       // fills in what room the node's ledger has

	mu      sync.Mutex
	running map[rpcpacket.ID]*execution
	ended   []ended // the latest since the last report, namedInReport at most
	oldest  int     // of ended, once that is full
	known   []ended // that an earlier report has named as under way, and those that were given up
	counts  map[counted]uint64
	failed  int           // of known, how many are there since they have failed
	told    bool          // something, before
	news    bool          // there are some
	shown   int           // of running, how many a report has named
	due     time.Duration // when the next report leaves, if there are news or shown calls
	rests   time.Duration // until then reports of short calls wait
	pause   time.Duration // for so long, since the last report
	look    time.Duration // when a call may have been under way for reportAfter that no report has named; 0 if there is none
	telling bool
	flushed chan struct{} // closed when the next report has been told, or cannot be; nil if nobody waits for that
}

const (
	// reportAfter is how long news of direct calls are gathered: people see within 100 ms which are under way.
	reportAfter = 90 * time.Millisecond
	// reportAgain is how often it is told that calls are still under way.
	reportAgain = 2 * time.Second
	// shortCall is how long a call is under way before a report names it. What people saw of shorter ones would be over.
	shortCall = 20 * time.Millisecond
	// namedInReport is how many calls a report names at most that have begun and ended since the one before: the
	// latest, and as many that have failed. All are counted. Each name costs the Gatekeeper some microseconds.
	namedInReport = 16
)

// reportPauses are those between reports of calls that no report has named under way.
var reportPauses = pace.Pauses{First: reportAfter, Most: 500 * time.Millisecond}

// ended is a direct call that has ended.
type ended struct {
	call       rpcpacket.Header
	from       netip.Addr
	method     counted
	began, end time.Duration
	failures   uint32 // after which it was given up; 0 if it was not
	details    details
}

// details is what is told of a call besides (control.CallDetails).
type details struct {
	size    int                  // of the message with the arguments and the headers, in bytes
	headers []rpcpacket.KeyValue // once they are read
	// Those above the mutex of reports guards. The others are read when the call has ended.
	answer    int    // bytes of the answer
	exception string // its type, if the IDL declares it
	text      string // what it says
}

// tell is the details as the Gatekeeper is told of them.
func (d *details) tell() control.CallDetails {
	out := control.CallDetails{Arguments: uint64(d.size), Answer: uint64(d.answer), Exception: d.exception, Text: d.text} //nolint:gosec // not negative
	for _, h := range d.headers {
		out.Headers = append(out.Headers, control.Header{Name: h.Key, Value: h.Value})
	}
	return out.Bounded()
}

// carries notes the headers of the execution's call.
func (e *execution) carries(headers []rpcpacket.KeyValue) {
	r := &e.node.reports
	r.mu.Lock()
	defer r.mu.Unlock()
	e.details.headers = headers
}

// counted is what calls are counted by. It says how one has ended, too.
type counted struct {
	service, method string
	code            fault.Code
}

// takeUp notes that a direct call is under way.
func (r *reports) takeUp(e *execution) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running == nil {
		r.running, r.counts = map[rpcpacket.ID]*execution{}, map[counted]uint64{}
	}
	e.takenUp, e.details.size = r.pulse.now(), len(e.call.Payload)
	if e.call.Flags&rpcpacket.FlagMore != 0 {
		if o, err := e.call.Opening(); err == nil {
			e.details.size = int(o.Total) //nolint:gosec // it was measured
		}
	}
	r.running[e.call.Call] = e
	if r.look == 0 {
		r.look = e.takenUp + reportAfter
		r.pulse.wakeAt(r.look)
	}
}

// leave notes that a call was not run after all. If the Gatekeeper has been told of it, it is told that the call has ended, too.
func (r *reports) leave(id rpcpacket.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.running[id]; e != nil && e.reported {
		r.over(e, Unavailable)
	}
	delete(r.running, id)
}

// end notes how a direct call has ended.
func (r *reports) end(e *execution, code fault.Code) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over(e, code)
}

// over is end for whoever holds the lock.
func (r *reports) over(e *execution, code fault.Code) {
	if r.running[e.call.Call] != e {
		return
	}
	delete(r.running, e.call.Call)
	if e.reported {
		r.shown--
	}
	k := ended{call: e.call.Header, from: e.from.Addr(), method: e.countedAs(code), began: e.takenUp, end: r.pulse.now(), failures: e.failures, details: e.details}
	r.counts[k.method]++
	switch {
	case k.method.method == "": // whoever makes methods up is only counted
	case (e.reported || e.failures > 0) && len(r.known) < control.MaxDirectCalls-namedInReport:
		r.known = append(r.known, k)
	case code != fault.OK && r.failed < namedInReport && len(r.known) < control.MaxDirectCalls-namedInReport:
		r.known = append(r.known, k)
		r.failed++
	case len(r.ended) < namedInReport:
		r.ended = append(r.ended, k)
	default:
		r.ended[r.oldest] = k
		r.oldest = (r.oldest + 1) % len(r.ended)
	}
	r.haveNews(k.end, e.reported)
}

// countedAs is what the execution's call is counted by. Calls of methods that the service does not have are counted together.
func (e *execution) countedAs(code fault.Code) counted {
	c := counted{service: e.export.name, code: code}
	if m := e.export.offer.Load().methods[e.call.Method]; m != nil {
		c.method = m.name
	}
	return c
}

// haveNews has a report leave soon, or, unless that is urgent, when reports have rested. The caller holds r.mu.
func (r *reports) haveNews(now time.Duration, urgent bool) {
	if r.news && !urgent {
		return
	}
	due := now + reportAfter
	if !urgent {
		due = max(due, r.rests)
	}
	if !r.news && r.shown == 0 || due < r.due {
		r.due = due
	}
	r.news = true
	r.pulse.wakeAt(r.due)
}

// lookForOld has a report leave at once if a call has been under way for so long that people are to see it.
func (r *reports) lookForOld(now time.Duration) {
	if r.look == 0 || now < r.look {
		return
	}
	r.look = 0
	for _, e := range r.running {
		switch due := e.takenUp + reportAfter; {
		case e.reported:
		case due <= now:
			r.news, r.due = true, min(now, r.due)
		case r.look == 0 || due < r.look:
			r.look = due
		}
	}
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

// tick sends the report that is due, and returns when it has to be called next.
func (r *reports) tick(now time.Duration) (next time.Duration, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lookForOld(now)
	switch {
	case !r.news && r.shown == 0 || now < r.due:
		return r.next()
	case r.telling: // the last one is on its way
		r.due = now + reportAfter
		return r.next()
	}
	report := r.report(now)
	if now > r.rests+reportAfter { // there were few calls
		r.pause = 0
	}
	r.pause = reportPauses.Next(r.pause)
	r.news, r.telling, r.due, r.rests = false, true, now+reportAgain, now+r.pause
	flushed := r.flushed
	r.flushed = nil
	go func() {
		r.room(&report)
		report.Fit()
		err := r.tells(r.life.base, report)
		r.mu.Lock()
		defer r.mu.Unlock()
		if flushed != nil {
			close(flushed)
		}
		if r.telling = false; err != nil {
			r.log.Debug("rpc: the Gatekeeper has not heard which calls are under way", "node", r.life.name, "err", err)
			r.haveNews(r.pulse.now(), false)
			return
		}
		r.told = true
	}()
	return r.next()
}

// flush has all told at once that has happened so far, and waits for that until ctx or the node ends. The Gatekeeper counts no calls of services that the node has
// taken back. It is called once.
func (r *reports) flush(ctx context.Context) {
	r.mu.Lock()
	if !r.news && !r.telling {
		r.mu.Unlock()
		return
	}
	done := make(chan struct{})
	r.flushed = done
	r.news, r.due = true, r.pulse.now()
	r.pulse.wakeAt(r.due)
	r.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
	case <-r.life.base.Done(): // the node has ended: nothing is told any more
	}
}

// next is when tick has something to do, if it has. The caller holds r.mu.
func (r *reports) next() (at time.Duration, ok bool) {
	at, ok = r.look, r.look != 0
	if (r.news || r.shown > 0) && (!ok || r.due < at) {
		return r.due, true
	}
	return at, ok
}

// report is what is to be told now. What has ended is told once. The caller holds r.mu.
func (r *reports) report(now time.Duration) (c control.NodeCalls) {
	c.First = !r.told
	running := slices.SortedFunc(maps.Values(r.running), func(a, b *execution) int { return cmp.Compare(a.takenUp, b.takenUp) })
	running = slices.DeleteFunc(running, func(e *execution) bool { return !e.reported && now-e.takenUp < shortCall })
	c.More = max(0, len(running)-control.MaxDirectCalls)
	for _, e := range running[:len(running)-c.More] {
		if !e.reported {
			e.reported = true
			r.shown++
		}
		if k := (ended{call: e.call.Header, from: e.from.Addr(), method: e.countedAs(fault.OK), began: e.takenUp, details: details{size: e.details.size, headers: e.details.headers}}); k.method.method != "" {
			c.Running = append(c.Running, k.tell(now))
		}
	}
	for i := range r.known {
		c.Ended = append(c.Ended, r.known[i].tell(now))
	}
	for i := range r.ended {
		c.Ended = append(c.Ended, r.ended[(r.oldest+i)%len(r.ended)].tell(now))
	}
	r.known, r.failed, r.ended, r.oldest = r.known[:0], 0, r.ended[:0], 0
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
		Slot: uint32(h.Slot), Number: uint64(h.Number),
		Service: k.method.service, Method: k.method.method, Began: (now - k.began).Microseconds(), Attempt: h.Attempt, Code: k.method.code,
		Oneway: h.Type == rpcpacket.Oneway, Policy: uint8(h.Flags.Policy()), GivenUp: k.failures, Details: k.details.tell(),
	}
	if k.end != 0 {
		c.Took = max(1, (k.end - k.began).Microseconds())
	}
	return c
}

// underWay is the execution of a direct call that the node runs, nil if it does not.
func (r *reports) underWay(id rpcpacket.ID) *execution {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running[id]
}

// waitsAfter is how long a call waits for its turn before it is told.
const waitsAfter = 20 * time.Millisecond

// waitsPauses are those between two times that the same is told.
var waitsPauses = pace.Pauses{First: waitsAfter, Most: 320 * time.Millisecond}

// waits is what is told of calls that wait for their turn.
type waits struct {
	mu            sync.Mutex
	due, interval time.Duration
	telling       bool // the last report is on its way
	told          bool // something that the Gatekeeper may keep
}

// watchWaits has the node look after calls that have begun to wait.
func (x *export) watchWaits() {
	if x.manager != nil {
		x.node.pulse.wakeAt(x.node.pulse.now() + waitsAfter)
	}
}

// tickWaits tells what waits, if that is due, and returns when it has to be called next.
func (n *Node) tickWaits(now time.Duration) (next time.Duration, ok bool) {
	w := &n.waits
	w.mu.Lock()
	defer w.mu.Unlock()
	if due, early := w.early(now); early {
		return due, true
	}
	report, next, more := n.waiting(now)
	some := len(report.Calls) > 0
	if !some && !w.told {
		return next, more
	}
	due := w.pace(now, some)
	go func() {
		err := n.session.Calls(n.life.base, control.NodeCalls{Waits: &report})
		if err != nil {
			n.log.Debug("rpc: the Gatekeeper has not heard which calls wait", "node", n.self.Name, "err", err)
		}
		n.pulse.wakeAt(w.over(err))
	}()
	return due, true
}

// early reports whether it is too early to tell anything, and when to look again.
func (w *waits) early(now time.Duration) (due time.Duration, early bool) {
	if w.telling {
		return now + waitsAfter, true
	}
	return w.due, now < w.due
}

// pace notes that it is told now what waits, if there is some, and returns when to look again.
func (w *waits) pace(now time.Duration, some bool) (due time.Duration) {
	w.interval = waitsPauses.Next(w.interval)
	if !some {
		w.interval = 0
	}
	w.telling, w.told, w.due = true, some, now+max(waitsAfter, w.interval)
	return w.due
}

// over notes that a report has been told, or has failed, and returns when to look again. If one has failed, the Gatekeeper may keep what was told
// before.
func (w *waits) over(err error) (due time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.telling, w.told = false, w.told || err != nil
	return w.due
}

// waiting is what has waited for its turn for long enough to be told, and when there will be
// more, if there may be.
func (n *Node) waiting(now time.Duration) (report control.NodeWaits, next time.Duration, more bool) {
	for _, x := range n.exports.list() {
		if x.manager == nil {
			continue
		}
		queue, holder := x.pool.waiting()
		for _, e := range queue {
			if due := e.queued + waitsAfter; due > now {
				if !more || due < next {
					next, more = due, true
				}
				continue
			}
			if k, ok := x.waitingCall(e, holder); ok && len(report.Calls) < control.MaxWaits {
				report.Calls = append(report.Calls, k)
			}
		}
	}
	return report, next, more
}

// waitingCall is a call that waits for its turn behind another one; false if no execution can be
// waiting for it that has the slot of a service with state.
func (x *export) waitingCall(e, holder *execution) (control.WaitingCall, bool) {
	if holder == nil || e.nobody() {
		return control.WaitingCall{}, false
	}
	k := control.WaitingCall{
		ID: control.ExecutionID(e.call.Call), Behind: control.ExecutionID(holder.call.Call), For: e.waitFor(),
		Service: x.name,
	}
	if m := x.offer.Load().methods[e.call.Method]; m != nil {
		k.Method = m.name
	}
	return k, true
}

// refuseWaiting answers a call that would wait for itself, and has not begun. The answer is
// recorded like any other.
func (x *export) refuseWaiting(e *execution, why string) {
	x.endUnbegun(e, Deadlock, "the call would wait for itself: "+why)
}

// all are the executions of all direct calls that the node runs.
func (r *reports) all() []*execution {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.running))
}

// calledBy changes the incarnation of the caller for which an execution runs.
func (e *execution) calledBy(incarnation uint32) {
	e.node.reports.changes(func() { e.call.CallerIncarnation = incarnation })
}

// changes changes the call of an execution that reports may be reading.
func (r *reports) changes(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	do()
}

// newRoom has a report leave soon, since the ledger has other room.
func (r *reports) newRoom() { r.changes(func() { r.haveNews(r.pulse.now(), false) }) }

// tellRoom fills in what room the ledger has.
func (l *ledger) tellRoom(c *control.NodeCalls) {
	b := l.lock()
	defer b.unlock()
	if room, ok := b.bytesLeft(); ok {
		c.Room, c.States, c.MaxStates = &room, uint64(l.table.State().Sizes()), uint64(l.room.space/2) //nolint:gosec // not negative
	}
}
