package rpc

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// commitment is an exactly-once call whose handler has returned, until the
// Gatekeeper has acknowledged its answer.
type commitment struct {
	export *export
	to     netip.AddrPort
	slot   bool // the service's, which the next call waits for
	// changed: the ledger has what the call has made of the service's state, and whether
	// that counts is not written.
	changed bool
}

// replays reports whether a call is delivered again because its execution was cut
// off. Its trailer is then the execution's own journal; that of other calls is the
// caller's, and for the log alone.
func replays(h *rpcpacket.Header) bool {
	return h.Flags.Exact() && h.Flags&rpcpacket.FlagReplay != 0 && h.Attempt > 0
}

// journalOf is the journal that a call's execution begins with; nil if it is not
// exactly-once. One that the packet had no room for is empty so far.
func journalOf(m *rpcpacket.Message) (*journal, error) {
	switch {
	case !m.Flags.Exact():
		return nil, nil
	case replays(&m.Header) && !trailer.IsSpilled(m.Trailer):
		return newJournal(m.Trailer)
	}
	return newJournal(nil)
}

// fetchJournal gets the journal of a call that is run again, if the packet had no
// room for it. It tries until the node ends, and reports false then: without what
// it did before the execution must do nothing.
func (e *execution) fetchJournal() bool {
	if !replays(&e.call.Header) || !trailer.IsSpilled(e.call.Trailer) {
		return true
	}
	e.promote()
	for e.node.base.Err() == nil {
		b, err := join.FetchJournal(e.node.base, e.node.session, e.call.Call)
		if err == nil {
			e.journal, err = newJournal(append(slices.Clone(e.earlier), b...))
		}
		if err == nil {
			return true
		}
		e.node.log.Warn("rpc: the journal of a call that is run again", "call", e.call.Call.String(), "error", err)
		select {
		case <-time.After(journalRetry):
		case <-e.node.base.Done():
		}
	}
	return false
}

// fetchPayload gets the rest of a logged call that exceeds a packet. It tries until the
// node ends, and reports false then.
func (e *execution) fetchPayload() bool {
	if e.call.Flags&rpcpacket.FlagMore == 0 {
		return true
	}
	e.promote()
	for e.node.base.Err() == nil {
		b, err := e.node.restOf(e.node.base, &e.call, false)
		if err == nil {
			e.call.Payload = b
			e.call.Flags &^= rpcpacket.FlagMore
			return true
		}
		e.node.log.Warn("rpc: the rest of a logged call", "call", e.call.Call.String(), "error", err)
		select {
		case <-time.After(journalRetry):
		case <-e.node.base.Done():
		}
	}
	return false
}

// restOf fetches the payload of a logged message whose first packet has come.
func (n *Node) restOf(ctx context.Context, m *rpcpacket.Message, answer bool) ([]byte, error) {
	total, _, _, err := m.Opening()
	if err != nil {
		return nil, err
	}
	return join.FetchPayload(ctx, n.session, m.Call, answer, total)
}

// seal makes the trailer of an exactly-once answer that has so many bytes without
// it: how the service's state has changed and, if the datagram has room for it, the
// journal, which the log does not need any more.
func (x *export) seal(e *execution, size int) ([]byte, *Error) {
	var b []byte
	if x.manager != nil && e.begun && !e.spoilt {
		room := x.node.logged - size
		if x.inLedger() {
			room = x.node.ledger.room()
		}
		former := x.manager.was
		change, err := x.manager.change(room)
		if err != nil {
			if err.Err != nil {
				x.node.fail(err) // only the log knows the state now; the next incarnation asks it
			}
			return nil, err
		}
		b = change
		if x.inLedger() {
			b = x.recordChange(e, former, change)
		}
	}
	if e.direct.Load() {
		return nil, nil
	}
	if entries, _ := e.journal.pending(); size+len(b)+len(entries) <= x.node.budget {
		b = append(b, entries...)
	}
	return b, nil
}

