package rpc

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/duration"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/bulk"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/internal/sent"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// outgoing is the calling side of a node: the calls that are out, and their slots.
type outgoing struct {
	self    *join.Identity
	ports   *ports
	pulse   *pulse
	life    *lifetime
	leader  *leader
	large   *large
	regions *regions
	stats   *counters
	log     *slog.Logger
	blocks  func(ctx context.Context, want int) ([]uint32, error) // asks the Gatekeeper for call slots

	mu    sync.Mutex
	core  *endpoint.Caller
	err   error // why no call can begin any more
	wants bool  // the Gatekeeper is asked for call slots
	none  bool  // it had none when it last answered
	// detached holds a token for each one-way and each call that lends memory:
	// the runtime may have to finish them when nobody waits any more.
	detached chan struct{}
	pendings sync.Pool    // of *pending
	rtts     sync.Map     // of *endpoint.RTT, by rttKey
	oneway   endpoint.RTT // of one-ways that the ledger has, and of questions; mu guards it
}

// rttKey names a method that the node calls: how long its answers take is learnt from
// the calls of all clients, of which a program may have one for each goroutine.
type rttKey struct {
	service string
	method  methodKey
}

// rtt is the estimate for a method.
func (o *outgoing) rtt(key rttKey) *endpoint.RTT {
	if r, ok := o.rtts.Load(key); ok {
		return r.(*endpoint.RTT)
	}
	r, _ := o.rtts.LoadOrStore(key, new(endpoint.RTT))
	return r.(*endpoint.RTT)
}

// pending is a call that is out. It belongs to the goroutine that waits for it
// or, when detached, to the core.
type pending struct {
	endpoint.Call
	outbound
	peer     netip.Addr    // whose large answer is on its way, if any; guarded by outgoing.mu
	deadline time.Duration // of whoever waits, in node time; 0 is none
	to       netio.Message // scratch for sending: its address
	out      [1]netio.Message
	token    bool               // holds one of outgoing.detached
	detached bool               // nobody waits
	server   server             // whom it is bound to
	lends    bool               // it has pointers
	kept     bool               // a one-way that leaves when its execution is done
	owed     *rpcpacket.Message // one that the ledger has, and that leaves
	moves    control.Serving    // of such a one: who may take it
	of       *execution         // of which execution, if any
	former   bool               // the ledger has an earlier attempt of the call, which nobody has refused: it may have brought the results
	question *heldCall          // that it asks, if it is no call
	givenUp  bool               // the execution gives it up, and waits for the callee's word; guarded by outgoing.mu
	begun    bool               // the callee's ledger has it; valid once ready has been received from
	lent     []dsm.Pointer      // what it carries, if the memory client is to know when they are back
	hands    [][16]byte         // what it hands over, if it is a one-way of policy none that has left
	// The answer, valid once ready has been received from. Of a call that waits for a slot, that it has one, or err.
	ready  chan struct{}
	answer rpcpacket.Message
	buffer *datagram // what answer lies in
	err    error
}

func newPending() any {
	p := &pending{ready: make(chan struct{}, 1)}
	p.Tag = p
	return p
}

// release ends what a call holds; nobody may use it any more.
func (o *outgoing) release(p *pending) {
	if p.token {
		<-o.detached
	}
	p.server.over()
	if p.buffer != nil {
		freeDatagram(p.buffer)
	}
	p.payload.Release()
	*p = pending{ready: p.ready, lent: p.lent[:0], hands: p.hands[:0]}
	p.Tag = p
	o.pendings.Put(p)
}

func (o *outgoing) init(detached int) {
	o.core = endpoint.NewCaller(o.self.Address, o.self.Incarnation, o.slotFree)
	o.core.Grant(o.self.Blocks)
	o.detached = make(chan struct{}, detached)
	o.pendings.New = newPending
}

// outbound is what a call puts on the wire: a datagram and, if that is only the first
// packet, the whole payload, and whom its first parts are sent to.
type outbound struct {
	datagram []byte
	payload  *sent.Payload
}

