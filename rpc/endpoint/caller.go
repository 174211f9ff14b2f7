package endpoint

import (
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/pace"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Call is one message that its sender repeats until it is answered. What is exported belongs to the shell, but for Slot and
// Number, and for the ID of a plain call. The shell must leave a Call alone from Take until it comes back from Receive, Tick, End or
// Return.
type Call struct {
	// ID is the call's. The shell sets one that follows from an execution's (ChildID) before Take, which fills in that of a plain call.
	ID rpcpacket.ID
	// Slot and Number are the call's place, from Take on. Slots is how many slots it takes, Slot and those behind it, all with its number. 0 stands
	// for one; at most rpcpacket.MaxLists. The shell sets it before Take.
	Slot   rpcpacket.Slot
	Number rpcpacket.Number
	Slots  int
	// Node is whom the call goes to. The shell sets it before Take.
	Node [16]byte
	// Kept says that the node's ledger keeps a plain call until it is told to forget it, or the slot's next call comes to that node. The
	// shell sets it before Begin.
	Kept bool
	// RTT is the estimate for the method that is called.
	RTT *RTT
	// Expires is when Tick gives the call up; 0 is never. A call that somebody
	// waits for is ended by the shell instead.
	Expires time.Duration
	// Holds says that the call's slots stay held when it is answered, or was turned around for good: until Unhold. The ledger is to
	// say first what has become of the call, or it is asked about again. The shell sets it before Begin or Ask.
	Holds bool
	// Tag is what the shell likes to find again.
	Tag any

	slot       *slot   // from Take until it is free again
	more       []*slot // that it takes behind that
	plain      bool    // Take has made the ID
	sent, due  time.Duration
	interval   time.Duration
	restarted  time.Duration // before, no word of its node makes a copy due
	lent       time.Duration // the last pause because its last copies were turned around as lent
	unsent     bool          // the switch has turned its last copy around as lent: the next one counts as the first
	again      bool
	prev, next *Call
}

// Resent reports whether the call was sent more than once.
func (c *Call) Resent() bool { return c.again }

// Due is when Tick has something to do for the call.
func (c *Call) Due() time.Duration {
	if c.Expires != 0 {
		return min(c.due, c.Expires)
	}
	return c.due
}

// slot is a call slot of the node.
type slot struct {
	number rpcpacket.Slot
	used   bool   // it has a call, or no numbers are left
	count  uint64 // of the last call
	kept   note   // the last plain call, if its node's ledger keeps it
}

// note is a plain call that is over, and of which somebody is to be told so when it is due.
type note struct {
	node [16]byte
	call rpcpacket.ID // zero for none
	due  time.Duration
}

// Left is a plain call that is over, and that a node is to be told to forget.
type Left struct {
	Node [16]byte
	Call rpcpacket.ID
}

// ForgetAfter is how long a slot has no next call, which says so, until a node is told that nobody asks any more for the slot's last one.
const ForgetAfter = 500 * time.Millisecond

// queue is the calls to a node that wait for slots.
type queue struct {
	node  [16]byte
	calls []*Call
}

// hold is a slot that no new call gets.
type hold struct {
	number rpcpacket.Number // for which the switch may have it open
	node   [16]byte         // that the call went to
	asked  *Call            // the question that is out
}

// Caller is the calling side of a node's incarnation. The switch has the slots of a call open until the call is answered. So only an answer
// counts that names the call's slot and number, and a call that expires is given up (Detach), not ended.
type Caller struct {
	node        netip.Addr
	incarnation uint32
	served      func(*Call)
	blocks      map[uint32][]*slot
	slots       int // that the node has
	held        map[rpcpacket.Slot]*hold
	idle        []*slot          // the last used is the last, and used first, so that few stay in use
	taken       map[[16]byte]int // by calls to each node
	waiting     []*queue         // in turn
	waits       int              // calls in these
	noted       int              // notes of slots
	left        []Left
	calls       map[rpcpacket.ID]*Call
	head        Call // ring of the calls that are out, the oldest first
}

// NewCaller returns the Caller of a node's incarnation, which has no slots yet. A function, which must not call the Caller, is called with each call
// that gets a slot after it has waited for one.
func NewCaller(node netip.Addr, incarnation uint32, served func(*Call)) *Caller {
	c := &Caller{
		node: node, incarnation: incarnation, served: served, blocks: map[uint32][]*slot{}, held: map[rpcpacket.Slot]*hold{},
		taken: map[[16]byte]int{}, calls: map[rpcpacket.ID]*Call{},
	}
	c.head.prev, c.head.next = &c.head, &c.head
	return c
}

// Outstanding is how many calls are out.
func (c *Caller) Outstanding() int { return len(c.calls) }

// Grant adds the slots of blocks, as far as the node does not have them, and reports whether there are new ones.
func (c *Caller) Grant(blocks []uint32) (news bool) {
	for _, b := range blocks {
		if c.blocks[b] != nil {
			continue
		}
		fresh := make([]*slot, rpcpacket.BlockSlots)
		for i := range fresh {
			number := rpcpacket.Slot(b*rpcpacket.BlockSlots + uint32(i)) //nolint:gosec // small
			fresh[i] = &slot{number: number, used: c.held[number] != nil}
		}
		c.blocks[b], news = fresh, true
		fresh = slices.DeleteFunc(slices.Clone(fresh), func(s *slot) bool { return s.used })
		slices.Reverse(fresh)
		c.idle = append(fresh, c.idle...)
		c.slots += rpcpacket.BlockSlots
	}
	c.serve()
	return news
}

// Want is how many blocks the node should have: more as soon as half of its slots are used. It is 0 if it needs no more, or may not have more.
func (c *Caller) Want() int {
	need := 2 * (c.slots - len(c.idle) + c.waits)
	want := min(max((need+rpcpacket.BlockSlots-1)/rpcpacket.BlockSlots, len(c.blocks)+1), rpcpacket.MaxBlocks)
	if need <= c.slots || want <= len(c.blocks) {
		return 0
	}
	return want
}

// Take gives a call its slots, and its number there. It reports false if the call has to wait, and holds none meanwhile: until it is served, or leaves.
// Calls to one node have half of the slots at most, so that one that does not answer does not keep the others from being called.
func (c *Caller) Take(call *Call) bool {
	if s := c.free(call); s != nil {
		c.give(call, s)
		return true
	}
	c.waits++
	for _, q := range c.waiting {
		if q.node == call.Node {
			q.calls = append(q.calls, call)
			return false
		}
	}
	c.waiting = append(c.waiting, &queue{call.Node, []*Call{call}})
	return false
}

// free finds slots for a call, next to each other in a block; nil if there are none.
func (c *Caller) free(call *Call) []*slot {
	n := max(call.Slots, 1)
	if c.taken[call.Node]+n > c.slots/2 {
		return nil
	}
	for _, first := range slices.Backward(c.idle) {
		block := c.blocks[first.number.Block()][first.number%rpcpacket.BlockSlots:]
		if len(block) >= n && !slices.ContainsFunc(block[:n], func(s *slot) bool { return s.used }) {
			return block[:n]
		}
	}
	return nil
}

func (c *Caller) give(call *Call, all []*slot) {
	c.taken[call.Node] += len(all)
	count := uint64(0)
	for _, s := range all {
		count = max(count, s.count+2) // nobody has the numbers in between: see docs/rights.md, section 8
	}
	for _, s := range all {
		s.used, s.count = true, count
	}
	last := len(c.idle) - 1
	if c.idle[last] == all[0] && len(all) == 1 {
		c.idle = c.idle[:last]
	} else {
		c.idle = slices.DeleteFunc(c.idle, func(s *slot) bool { return s.used })
	}
	call.slot, call.more, call.Slot, call.Number = all[0], all[1:], all[0].number, rpcpacket.NumberOf(c.incarnation, count)
	if call.plain = call.ID.IsZero(); call.plain {
		call.ID = rpcpacket.PlainID(c.node, call.Slot, call.Number)
	}
}

// Waits reports whether a call with an id that follows from an execution's waits for a slot.
func (c *Caller) Waits(id rpcpacket.ID) bool {
	return slices.ContainsFunc(c.waiting, func(q *queue) bool {
		return slices.ContainsFunc(q.calls, func(k *Call) bool { return k.ID == id })
	})
}

// Leave takes back that a call waits for slots. It reports false if the call does not wait any more: it has some. There may be enough for those
// that have waited behind it.
func (c *Caller) Leave(call *Call) bool {
	for i, q := range c.waiting {
		k := slices.Index(q.calls, call)
		if k < 0 {
			continue
		}
		q.calls = slices.Delete(q.calls, k, k+1)
		if len(q.calls) == 0 {
			c.waiting = slices.Delete(c.waiting, i, i+1)
		}
		c.waits--
		c.serve()
		return true
	}
	return false
}

// Abandon takes back that calls wait, and returns them.
func (c *Caller) Abandon() (all []*Call) {
	for _, q := range c.waiting {
		all = append(all, q.calls...)
	}
	c.waiting, c.waits = nil, 0
	return all
}

// serve gives free slots to calls that wait, to one node after the other.
func (c *Caller) serve() {
	for passed := 0; passed < len(c.waiting); {
		q := c.waiting[0]
		c.waiting = c.waiting[1:]
		s := c.free(q.calls[0])
		if s == nil {
			c.waiting = append(c.waiting, q)
			passed++
			continue
		}
		call := q.calls[0]
		if q.calls = q.calls[1:]; len(q.calls) > 0 {
			c.waiting = append(c.waiting, q)
		}
		c.waits--
		passed = 0
		c.give(call, s)
		c.served(call)
	}
}

// Return gives the slots of a call back that has some and does not begin. Their number is not used again.
func (c *Caller) Return(call *Call) {
	first, more := call.slot, call.more
	call.slot, call.more = nil, nil
	c.release(call.Node, 1+len(more))
	for i := len(more) - 1; i >= 0; i-- {
		c.putBack(more[i])
	}
	c.putBack(first)
	c.serve()
}

// release notes that calls to a node have so many slots less.
func (c *Caller) release(node [16]byte, slots int) {
	if c.taken[node] -= slots; c.taken[node] == 0 {
		delete(c.taken, node)
	}
}

// Hold keeps a slot from new calls: the switch has it open for a former incarnation's call to a node, under this number, or that
// call is to be asked about again. A call that has several slots needs each of them held.
func (c *Caller) Hold(at rpcpacket.Slot, n rpcpacket.Number, node [16]byte) {
	if c.held[at] != nil {
		return
	}
	if block := c.blocks[at.Block()]; block != nil {
		s := block[at%rpcpacket.BlockSlots]
		if s.used {
			return // by a call of this incarnation: the former one is over
		}
		s.used = true
		c.idle = slices.DeleteFunc(c.idle, func(s *slot) bool { return s.used })
	}
	c.held[at] = &hold{number: n, node: node}
	c.taken[node]++
}

// Unhold gives slots to new calls that are held under a number, so many from the first one on. A question about them must not be out.
func (c *Caller) Unhold(first rpcpacket.Slot, n rpcpacket.Number, slots int) {
	for i := max(slots, 1) - 1; i >= 0; i-- {
		at := first + rpcpacket.Slot(i) //nolint:gosec // small
		h := c.held[at]
		if h == nil || h.number != n || h.asked != nil {
			continue
		}
		delete(c.held, at)
		c.release(h.node, 1)
		if block := c.blocks[at.Block()]; block != nil {
			c.putBack(block[at%rpcpacket.BlockSlots])
		}
	}
	c.serve()
}

// Held reports whether a slot is held under a number.
func (c *Caller) Held(at rpcpacket.Slot, n rpcpacket.Number) bool {
	h := c.held[at]
	return h != nil && h.number == n
}

// Ask begins the question what has become of a call whose slots are held. Slot, Number, Slots, Node and ID are that call's; without an ID it
// is a plain call's. The shell sends the question at once, and then as Tick says. The call's answer ends it, and its slots are free then, unless it Holds
// them. Ask reports false if the slots are not held for this number and node, or if a question about them is out, or a call with that id.
func (c *Caller) Ask(now time.Duration, call *Call) bool {
	if call.ID.IsZero() {
		call.ID = rpcpacket.PlainID(c.node, call.Slot, call.Number)
	}
	n := max(call.Slots, 1)
	at := int(call.Slot % rpcpacket.BlockSlots)
	block := c.blocks[call.Slot.Block()]
	if c.calls[call.ID] != nil || block == nil || at+n > len(block) {
		return false
	}
	block = block[at : at+n]
	for _, s := range block {
		if h := c.held[s.number]; h == nil || h.number != call.Number || h.node != call.Node || h.asked != nil {
			return false
		}
	}
	for _, s := range block {
		c.held[s.number].asked = call
	}
	call.slot, call.more, call.plain = block[0], block[1:], false
	c.start(now, call)
	return true
}

// asks reports whether a call is a question that is out.
func (c *Caller) asks(call *Call) bool {
	h := c.held[call.Slot]
	return h != nil && h.asked == call
}

func (c *Caller) putBack(s *slot) {
	if s.count+2 > rpcpacket.MaxCount {
		c.slots-- // the next incarnation of the node may use it again
		return
	}
	s.used = false
	c.idle = append(c.idle, s)
}

// Begin begins a call that has a slot. The shell sends it at once. It reports false, and gives the slot back, if a call with that id is out.
func (c *Caller) Begin(now time.Duration, call *Call) bool {
	if c.calls[call.ID] != nil {
		c.Return(call)
		return false
	}
	for _, s := range call.more {
		c.leave(&s.kept)
	}
	if s := call.slot; call.plain {
		if s.kept.node != call.Node || !call.Kept {
			c.leave(&s.kept)
		}
		if call.Kept {
			c.note(&s.kept, note{call.Node, call.ID, now + ForgetAfter})
		}
	}
	c.start(now, call)
	return true
}

// note replaces a note of a slot.
func (c *Caller) note(at *note, by note) {
	if at.call.IsZero() {
		c.noted++
	}
	*at = by
}

// leave has whom a note is about told.
func (c *Caller) leave(at *note) {
	if at.call.IsZero() {
		return
	}
	c.noted--
	c.left = append(c.left, Left{at.node, at.call})
	*at = note{}
}

// Left returns calls that are to be forgotten: their slots have gone on to other nodes, or are idle.
func (c *Caller) Left(now time.Duration) []Left {
	if c.noted > 0 {
		for _, s := range c.idle {
			if s.kept.due <= now {
				c.leave(&s.kept)
			}
		}
	}
	left := c.left
	c.left = nil
	return left
}

func (c *Caller) start(now time.Duration, call *Call) {
	call.interval = call.RTT.Timeout()
	call.sent, call.due, call.restarted, call.again = now, now+call.interval, 0, false
	call.lent, call.unsent = 0, false
	call.RTT.out++
	call.prev, call.next = c.head.prev, &c.head
	call.prev.next, c.head.prev = call, call
	c.calls[call.ID] = call
}

// Receive takes a reply or exception from an address and returns the call that it answers,
// which is thereby ended. It returns nil for what answers no call: a duplicate, an
// answer to a call given up, or a stranger's packet.
func (c *Caller) Receive(now time.Duration, from netip.Addr, m *rpcpacket.Message) *Call {
	if m.Type != rpcpacket.Reply && m.Type != rpcpacket.Exception {
		return nil
	}
	call := c.Find(from, m)
	if call != nil {
		c.answered(now, call)
	}
	return call
}

// Out returns the call with an id, nil if none is out.
func (c *Caller) Out(id rpcpacket.ID) *Call { return c.calls[id] }

// Find returns the call that an answer is to, without ending it; nil if none is out. A call is answered by the node that it was
// sent to, in its slot and under its number: an answer to another place leaves the call's slots open. A node refuses one place of a call,
// and may run the same call when that is sent again, in another slot or under another number.
func (c *Caller) Find(from netip.Addr, m *rpcpacket.Message) *Call {
	call := c.calls[m.Call]
	if h := c.held[m.Slot]; call == nil && h != nil && h.number == m.Number {
		call = h.asked // whose id was not known
	}
	if call == nil || from.As16() != call.Node || !call.at(m) {
		return nil
	}
	return call
}

// at reports whether a message names the call's place.
func (c *Call) at(m *rpcpacket.Message) bool { return m.Slot == c.Slot && m.Number == c.Number }

// lentPauses are those before a call is sent again that the switch has turned around as lent.
var lentPauses = pace.Pauses{First: time.Millisecond, Most: 100 * time.Millisecond}

// Turned takes a call or question of the node's own that the switch has sent back. It returns the call, nil if that is not out, and whether it
// is over, as if it were answered: the shell makes the outcome. One that was turned around as lent is sent again, after a pause.
func (c *Caller) Turned(now time.Duration, m *rpcpacket.Message) (call *Call, over bool) {
	call = c.calls[m.Call]
	switch {
	case call == nil || !call.at(m) || c.asks(call) != (m.Type == rpcpacket.Ask):
		return nil, false
	case m.Turned != rpcpacket.Lent:
		return call, c.End(call)
	}
	call.lent = lentPauses.Next(call.lent)
	call.interval, call.due, call.unsent = call.RTT.Timeout(), now+call.lent, true
	return call, false
}

// Postpone starts the wait for a call's answer afresh: the other side has asked for
// more of the call, or a part of the answer has come. It returns the call, nil if it
// is not out.
func (c *Caller) Postpone(now time.Duration, id rpcpacket.ID) *Call {
	call := c.calls[id]
	if call != nil {
		call.due = now + call.interval
	}
	return call
}

// answered learns from a call's answer and ends it.
func (c *Caller) answered(now time.Duration, call *Call) {
	if n := &call.slot.kept; n.call == call.ID {
		n.due = now + ForgetAfter
	}
	if call.again {
		call.RTT.answeredLate(now - call.sent)
	} else {
		call.RTT.answered(now - call.sent)
	}
	c.End(call)
}

// Age is for how long the call has been out.
func (c *Call) Age(now time.Duration) time.Duration { return now - c.sent }

// End gives a call up: it is not sent again, and an answer to it is ignored. Its slot is free, unless it Holds that.
// Ending a call that is not out does nothing and reports false. If the switch may have the slot open, the call is to be left to
// the Caller instead (Detach).
func (c *Caller) End(call *Call) bool {
	if c.calls[call.ID] != call {
		return false
	}
	delete(c.calls, call.ID)
	call.RTT.out--
	call.prev.next, call.next.prev = call.next, call.prev
	call.prev, call.next = nil, nil
	if call.Holds || c.asks(call) {
		c.keep(call)
	} else {
		c.Return(call)
	}
	return true
}

// keep has the slots of a call that is over held, or unheld if it was a question whose answer nobody will ask for again.
func (c *Caller) keep(call *Call) {
	first, slots := call.slot.number, 1+len(call.more)
	call.slot, call.more = nil, nil
	for i := range slots {
		at := first + rpcpacket.Slot(i) //nolint:gosec // small
		if h := c.held[at]; h != nil {
			h.asked = nil
		} else {
			c.held[at] = &hold{number: call.Number, node: call.Node}
		}
	}
	if !call.Holds {
		c.Unhold(first, call.Number, slots)
	}
}

// Detach leaves a call to the Caller until it is answered or, unless that is 0,
// expires: nobody waits for it any more. It keeps its slots. It reports false if it is not out.
func (c *Caller) Detach(call *Call, expires time.Duration) bool {
	if c.calls[call.ID] != call {
		return false
	}
	call.Expires = expires
	return true
}

// Orphan has another call take the place of one that is out, with its slot: whoever has made that does not wait any more. The former one is over. The
// heir's Tag is kept.
func (c *Caller) Orphan(call, heir *Call) {
	tag := heir.Tag
	*heir = *call
	heir.Tag = tag
	heir.prev.next, heir.next.prev = heir, heir
	c.calls[heir.ID] = heir
	call.prev, call.next, call.slot, call.more = nil, nil, nil, nil
}

// Due is when Tick has something to do next; false means not before a Begin. It
// looks at every call that is out.
func (c *Caller) Due() (at time.Duration, ok bool) {
	for call := c.head.next; call != &c.head; call = call.next {
		if due := call.Due(); !ok || due < at {
			at, ok = due, true
		}
	}
	if c.noted == 0 {
		return at, ok
	}
	for _, s := range c.idle {
		if n := &s.kept; !n.call.IsZero() && (!ok || n.due < at) {
			at, ok = n.due, true
		}
	}
	return at, ok
}

// Tick appends the calls to send again to resend, and those that have expired to expired. These go on, and do not expire any more.
func (c *Caller) Tick(now time.Duration, resend, expired []*Call) (r, e []*Call) {
	for call := c.head.next; call != &c.head; {
		this := call
		call = call.next
		switch {
		case this.Expires != 0 && this.Expires <= now:
			expired = append(expired, this)
			this.Expires = 0
		case this.unsent && this.due <= now:
			this.unsent, this.again = false, false
			this.sent, this.due = now, now+this.interval
			resend = append(resend, this)
		case this.due <= now && !this.again && this.sent+this.interval+this.RTT.crowded() > now:
			this.due = this.sent + this.interval + this.RTT.crowded() // its callee may be busy with the others
		case this.due <= now:
			this.again = true
			this.interval = pace.Pauses{Most: MaxTimeout}.Next(this.interval)
			this.due = now + this.interval
			resend = append(resend, this)
		}
	}
	return resend, expired
}

// Restarted takes a node's word that it has restarted and takes direct calls: the copies sent
// before are lost. Each call to the node is due at once, but MinTimeout after the node's last
// word at the earliest, and is repeated from then on like one that has just begun. Restarted
// returns when the first of these calls is due, false if there is none.
func (c *Caller) Restarted(now time.Duration, node [16]byte) (at time.Duration, ok bool) {
	for call := c.head.next; call != &c.head; call = call.next {
		if call.Node != node {
			continue
		}
		call.interval = min(call.interval, call.RTT.Timeout())
		if at := max(now, call.restarted); at < call.due {
			call.due, call.restarted = at, at+MinTimeout
		}
		if !ok || call.due < at {
			at, ok = call.due, true
		}
	}
	return at, ok
}

// All appends every call that is out, the oldest first.
func (c *Caller) All(calls []*Call) []*Call {
	for call := c.head.next; call != &c.head; call = call.next {
		calls = append(calls, call)
	}
	return calls
}

// Used calls f with the last number of each slot that this incarnation has used.
func (c *Caller) Used(f func(rpcpacket.Slot, rpcpacket.Number)) {
	for _, block := range c.blocks {
		for _, s := range block {
			if s.count > 0 {
				f(s.number, rpcpacket.NumberOf(c.incarnation, s.count))
			}
		}
	}
}
