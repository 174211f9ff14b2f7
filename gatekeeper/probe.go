package gatekeeper

import (
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// loanProbe is how long a call has leases until its callee is asked for the answer, and then
// again. Somebody has to: the caller may have gone, or have given the call up, and an answer may
// be lost, or the call itself.
const loanProbe = 2 * time.Second

// loanAgain is after how long it is asked again if somebody waits for the end of the leases.
const loanAgain = 40 * time.Millisecond

// probeLoans asks for the answers that are due: it sends what the caller would, without
// arguments. A callee that does not know the call writes down that it never runs it, and says so.
func (c *controller) probeLoans() {
	var due []*loan
	for p, ok := c.probes.front(); ok && !c.now.Before(p.at); p, ok = c.probes.front() {
		c.probes.pop()
		due = append(due, p.loan)
	}
	slices.SortFunc(due, func(a, b *loan) int { return a.id().Compare(b.id()) })
	for _, k := range due {
		c.probeLoan(k)
	}
}

// probeLoan asks for the answer to an open call.
func (c *controller) probeLoan(k *loan) {
	k.asked = c.now
	c.probeLater(k)
	c.askCallee(k, k.header)
}

// askCallee asks in the caller's name what has become of an attempt of a call.
func (c *controller) askCallee(k *loan, attempt rpcpacket.Header) {
	n := c.nodes[k.callee]
	if n == nil || n.blade.port == nil {
		return // its callee is to come back
	}
	m := rpcpacket.Message{Header: attempt}
	m.Flags |= rpcpacket.FlagReleased | rpcpacket.FlagReplay | rpcpacket.FlagHeld
	c.count.Probes++
	c.send(hopOf(n.blade.port.num), frame.UDP6{
		Src: netip.AddrPortFrom(k.caller, rackaddr.PortRPC), Dst: netip.AddrPortFrom(k.callee, rackaddr.PortDirect), Payload: m.Append(nil),
	}.Append(nil))
}

// probeLater has the callee of an open call asked when loanProbe has passed.
func (c *controller) probeLater(k *loan) {
	k.probe = c.now.Add(loanProbe)
	if _, waits := c.probes.front(); !waits {
		c.timers = true // else another one is asked before
	}
	c.probes.queue = append(c.probes.queue, probe{k, k.probe})
}

// loansDue tells when a callee is asked next.
func (c *controller) loansDue(earliest func(time.Time)) {
	if p, waits := c.probes.front(); waits {
		earliest(p.at)
	}
}

// probes are the open calls whose callees are asked, those first that are asked next. All are asked after the same time, so a call that
// opens now is the last: a call costs the same however many others are open.
type probes struct {
	queue []probe
	first int // of queue
}

// probe is when the callee of a call is to be asked. It stands until the call has ended, or its callee is asked before.
type probe struct {
	loan *loan
	at   time.Time
}

// front is the first probe that stands, false if there is none.
func (q *probes) front() (probe, bool) {
	for q.first < len(q.queue) {
		if p := q.queue[q.first]; p.loan.stage == loanOpen && p.loan.probe.Equal(p.at) {
			return p, true
		}
		q.pop()
	}
	return probe{}, false
}

// pop takes the first probe off; there must be one.
func (q *probes) pop() {
	q.queue[q.first] = probe{}
	if q.first++; 2*q.first >= len(q.queue) {
		n := copy(q.queue, q.queue[q.first:])
		clear(q.queue[n:])
		q.queue, q.first = q.queue[:n], 0
	}
}