// begin registers a call, which has a slot, and returns what to send. A detached call is the
// core's from now on.
func (o *outgoing) begin(p *pending, c *codec, h *rpcpacket.Header) (outbound, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return outbound{}, o.err
	}
	if !o.core.Begin(o.pulse.now(), &p.Call) {
		return outbound{}, &Error{Code: Nondeterminism, Msg: "two calls with the same id " + p.ID.String()}
	}
	h.Call, h.Slot, h.Number = p.ID, p.Slot, p.Number
	p.datagram = c.datagram(h)
	if h.Type == rpcpacket.Oneway {
		p.hands = o.regions.leave(p.hands, c.pointers)
	}
	switch {
	case len(p.datagram) > o.ports.budget:
		p.datagram, p.payload = c.large(o.ports.budget, o.pushFor(p))
	case p.detached:
		p.datagram = slices.Clone(p.datagram)
	}
	o.pulse.wakeAt(p.Due())
	o.stats.calls.Add(1)
	p.payload.Hold() // for who sends it
	return p.outbound, nil
}

// pushFor is what the first packet of a call says of the parts that follow. It goes to the endpoint for them.
func (o *outgoing) pushFor(p *pending) rpcpacket.Push {
	node := p.to.Remote.Addr()
	p.to.Remote = netip.AddrPortFrom(node, rackaddr.PortBulk)
	return o.large.pushTo(node)
}

// payload is that of a large call that is out: its callee has asked for more of it. Whoever gets it releases
// it. It is foreign to a node that the call has not gone to.
func (o *outgoing) payload(callee netip.Addr, h *bulk.Header) (body *sent.Payload, foreign bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	call := o.core.Out(h.Call)
	if call == nil {
		return nil, false
	}
	if call.Node != callee.As16() {
		return nil, true
	}
	o.core.Postpone(o.pulse.now(), h.Call)
	return call.Tag.(*pending).payload.Hold(), false
}

// postpone lets a call wait for the rest of its answer.
func (o *outgoing) postpone(id rpcpacket.ID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.core.Postpone(o.pulse.now(), id)
}

// end gives a call up. It reports false if the call has been answered: the
// answer is in p, or about to be.
func (o *outgoing) end(p *pending) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.core.End(&p.Call) {
		return false
	}
	if p.peer.IsValid() {
		o.large.cancel(bulk.Key{Peer: p.peer, Call: p.ID, Answer: true})
	}
	return true
}

// complete hands an answer to the goroutine that waits for it, and reports
// whether there is one.
func (n *Node) complete(r *reader, i int, m rpcpacket.Message) bool {
	from := r.messages[i].Remote.Addr()
	if m.Flags&rpcpacket.FlagMore != 0 {
		return n.completeLarge(len(r.messages[i].Buf), m, from)
	}
	return n.completeWith(func() *datagram { return r.take(i) }, m, from)
}

// completeLarge takes the first packet, of so many bytes, of an answer. The call may end before the rest has come: of one that is given up the answer is
// still wanted, and goes to the runtime. Any other call that ends has had another answer from the same node, which counts for what it sends in vain
// until that has come, or the node is silent.
func (n *Node) completeLarge(size int, m rpcpacket.Message, from netip.Addr) bool {
	switch known, asked := n.out.answerBegins(from, &m); {
	case !known:
		n.stats.duplicates.Add(1)
		return false
	case asked:
		return n.completeWith(nil, m, from) // nobody reads the answer
	}
	a := &answerTo{node: n, first: m, from: from}
	a.first.Payload, a.first.Trailer = nil, nil // the buffer is the reader's
	t, v := n.large.begin(from, &m, true, size, a)
	switch v {
	case bulk.Whole:
		a.whole(t)
	case bulk.TooLong:
		o, _ := m.Opening()
		m.Type, m.Code, m.Flags = rpcpacket.Exception, BadRequest, m.Flags&^rpcpacket.FlagMore
		m.Payload = []byte(n.large.tooLong("the answer is a message", o.Total))
		return n.completeWith(nil, m, from)
	case bulk.Malformed:
		n.stats.countMalformed(from)
	case bulk.NoRoom:
		n.stats.full.Add(1) // it will be asked for again
	default: // taken, or a copy: the rest is still to come
	}
	return false
}

