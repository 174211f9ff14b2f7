package direct

import (
	"net/netip"
	"time"

	"github.com/bifrost-rack/bifrost/internal/share"
	"github.com/bifrost-rack/bifrost/rpc/internal/sent"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Limits bound what a Volatile remembers.
type Limits struct {
	// Slots is how many call slots of callers are remembered, which the nodes' owners share (package share), and NodeSlots how many of one
	// node. A slot takes some 200 bytes.
	Slots, NodeSlots int
	// ReplyBytes is how many bytes of answers are kept for re-sending.
	ReplyBytes int
	// Lifetime is for how long nothing must have been heard of a slot until it is forgotten. No packet may live as long in
	// the network, and no caller be silent as long while it waits.
	Lifetime time.Duration
}

// DefaultLimits let a rack's busiest service remember 256 callers that have all slots which a node may have.
var DefaultLimits = Limits{Slots: 1 << 18, NodeSlots: rpcpacket.MaxBlocks * rpcpacket.BlockSlots, ReplyBytes: 64 << 20, Lifetime: 10 * time.Minute}

// Volatile is what a node knows of the calls of policy none that it has got. No record says anything of them. So each is bound
// to the incarnation that its caller has chosen, from its first packet on: what comes to a later one may have run before, and is
// refused (Gone). In a call slot one call at a time is out, so a call of a higher number ends the one before it. Its methods must not
// be called concurrently.
type Volatile struct {
	incarnation uint32
	limits      Limits
	slots       map[record.Place]*slot
	callers     map[[16]byte]*past
	held        *share.Nodes // how many slots
	aging       list[*slot]  // the least recently heard of first
	replies     list[*Entry] // answers kept, the oldest first
	replyBytes  int
}

// slot is a call slot of a caller: calls below the floor are over for good.
type slot struct {
	at    record.Place
	floor rpcpacket.Number
	call  *Entry // the last one, if that is known
	heard time.Duration
	queue links[*slot]
}

// past is what is known of a caller beside its slots.
type past struct {
	dead   uint32 // of the incarnations up to this one no call begins any more
	forgot uint32 // of those up to this one calls may have been forgotten
}

// Entry is one call that a Volatile knows.
type Entry struct {
	ID rpcpacket.ID
	// Tag is the shell's; it is cleared by Finish.
	Tag any

	slot    *slot
	number  rpcpacket.Number
	reply   []byte        // the answer, as a datagram; nil while there is none
	payload *sent.Payload // the answer's whole payload, if reply is only its first packet
	running bool
	givenUp bool          // its caller has given it up
	refused bool          // before it began, and it never will
	gone    bool          // forgotten: its slot has gone on
	settled bool          // the caller has all of a large answer
	kept    links[*Entry] // in Volatile.replies while reply is kept
}

// Arrival is what became of a call that has arrived.
type Arrival struct {
	Verdict Verdict
	Entry   *Entry // for Run: the shell ends it with Finish or Forget
	Reply   []byte // for Answer; it does not change any more
	// Payload is in whose memory Reply may lie, if that is a first packet. Who uses Reply holds it, before another method is called.
	Payload *sent.Payload
	// Abandoned is a running call that its caller has given up, nil if there is none. It is to end soon: if its slot has not gone on,
	// copies are answered with its answer.
	Abandoned *Entry
}

// NewVolatile returns the Volatile of a node's incarnation. A function, which must not call it back, says whose a caller is; nil
// stands for share.Stranger.
func NewVolatile(incarnation uint32, limits Limits, ownerOf func(node netip.Addr) share.Owner) *Volatile {
	return &Volatile{
		incarnation: incarnation, limits: limits, slots: make(map[record.Place]*slot), callers: make(map[[16]byte]*past),
		held: share.NewNodes(uint64(max(limits.Slots, 0)), ownerOf), //nolint:gosec // not negative
	}
}

// Crowded reports whether it matters whose callers are.
func (v *Volatile) Crowded() bool { return v.held.Crowded() }

// Learn has a caller's slots charged to its owner, of whom there is news.
func (v *Volatile) Learn(caller netip.Addr) { v.held.Learn(caller) }

// Receive takes a copy of a call or one-way from a node. If it is marked as given up, the call is Refused unless it has begun.
func (v *Volatile) Receive(now time.Duration, caller netip.Addr, h *rpcpacket.Header) Arrival {
	v.forgetOld(now)
	if wrong := v.misplaced(caller, h); wrong != 0 {
		return Arrival{Verdict: wrong}
	}
	dead := v.before(caller).dead
	l, number := v.slots[record.Place{Caller: caller.As16(), Slot: h.Slot}], h.Number
	if h.CallerIncarnation <= dead && (l == nil || l.call == nil || l.call.number != number) {
		return Arrival{Verdict: Late}
	}
	if l = v.slot(now, caller, h.Slot); l == nil {
		return Arrival{Verdict: Full}
	}
	givenUp := h.Flags&rpcpacket.FlagGivenUp != 0
	switch {
	case number < l.floor:
		return Arrival{Verdict: Late}
	case l.call != nil && l.call.number == number:
		return l.call.copied(givenUp)
	}
	a := Arrival{Verdict: Run, Abandoned: v.raise(l, number)}
	l.call = &Entry{ID: h.Call, slot: l, number: number, running: !givenUp, givenUp: givenUp, refused: givenUp}
	l.call.kept.value = l.call
	if a.Entry = l.call; givenUp {
		a.Verdict, a.Entry = Refused, nil
	}
	return a
}

// copied takes a copy of a call that is known.
func (e *Entry) copied(givenUp bool) Arrival {
	a := e.known()
	if e.givenUp = e.givenUp || givenUp; givenUp && e.running {
		a.Abandoned = e
	}
	return a
}

// Ask takes a question what has become of a call, of its caller's later incarnation or of the Gatekeeper in its name: Answer, Duplicate if
// it runs, Refused, Lost, Gone if it was bound to another incarnation, or Unbegun if it has not come. Then it does not begin any more. A question
// that names no incarnation may be about a call of another policy: the Table is to be asked before "never began" is said.
func (v *Volatile) Ask(caller netip.Addr, h *rpcpacket.Header) Arrival {
	switch {
	case unaskable(h):
		return Arrival{Verdict: Malformed}
	case h.CalleeIncarnation != 0 && h.CalleeIncarnation != v.incarnation:
		return Arrival{Verdict: Gone}
	}
	k := v.before(caller)
	l := v.slots[record.Place{Caller: caller.As16(), Slot: h.Slot}]
	switch {
	case l != nil && l.call != nil && l.call.number == h.Number && l.call.settled:
		return Arrival{Verdict: Lost} // by an incarnation that has died since
	case l != nil && l.call != nil && l.call.number == h.Number:
		return l.call.known()
	case h.CalleeIncarnation != 0 && (l != nil && h.Number < l.floor || h.Number.Incarnation() <= k.forgot):
		return Arrival{Verdict: Lost}
	}
	k.dead = max(k.dead, h.CallerIncarnation-1)
	v.callers[caller.As16()] = &k
	return Arrival{Verdict: Unbegun}
}

// before is what is known of a caller beside its slots.
func (v *Volatile) before(caller netip.Addr) past {
	if k := v.callers[caller.As16()]; k != nil {
		return *k
	}
	return past{}
}

// misplaced is the verdict on a call that is not this incarnation's, or is no plain call of its caller's; 0 for others.
func (v *Volatile) misplaced(caller netip.Addr, h *rpcpacket.Header) Verdict {
	wrong := misnamed(caller.As16(), h)
	switch {
	case wrong != 0:
		return wrong
	case h.Call.Derived() || h.CalleeIncarnation == 0:
		return Malformed
	case h.CalleeIncarnation != v.incarnation:
		return Gone
	}
	return 0
}

// slot returns a caller's slot, of which something is heard now: a new one if need be, or nil if there is no room.
func (v *Volatile) slot(now time.Duration, node netip.Addr, number rpcpacket.Slot) *slot {
	at := record.Place{Caller: node.As16(), Slot: number}
	l := v.slots[at]
	if l == nil {
		if v.held.Held(node) >= uint64(v.limits.NodeSlots) || !v.held.Take(node, 1) { //nolint:gosec // not negative
			return nil
		}
		l = &slot{at: at}
		l.queue.value = l
		v.slots[at] = l
	}
	l.heard = now
	v.aging.remove(&l.queue)
	v.aging.push(&l.queue)
	return l
}

// raise moves a slot's floor up. It returns the slot's call if that runs, and is passed.
func (v *Volatile) raise(l *slot, floor rpcpacket.Number) (abandoned *Entry) {
	l.floor = floor
	e := l.call
	if e == nil || e.number >= floor {
		return nil
	}
	l.call = nil
	v.pass(e)
	if e.running {
		return e
	}
	return nil
}

// pass forgets a call and its answer.
func (v *Volatile) pass(e *Entry) {
	v.dropReply(e)
	e.gone = true
}

// known is what to do with a copy of a call that is known already.
func (e *Entry) known() Arrival {
	switch {
	case e.settled:
		return Arrival{Verdict: Late}
	case e.reply != nil:
		return Arrival{Verdict: Answer, Reply: e.reply, Payload: e.payload}
	case e.running:
		return Arrival{Verdict: Duplicate}
	case e.refused:
		return Arrival{Verdict: Refused}
	}
	return Arrival{Verdict: Lost}
}

// Answer keeps the answer to a call that goes on running, such as the receipt of a one-way: copies are answered with it from now
// on.
func (v *Volatile) Answer(e *Entry, reply []byte) {
	if e.gone || e.reply != nil {
		return
	}
	e.reply = reply
	v.replies.push(&e.kept)
	v.replyBytes += len(reply) + len(e.payload.Bytes())
	for v.replyBytes > v.limits.ReplyBytes && v.replies.len > 1 {
		v.dropReply(v.replies.first())
	}
}

// Finish ends a call. The reply, a whole datagram, is kept until the caller's slot has gone on, or a lifetime has passed; it must
// not change any more. It is nil if the call has an Answer already. The reply may be the first packet of an answer whose whole
// payload is given, too, in whose memory it may lie; see Payload.
func (v *Volatile) Finish(e *Entry, reply []byte, payload *sent.Payload) {
	e.running, e.Tag = false, nil
	if !e.gone && e.reply == nil {
		e.payload = payload
	} else {
		payload.Release()
	}
	if reply != nil {
		v.Answer(e, reply)
	}
}

// Forget undoes the Run of a call that was not run after all: when it arrives again it is new, or Refused if its caller has given it up. No
// Answer to it must have been sent.
func (v *Volatile) Forget(e *Entry) {
	e.running, e.Tag = false, nil
	if e.refused = e.givenUp && !e.gone; e.refused {
		return
	}
	if !e.gone {
		e.slot.call = nil
	}
	v.pass(e)
}

// dropReply forgets an answer, not the call.
func (v *Volatile) dropReply(e *Entry) {
	if e.reply == nil {
		return
	}
	v.replies.remove(&e.kept)
	v.replyBytes -= len(e.reply) + len(e.payload.Bytes())
	e.payload.Release()
	e.reply, e.payload = nil, nil
}

// find returns a call of a node that is remembered, or nil.
func (v *Volatile) find(from netip.Addr, id rpcpacket.ID) *Entry {
	number, _ := id.Place()
	if l := v.slots[record.Place{Caller: from.As16(), Slot: number}]; l != nil && l.call != nil && l.call.ID == id {
		return l.call
	}
	return nil
}

// Payload is the payload of the answer to a call of a node, if the answer exceeds a packet and is kept; else nil. It does not
// change.
func (v *Volatile) Payload(from netip.Addr, id rpcpacket.ID) *sent.Payload {
	if e := v.find(from, id); e != nil {
		return e.payload
	}
	return nil
}

// Settle forgets an answer that exceeds a packet: the caller says that it has it. The call stays known.
func (v *Volatile) Settle(from netip.Addr, id rpcpacket.ID) {
	if e := v.find(from, id); e != nil && e.payload != nil {
		v.dropReply(e)
		e.settled = true
	}
}

// forgetOld forgets slots of which nothing has been heard for longer than a packet lives. What runs is kept.
func (v *Volatile) forgetOld(now time.Duration) {
	for v.aging.len > 0 {
		l := v.aging.first()
		if now-l.heard <= v.limits.Lifetime {
			break
		}
		v.aging.remove(&l.queue)
		if l.call != nil && l.call.running {
			l.heard = now
			v.aging.push(&l.queue)
			continue
		}
		v.forget(l)
	}
}

func (v *Volatile) forget(l *slot) {
	if l.call != nil {
		v.pass(l.call)
	}
	caller := netip.AddrFrom16(l.at.Caller)
	k := v.before(caller)
	k.forgot = max(k.forgot, l.floor.Incarnation())
	v.callers[l.at.Caller] = &k
	delete(v.slots, l.at)
	v.held.Release(caller, 1)
}

// links make a value a member of at most one list, without an allocation.
type links[T any] struct {
	value      T
	owner      *list[T]
	prev, next *links[T]
}

// list is a queue from whose middle members can be taken. The zero list is empty.
type list[T any] struct {
	head links[T]
	len  int
}

// push appends a member that is in no list.
func (l *list[T]) push(n *links[T]) {
	if l.head.next == nil {
		l.head.prev, l.head.next = &l.head, &l.head
	}
	n.owner, n.prev, n.next = l, l.head.prev, &l.head
	n.prev.next, l.head.prev = n, n
	l.len++
}

// remove takes a member out; one that is not in l stays where it is.
func (l *list[T]) remove(n *links[T]) {
	if n.owner != l {
		return
	}
	n.prev.next, n.next.prev = n.next, n.prev
	n.owner, n.prev, n.next = nil, nil, nil
	l.len--
}

// first returns the oldest member's value; the list must not be empty.
func (l *list[T]) first() T { return l.head.next.value }

// Known calls f with each call that the node knows, with its entry's tag and its answer, as far as there are such.
func (v *Volatile) Known(f func(at record.Place, n rpcpacket.Number, id rpcpacket.ID, tag any, reply []byte)) {
	for at, l := range v.slots {
		if e := l.call; e != nil {
			f(at, e.number, e.ID, e.Tag, e.reply)
		}
	}
}
