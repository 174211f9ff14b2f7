package rpc

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// The Gatekeeper sees nothing of direct calls, so the node that serves them tells it: what is
// under way, the latest that have ended, and how many have. Nothing depends on that but what
// people see.
//
//	a call begins or ends ── reportAfter ──▶ report ──▶ daemon ──▶ Gatekeeper

const (
	// reportAfter is how long news of direct calls are gathered.
	reportAfter = 250 * time.Millisecond
	// reportAgain is how often it is told that calls are still under way.
	reportAgain = 2 * time.Second
)

// reports is what the node tells of direct calls. The ledger's mutex guards it.
type reports struct {
	running map[rpcpacket.ID]*execution
	ended   []ended // the latest since the last report
	oldest  int     // of ended, once that is full
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

// leave notes that the ledger does not decide about a call any more, or that it was not run
// after all. The caller holds l.mu.
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
	if len(r.ended) < control.MaxDirectCalls {
		r.ended = append(r.ended, k)
	} else {
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
	if !n.goesDirect() {
		return
	}
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
	if !n.goesDirect() {
		return 0, false
	}
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
	running := slices.SortedFunc(maps.Values(r.running), func(a, b *execution) int { return cmp.Compare(a.takenUp, b.takenUp) })
	c.More = max(0, len(running)-control.MaxDirectCalls)
	for _, e := range running[:len(running)-c.More] {
		k := ended{call: e.call.Header, from: e.from.Addr(), method: e.countedAs(fault.OK), began: e.takenUp}
		c.Running = append(c.Running, k.tell(now))
	}
	for i := range r.ended {
		c.Ended = append(c.Ended, r.ended[(r.oldest+i)%len(r.ended)].tell(now))
	}
	r.ended, r.oldest = r.ended[:0], 0
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
	}
	if k.end != 0 {
		c.Took = max(1, (k.end - k.began).Microseconds())
	}
	return c
}

// cancelDirect cancels a direct call that the node runs. The caller does not hold l.mu.
func (l *ledger) cancelDirect(id rpcpacket.ID) {
	l.mu.Lock()
	e := l.reports.running[id]
	l.mu.Unlock()
	if e != nil {
		e.canceled.Store(true)
		e.abandon()
	}
}