// completeWith hands an answer over, with the buffer that it lies in, if any.
func (n *Node) completeWith(take func() *datagram, m rpcpacket.Message, from netip.Addr) bool {
	call := n.out.answered(from, &m)
	if call == nil {
		n.stats.duplicates.Add(1)
		return false
	}
	return n.deliver(call, take, m)
}

// deliver hands over the answer to a call that the core has ended, and the buffer that
// it lies in, if any.
func (n *Node) deliver(call *endpoint.Call, take func() *datagram, m rpcpacket.Message) bool {
	p := call.Tag.(*pending)
	if m.Had != 0 && !p.former && p.question == nil { // what a question brings may have come to the former incarnation
		n.freeUnheard(&m)
		m = ownResult(&m)
	}
	if len(p.lent) > 0 {
		n.memory.Returned(p.lent...)
	}
	if mayHaveBrought(&m, p.question != nil) {
		n.audit.want(n)
	}
	if p.question != nil {
		n.heardOf(p.question, &m)
		n.out.release(p)
		return false
	}
	if p.detached {
		if p.owed != nil && n.oneways.answered(p, &m) {
			n.out.release(p)
			return false
		}
		n.unheardAnswer(p, &m)
		if m.Type == rpcpacket.Exception {
			n.out.report(call.ID, m.Code.String()+": "+string(m.Payload))
		}
		n.out.release(p)
		return false
	}
	p.answer = m
	if take != nil {
		p.buffer = take()
	}
	p.ready <- struct{}{}
	return true
}

// again is the call's datagram to be sent again, with the time that is left. It is
// a copy: its owner may be done with it before it is sent.
func (p *pending) again(now time.Duration) netio.Message {
	m := p.to
	m.Buf = slices.Clone(p.datagram)
	rpcpacket.SetUnpushed(m.Buf)
	if p.deadline != 0 {
		rpcpacket.SetTimeout(m.Buf, duration.Milliseconds(p.deadline-now))
	}
	return m
}

// report logs what became of a call that nobody waits for.
func (o *outgoing) report(call rpcpacket.ID, why string) {
	o.log.Warn("rpc: a call that nobody waits for has failed", "node", o.self.Name, "call", call.String(), "why", why)
}

// reserve takes a token for a call that the runtime may have to finish alone.
func (o *outgoing) reserve(ctx context.Context, p *pending) error {
	select {
	case o.detached <- struct{}{}:
		p.token = true
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-o.life.done:
		return o.life.failure()
	}
}

// tick sends again what is due, and returns when it has to be called next.
func (o *outgoing) tick(now time.Duration) (next time.Duration, ok bool) {
	o.mu.Lock()
	resend, expired := o.core.Tick(now, nil, nil)
	out := map[netio.Conn][]netio.Message{}
	for _, call := range resend {
		p := call.Tag.(*pending)
		out[o.ports.of(p.to.Remote)] = append(out[o.ports.of(p.to.Remote)], p.again(now))
	}
	// They go on: the switch has their slots open. So they may end, and their memory be another call's, as soon as the lock is given up.
	tokens, late := 0, make([]rpcpacket.ID, 0, len(expired))
	for _, call := range expired {
		late = append(late, call.ID)
		if p := call.Tag.(*pending); p.token {
			p.token = false
			tokens++
		}
	}
	next, ok = o.core.Due()
	o.mu.Unlock()
	for range tokens {
		<-o.detached
	}
	o.stats.resent.Add(uint64(len(resend)))
	for conn, all := range out {
		_, _ = conn.WriteBatch(all) // a failure is a loss: it is sent again
	}
	for _, id := range late {
		o.report(id, "nobody has acknowledged it")
	}
	return next, ok
}

// stays makes sure that the node's ledger stays if the program fails, before the one-ways of an execution are in it.
// That of a program which was started by hand does only if the Gatekeeper knows that it keeps something: one-ways, if it
// is nothing else. It is told that once.
func (e *execution) stays(ctx context.Context) error {
	n := e.node
	if !n.ledger.place.Load().ByHand || e.main != nil || e.export.manager != nil || n.owes.Load() {
		return nil
	}
	e.yield()
	defer e.resume()
	for {
		err := n.session.Calls(ctx, control.NodeCalls{Owes: true})
		switch {
		case err == nil:
			n.owes.Store(true)
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case n.life.base.Err() != nil:
			return n.life.whyEnded()
		case fault.CodeOf(err) == NoSpace:
			return err
		}
		select {
		case <-time.After(servingPauses.Most):
		case <-ctx.Done():
		case <-n.life.base.Done():
		}
	}
}

