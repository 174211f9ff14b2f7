package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/internal/duration"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// A client makes the calls to one service: it writes a call's message, chooses the node that takes the call, sends the
// message, and reads the answer.

// client calls one service.
type client struct {
	node    *Node
	service string
	hash    uint64 // the low half of the service's address
	config  clientConfig

	mu      sync.RWMutex
	methods map[methodKey]*method
}

// methodKey tells apart what a client knows of methods: the policy may change from
// one call to the next.
type methodKey struct {
	name   string
	policy Policy
}

// method is what a client knows of a method that it has called.
type method struct {
	op     string // for errors: "call Arrays.add"
	name   string
	wire   rpcpacket.Method
	policy Policy
	meter  *meter
	rtt    *endpoint.RTT // that of all the node's clients; guarded by the node's outgoing.mu
}

// Client returns a client for a service of the rack, for the generated code:
//
//	arrays.NewArraysClient(node.Client("Arrays"))
//
// It sends nothing and may be used by any number of goroutines. (The generated
// client around it may not, for it stores the last call's metadata; make one for
// each goroutine, it costs nothing.)
//
// A call returns when it is answered or its context ends; without a deadline it
// waits as long as it takes. After [Deadline] or [Canceled] its outcome is unknown: it
// may have run, but it does not begin to run any more once the callee hears of
// it, and the handler's context ends. With another policy than [PolicyNone] the call is
// given up: it runs to its end, and nobody reads its answer. A handler of an exactly-once call, and a durable main, gets
// that error only when the callee's ledger has the call, which then runs once, or has ended it before the handler began
// ([NeverBegan]). It waits while the callee cannot be reached. A method without a result (one-way) returns when the call is sent, and is
// delivered by the runtime. With another policy than PolicyNone it returns when the
// one-way survives crashes: when the callee's ledger has it. One that an
// exactly-once execution sends is delivered when the execution has committed.
func (n *Node) Client(service string, opts ...ClientOption) thrift.TClient {
	c := &client{node: n, service: service, hash: serviceHash(rackaddr.Service(service)), methods: make(map[methodKey]*method)}
	for _, o := range opts {
		o.applyClient(&c.config)
	}
	return c
}

// serviceHash is the low half of a service's address.
func serviceHash(a netip.Addr) uint64 {
	b := a.As16()
	return binary.BigEndian.Uint64(b[8:])
}