// commit sends an answer that the Gatekeeper has to log, and goes on sending it
// until that has happened. A stateful service begins no other call before.
func (x *export) commit(e *execution, datagram []byte) {
	n := x.node
	if e.unsettled {
		return
	}
	datagram = slices.Clone(datagram)
	c := &commitment{export: x, to: e.from, slot: e.begun && x.manager != nil, changed: len(e.change) > 0}
	e.keeps = c.slot
	n.in.mu.Lock()
	now := n.now()
	n.in.core.Commit(now, e.entry, datagram, c)
	n.in.mu.Unlock()
	n.send(c.to, datagram)
	n.wakeAt(now + endpoint.InitialTimeout)
	n.standIn() // for the acknowledgement
}

// acknowledged takes an ACK: the Gatekeeper has logged a call of this node, or an
// answer, or nobody has got a call. It reports whether a goroutine waits for it.
func (n *Node) acknowledged(r *reader, i int, m rpcpacket.Message) bool {
	if m.Flags&rpcpacket.FlagReleased == 0 {
		n.stats.malformed.Add(1) // the switch lets nobody else say that something is logged
		return false
	}
	if m.Flags&rpcpacket.FlagEnlist != 0 && n.goesDirect() {
		if n.forgotten(rackaddr.Gatekeeper, m.Payload); len(m.Payload) == 0 {
			n.askedToEnlist(m.Call, m.Parent)
		}
		return false
	}
	if m.Flags&rpcpacket.FlagUnbegun != 0 {
		n.out.mu.Lock()
		n.out.core.Unbegun(m.Call)
		n.out.mu.Unlock()
		return false
	}
	if m.Flags&rpcpacket.FlagDone == 0 {
		n.out.mu.Lock()
		if m.Call.Sequence() == 0 {
			n.out.core.Settled(endpoint.Settlement{Session: m.Call.Session(), Floor: m.Floor})
		}
		call := n.out.core.Acknowledge(n.now(), m.Call)
		n.out.mu.Unlock()
		return call != nil && n.deliver(call, func() *datagram { return r.take(i) }, m)
	}
	c, empty := n.in.acknowledge(&m.Header)
	if c != nil {
		n.ledger.answered(m.Call)
		c.export.decided(c, m.Call)
	}
	if c != nil && c.slot {
		c.export.pool.release()
	}
	if empty {
		n.in.tellDrained()
	}
	return false
}

// acknowledge returns the call that has been committed, if any, and whether it was
// the last.
func (in *incoming) acknowledge(ack *rpcpacket.Header) (c *commitment, empty bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	c, _ = in.core.Acknowledge(ack.Call, ack.Floor).(*commitment)
	return c, in.core.Uncommitted() == 0
}

func (in *incoming) tellDrained() {
	select {
	case in.drained <- struct{}{}:
	default:
	}
}

// drain waits until every answer has been acknowledged, or the node has ended.
func (n *Node) drain() {
	for {
		n.in.mu.Lock()
		left := n.in.core.Uncommitted()
		n.in.mu.Unlock()
		if left == 0 {
			return
		}
		select {
		case <-n.in.drained:
		case <-n.done:
			return
		}
	}
}

// tickAnswers sends again the answers that wait to be acknowledged, and returns
// when it has to be called next.
func (n *Node) tickAnswers(now time.Duration) (next time.Duration, ok bool) {
	n.in.mu.Lock()
	var out []netio.Message
	for _, e := range n.in.core.Tick(now, nil) {
		out = n.pieces(out, netio.Message{Buf: e.Reply(), Remote: e.Tag.(*commitment).to})
	}
	next, ok = n.in.core.Due()
	n.in.mu.Unlock()
	if len(out) > 0 {
		n.stats.resent.Add(uint64(len(out)))
		_, _ = n.conn.WriteBatch(out) // a failure is a loss: it is sent again
	}
	return next, ok
}