// address addresses a call to the node that it is bound to, and has the ledger of an execution know what must be known before the
// call leaves. It reports false if the node has ended.
func (c *client) address(p *pending, b *opSequence, o *operation, codec *codec, h *rpcpacket.Header) bool {
	n, to := c.node, p.server.node
	atMostOnce := h.Flags.Policy() == PolicyNone
	p.Kept = !atMostOnce
	h.CalleeIncarnation = p.server.incarnation
	p.to.Remote = netip.AddrPortFrom(to, rackaddr.PortDirect)
	codec.trailer = nil
	codec.trailer = n.trailer(b, codec, h)
	switch {
	case o == nil:
		return true
	case atMostOnce:
		return o.durable(record.Call{ID: p.ID, Node: p.Node, Incarnation: p.server.incarnation, Slot: p.Slot, Number: p.Number, Slots: p.slots(), Lends: p.lends})
	}
	e := o.b.e
	if p.of = e; e.main != nil {
		n.stats.mainCalls.Add(1)
	}
	if e.taints() {
		h.Flags |= rpcpacket.FlagTainted
	}
	p.former = e.bound(p.ID).IsValid()
	e.unrefused(p.ID)
	return e.durable(record.Call{ID: p.ID, Node: p.Node, Slot: p.Slot, Number: p.Number, Slots: p.slots(), Lends: p.lends})
}

// slots is how many slots the call has, as records say it.
func (p *pending) slots() uint8 { return uint8(max(p.Slots, 1)) } //nolint:gosec // at most MaxLists

// item names the call to those that are to forget it.
func (p *pending) item() direct.Item { return direct.Item{ID: p.ID, Slot: p.Slot, Number: p.Number} }

// sentIn notes in which slot a direct call of an execution has left.
func (o *operation) sentIn(p *pending) {
	if p.of == nil {
		return
	}
	e := o.b.e
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recorded.sent = append(e.recorded.sent, p.item())
	e.recorded.opens(p.ID)
}

// fail ends every call that is out, and all that would begin.
func (o *outgoing) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = err
	fail := func(call *endpoint.Call, alone bool) {
		p := call.Tag.(*pending)
		if alone {
			o.release(p)
			return
		}
		p.err = err
		p.ready <- struct{}{}
	}
	for _, call := range o.core.Abandon() {
		fail(call, call.Tag.(*pending).owed != nil)
	}
	for _, call := range o.core.All(nil) {
		o.core.End(call)
		fail(call, call.Tag.(*pending).detached)
	}
}

// answerBegins notes that a large answer comes from a node. It reports whether the call that it answers is out, and whether that is a question.
func (o *outgoing) answerBegins(from netip.Addr, m *rpcpacket.Message) (known, asked bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	call := o.core.Find(from, m)
	if call == nil {
		return false, false
	}
	p := call.Tag.(*pending)
	p.peer = from
	return true, p.question != nil
}

// answered ends the call that a message answers, and returns it; nil if there is none.
func (o *outgoing) answered(from netip.Addr, m *rpcpacket.Message) *endpoint.Call {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.pulse.now()
	call := o.core.Receive(now, from, m)
	if call != nil {
		p := call.Tag.(*pending)
		o.regions.come(p, m)
		if p.question == nil {
			p.server.answered(now, p.Age(now), m.Code)
		}
	}
	return call
}

// turned takes a call that the switch has turned around. It returns the call that is out, nil if it has not gone to that node, and reports whether it is over.
func (o *outgoing) turned(from netip.Addr, m *rpcpacket.Message) (call *endpoint.Call, over bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	call, over = o.core.Turned(o.pulse.now(), m)
	if call != nil && !over {
		o.pulse.wakeAt(call.Due())
	}
	if call == nil || call.Node != from.As16() { // the latter: the switch does not do that
		return nil, false
	}
	if over {
		o.regions.stay(call.Tag.(*pending))
	}
	return call, over
}