// method returns what is known of a method, which is checked when first called.
func (c *client) method(name string, policy Policy) (*method, error) {
	key := methodKey{name, policy}
	c.mu.RLock()
	m := c.methods[key]
	c.mu.RUnlock()
	if m != nil {
		return m, nil
	}
	wire, err := rpcpacket.MethodOf(name)
	if err != nil {
		return nil, &Error{Code: BadRequest, Op: "call " + c.service, Err: err}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if m = c.methods[key]; m == nil {
		m = &method{op: "call " + c.service + "." + name, name: name, wire: wire, policy: key.policy}
		m.rtt = c.node.out.rtt(rttKey{c.service, key})
		m.meter = c.node.meters.of(c.service, name, false)
		c.methods[key] = m
	}
	return m, nil
}

// Call implements thrift.TClient. A nil result makes the call one-way.
func (c *client) Call(ctx context.Context, name string, args, result thrift.TStruct) (thrift.ResponseMeta, error) {
	if len(c.config.interceptors) > 0 {
		return c.intercepted(ctx, name, args, result)
	}
	meta, _, err := c.make(ctx, name, args, result)
	return meta, err
}

// make makes a call. The outcome of one without an error is OK or Declared.
func (c *client) make(ctx context.Context, name string, args, result thrift.TStruct) (meta thrift.ResponseMeta, outcome Code, err error) {
	policy, err := c.policy(branchOf(ctx), name)
	if err != nil {
		return meta, CodeOf(err), asThrift(err)
	}
	m, err := c.method(name, policy)
	if err != nil {
		return meta, CodeOf(err), asThrift(err)
	}
	codec := newCodec(c.node.large.limit())
	defer codec.free()
	began := time.Now()
	err = c.attempts(ctx, m, codec, args, result)
	if outcome = codec.outcome; err != nil {
		outcome = CodeOf(err)
	}
	m.meter.took(outcome, time.Since(began))
	return thrift.ResponseMeta{Headers: codec.answered}, outcome, asThrift(err)
}

func (c *client) call(ctx context.Context, m *method, codec *codec, args, result thrift.TStruct) error {
	b := branchOf(ctx)
	exactly := b.journalled()
	if err := ctx.Err(); err != nil && !exactly {
		return neverBegan(fault.FromContext(m.op, err))
	}
	if err := c.allowed(b, m); err != nil {
		return neverBegan(err)
	}
	kind := thrift.CALL
	if result == nil {
		kind = thrift.ONEWAY
	} else if err := b.tooDeep(m.op); err != nil {
		return neverBegan(err)
	}
	if result != nil { // a one-way hands over what is its sender's own
		codec.by = c.node.borrows.lender(b)
	}
	if err := c.encode(ctx, codec, m, kind, args); err != nil {
		return neverBegan(err)
	}
	if exactly {
		return c.callJournalled(ctx, b, m, codec, kind, result)
	}
	return c.perform(ctx, b, nil, m, codec, kind, result)
}

// perform makes a call; o is its operation in an exactly-once execution, or nil.
func (c *client) perform(ctx context.Context, b *opSequence, o *operation, m *method, codec *codec, kind thrift.TMessageType, result thrift.TStruct) error {
	p, err := c.exchange(ctx, b, o, m, codec, kind)
	if err != nil {
		return o.decided(err)
	}
	o.answered(m, p)
	if p == nil {
		return nil
	}
	defer c.node.out.release(p)
	if o != nil { // it is not for the cache to keep what an execution has got
		o.gains(p)
		return c.decode(ctx, codec, p, m, result)
	}
	if p.err == nil {
		c.node.memory.Gained(c.node.regions.of(&p.answer)...)
	}
	err = c.decode(ctx, codec, p, m, result)
	if err != nil && p.err == nil && len(p.answer.Lists) > 0 { // nobody knows them
		c.node.freeUnheard(&p.answer)
	}
	return err
}

// exchange sends a call, to another node each time that one refuses it for good, and waits for its answer; nil is that of a one-way which
// leaves later, or has policy none. Whoever called it releases the answer.
func (c *client) exchange(ctx context.Context, b *opSequence, o *operation, m *method, codec *codec, kind thrift.TMessageType) (*pending, error) {
	for {
		p, err := c.try(ctx, b, o, m, codec, kind)
		switch {
		case err != nil || p == nil:
			return nil, err
		case p.movedOn():
			c.unbind(o, p, m)
			codec.takeBack(p.payload)
			c.node.out.release(p)
			if o != nil && o.expired != nil {
				return nil, neverBegan(o.expired)
			}
			continue
		case p.err == nil && p.answer.Type == rpcpacket.Exception && p.answer.Code == Unavailable:
			c.node.servers.doubt(c.serving(m))
		}
		return p, nil
	}
}

// try sends a call to one node, and waits for its answer; nil as with exchange.
func (c *client) try(ctx context.Context, b *opSequence, o *operation, m *method, codec *codec, kind thrift.TMessageType) (*pending, error) {
	lends, by := o == nil && kind == thrift.CALL, c.node.memory.PassOn
	if lends {
		by = c.node.memory.Lend
	}
	if err := c.node.pass(ctx, codec.pointers, by); err != nil {
		return nil, neverBegan(coded(m.op, err))
	}
	p := c.node.out.pendings.Get().(*pending)
	if kind == thrift.CALL {
		p.lent = append(p.lent, codec.pointers...)
	}
	if !lends { // it is not for the cache to keep what an execution has lent
		c.node.memory.Lends(p.lent...)
	}
	if err := c.send(ctx, b, o, p, m, codec, kind); err != nil {
		c.node.memory.Returned(p.lent...)
		c.node.out.release(p)
		return nil, neverBegan(coded(m.op, err))
	}
	if kind == thrift.ONEWAY && m.policy == PolicyNone {
		return nil, nil // p is no longer the caller's
	}
	if p.kept {
		c.node.out.release(p)
		return nil, nil
	}
	if err := c.wait(ctx, b, o, p, m); err != nil {
		return nil, err
	}
	return p, nil
}

// encode writes the call's Thrift message and checks its size.
func (c *client) encode(ctx context.Context, codec *codec, m *method, kind thrift.TMessageType, args thrift.TStruct) error {
	codec.speak(c.config.protocol)
	err := codec.WriteMessageBegin(ctx, m.name, kind, 0)
	if err == nil {
		err = args.Write(ctx, codec)
	}
	if err == nil {
		err = codec.WriteMessageEnd(ctx)
	}
	if err != nil {
		return &Error{Code: BadRequest, Op: m.op, Msg: "arguments", Err: err}
	}
	if err := codec.putHeaders(callHeaders(ctx)); err != nil {
		return &Error{Code: BadRequest, Op: m.op, Err: err}
	}
	if len(codec.lists()) > rpcpacket.MaxLists {
		return &Error{Code: BadRequest, Op: m.op, Err: errManyLenders}
	}
	if codec.size() > codec.buf.limit {
		return fault.New(BadRequest, m.op, "%s", c.node.large.tooLongIn("a message", codec))
	}
	m.meter.requests.add(uint64(codec.size()-rpcpacket.HeaderSize), sizeUnit) //nolint:gosec // not negative
	return nil
}

// send begins the call and puts it on the wire.
func (c *client) send(ctx context.Context, b *opSequence, o *operation, p *pending, m *method, codec *codec, kind thrift.TMessageType) error {
	n := c.node
	p.RTT, p.lends = m.rtt, len(codec.pointers) > 0
	p.detached = kind == thrift.ONEWAY && m.policy == PolicyNone // nobody waits
	if p.detached {
		if err := n.out.reserve(ctx, p); err != nil {
			return err
		}
	}
	h := rpcpacket.Header{
		Type: rpcpacket.Type(kind), NameLength: uint8(len(m.name)), Method: m.wire, Service: c.hash,
		CallerIncarnation: n.self.Incarnation,
	}
	if d, ok := ctx.Deadline(); ok {
		left := time.Until(d)
		if h.Timeout = duration.Milliseconds(left); h.Timeout != 0 {
			p.deadline = n.pulse.now() + left
		}
	}
	h.Flags = h.Flags.WithPolicy(m.policy)
	var id rpcpacket.ID
	if b != nil {
		var err error
		if id, err = b.child(&h, o); err != nil {
			return err
		}
	}
	to, err := c.bind(ctx, b, o, id, m, kind)
	if err != nil {
		return err
	}
	if p.server = to; o != nil && kind == thrift.ONEWAY && m.policy != PolicyNone {
		return c.owe(o, p, to.node, m, codec, h, id)
	}
	if o != nil && !id.IsZero() && n.questions.unheard(id) && !n.questions.awaitOf(ctx, b, id) {
		return o.whyEnded(n)
	}
	p.ID, p.Node, p.Slots = id, to.node.As16(), len(codec.lists())
	if err := n.out.takeSlot(ctx, b, p, m); err != nil {
		return err
	}
	if !c.address(p, b, o, codec, &h) {
		n.out.returnSlot(p)
		return o.whyEnded(n)
	}
	if p.detached {
		return c.sendOneway(ctx, p, codec, &h)
	}
	out, err := n.out.begin(p, codec, &h)
	if err != nil {
		return err
	}
	o.sentIn(p)
	p.out[0] = p.to
	if err := n.large.transmit(n.ports.of(p.to.Remote), p.out[:], &out); err != nil && n.out.end(p) {
		return &Error{Code: Unavailable, Msg: "send", Err: err}
	}
	return nil
}

// sendOneway leaves a one-way of policy none to the runtime, which sends it until its callee has it. What fails here is a loss
// like any other.
func (c *client) sendOneway(ctx context.Context, p *pending, codec *codec, h *rpcpacket.Header) error {
	n := c.node
	p.Expires = duration.Add(n.pulse.now(), lifetimeOf(ctx))
	conn, to := n.ports.of(p.to.Remote), p.to
	out, err := n.out.begin(p, codec, h)
	if err != nil {
		return err
	}
	_ = n.large.transmit(conn, []netio.Message{to}, &out) // p is no longer the caller's
	n.leader.standIn()                                    // for the receipt
	return nil
}

// wait waits for the answer or the end of the context. An execution that gives a direct call up waits for the callee's
// word, too (forget.go). On error the pending call is no longer the caller's.
func (c *client) wait(ctx context.Context, b *opSequence, o *operation, p *pending, m *method) error {
	if b != nil {
		b.e.yield()
		defer b.e.resume()
	}
	if (o == nil || o.expired == nil) && c.node.leader.await(ctx, p) {
		return nil
	}
	if p.of != nil && m.policy != PolicyNone {
		return c.giveUp(ctx, o, p, m)
	}
	why := fault.FromContext(m.op, ctx.Err())
	if c.node.out.abandon(p) {
		c.node.out.release(p)
		return why
	}
	<-p.ready // answered at the last moment
	return nil
}

// lifetimeOf is for how long to try to deliver a one-way.
func lifetimeOf(ctx context.Context) time.Duration {
	if d, ok := ctx.Deadline(); ok {
		return max(time.Until(d), time.Millisecond)
	}
	return onewayLifetime
}

// decode turns a call's answer into the generated code's result, or into an
// error (a nil result is a one-way's): a coded one for a system exception, Thrift's for one that the callee's
// processor raised.
func (c *client) decode(ctx context.Context, codec *codec, p *pending, m *method, result thrift.TStruct) error {
	if p.err != nil {
		return coded(m.op, p.err)
	}
	m.meter.answers.add(uint64(len(p.answer.Payload)), sizeUnit)
	if p.answer.Type == rpcpacket.Exception && p.answer.Code != fault.OK {
		e := fault.Remote(p.answer.Code, m.op, "%s", p.answer.Payload)
		e.NeverBegan = p.unbegun()
		return e
	}
	if result == nil {
		return nil // a one-way: a ledger has it
	}
	headers, err := codec.takeHeaders(&p.answer)
	if err != nil {
		return badAnswer(m, err)
	}
	if len(headers) > 0 {
		codec.answered = headerMap(headers)
	}
	o, err := codec.open(ctx)
	if err != nil {
		return badAnswer(m, err)
	}
	if !answers(o.name, m.name) {
		return badAnswer(m, errors.New("it answers method "+o.name))
	}
	switch {
	case o.kind == thrift.EXCEPTION && p.answer.Type == rpcpacket.Exception:
		app := thrift.NewTApplicationException(thrift.UNKNOWN_APPLICATION_EXCEPTION, "")
		if err := app.Read(ctx, codec); err != nil {
			return badAnswer(m, err)
		}
		return app
	case o.kind == thrift.REPLY && p.answer.Type == rpcpacket.Reply:
		if err := result.Read(ctx, codec); err != nil {
			return badAnswer(m, err)
		}
		codec.outcome = p.answer.Outcome()
		return nil
	}
	return badAnswer(m, errors.New("its Thrift message type does not fit the packet's type"))
}

// unbegun reports whether an exception says for sure that the call did not begin.
func (p *pending) unbegun() bool { return p.answer.Flags&rpcpacket.FlagUnbegun != 0 }

// neverBegan marks an error that arose before the call was sent.
func neverBegan(err error) error {
	if e, ok := err.(*Error); ok { //nolint:errorlint // those of calls are not wrapped
		marked := *e
		marked.NeverBegan = true
		return &marked
	}
	return err
}

// badAnswer is the error for an answer that is not what the IDL promises.
func badAnswer(m *method, err error) error {
	return &Error{Code: BadRequest, Op: m.op, Msg: "malformed answer", Remote: true, Err: err}
}

// coded makes any error one of a call.
func coded(op string, err error) error {
	var e *Error
	if errors.As(err, &e) {
		if e.Op == "" {
			named := *e
			named.Op = op
			e = &named
		}
		return e
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fault.FromContext(op, err)
	}
	return &Error{Code: Internal, Op: op, Err: err}
}