// has reports whether a call is out.
func (o *outgoing) has(id rpcpacket.ID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.core.Out(id) != nil
}

// sharesFate reports whether a call is out, and whether whoever waits for it shares the fate of a node.
func (o *outgoing) sharesFate(id rpcpacket.ID, node netip.Addr) (known, shares bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	k := o.core.Out(id)
	return k != nil, k != nil && k.Tag.(*pending).shares(node)
}

// left is which calls have left their slots since, of which nodes need know no more.
func (o *outgoing) left(now time.Duration) []endpoint.Left {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.core.Left(now)
}

// restarted takes a node's announcement that it has restarted. The switch vouches for the node's address, so a
// hostile node can only have the calls to itself sent again, and each no more often than
// once in endpoint.MinTimeout.
func (o *outgoing) restarted(node netip.Addr) {
	o.mu.Lock()
	due, ok := o.core.Restarted(o.pulse.now(), node.As16())
	o.mu.Unlock()
	if ok {
		o.pulse.wakeAt(due)
	}
}

// answerTo is a large answer, of which the first packet has come.
type answerTo struct {
	node  *Node
	first rpcpacket.Message
	from  netip.Addr
}

// whole goes on with an answer that has come whole.
func (a *answerTo) whole(t *bulk.Transfer) {
	n, m := a.node, a.first
	n.large.taken(t)
	m.Flags &^= rpcpacket.FlagMore
	m.Payload = t.Body()
	if n.completeWith(nil, m, a.from) {
		n.leader.interrupt() // whoever waits may be reading
	}
}

// lost does nothing: the call is sent again, and so is the answer.
func (a *answerTo) lost() {}

// payloadOf is the payload of the message that a pull asks for, nil if it is not kept. Whoever gets it releases it. It is foreign to a node that has
// nothing to do with its call.
func (n *Node) payloadOf(peer netip.Addr, h *bulk.Header) (body *sent.Payload, foreign bool) {
	switch {
	case !h.Answer && h.CallerIncarnation == n.self.Incarnation:
		return n.out.payload(peer, h)
	case !h.Answer:
		return nil, false
	case h.CalleeIncarnation == n.self.Incarnation:
		if body = n.in.payload(peer, h.Call); body != nil {
			return body, false
		}
	}
	return n.ledger.payload(peer, h.Call), false
}

// departLater sends a one-way that the ledger has as soon as it has a slot.
func (o *outgoing) departLater(p *pending) {
	o.mu.Lock()
	if o.err != nil || o.core.Out(p.ID) != nil || o.core.Waits(p.ID) {
		o.mu.Unlock() // the node has ended, or it is on its way
		o.release(p)
		return
	}
	taken := o.core.Take(&p.Call)
	o.wantSlots()
	o.mu.Unlock()
	if taken {
		o.depart(p)
	}
}

// depart sends a one-way that the ledger has, and that has a slot.
func (o *outgoing) depart(p *pending) {
	m := p.owed
	conn, first := o.ports.of(p.to.Remote), p.to
	o.mu.Lock()
	if o.err != nil || !o.core.Begin(o.pulse.now(), &p.Call) {
		o.mu.Unlock() // the node has ended
		o.release(p)
		return
	}
	m.Slot, m.Number, m.CallerIncarnation = p.Slot, p.Number, o.self.Incarnation
	p.datagram = m.Append(nil)
	if len(p.datagram) > o.ports.budget {
		m.Trailer = appendArguments(m.Trailer, m)
		whole := m.Append(nil)
		p.datagram, _ = rpcpacket.First(whole, o.ports.budget, o.pushFor(p)) // always: see there
		p.payload = sent.New(nil, m.Payload)
	}
	out := p.outbound
	out.payload.Hold() // for who sends it
	o.pulse.wakeAt(p.Due())
	o.stats.calls.Add(1)
	o.stats.onewaysSent.Add(1)
	o.mu.Unlock()
	_ = o.large.transmit(conn, []netio.Message{first}, &out) // a failure is a loss
}
