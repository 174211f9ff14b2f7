package rpc

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// A call carries more than its arguments. Its trailer is for the runtime: it tells who waits for the
// call (lineage) and, in the first packet of a call that exceeds a packet, which arguments the call has (a hash). Its headers
// are for programs. They stand in front of the Thrift message, as those of an answer do.
//
// A handler may ask who calls it (CallerOf). No call carries that: the switch has checked the packet's source, and the
// Gatekeeper knows the rest.

// trailer goes behind a call: its lineage if that names somebody and, if an exactly-once call exceeds a packet, the hash of its
// arguments (argumentsSize). Nobody waits for a one-way.
func (n *Node) trailer(b *opSequence, codec *codec, h *rpcpacket.Header) (trailer []byte) {
	if l := b.lineageOf(); !l.nobody() && h.Type == rpcpacket.Call {
		trailer = l.append(trailer)
	}
	if codec.size()+len(trailer) <= n.ports.budget || h.Flags.Policy() == PolicyNone {
		return trailer
	}
	whole := rpcpacket.Message{Header: *h, Lists: codec.lists(), Payload: codec.payload()}
	return appendArguments(trailer, &whole)
}

// appendArguments appends the hash of a message's arguments, in which the trailer of a first packet
// ends.
func appendArguments(b []byte, m *rpcpacket.Message) []byte {
	return binary.BigEndian.AppendUint64(b, argumentsOf(m))
}

// measure returns how many bytes of arguments a direct call has, and their hash. If this is only
// its first packet, it takes the hash off the trailer.
func measure(m *rpcpacket.Message) (size int, arguments uint64, err error) {
	if m.Flags&rpcpacket.FlagMore == 0 {
		return len(m.Payload), argumentsOf(m), nil
	}
	o, err := m.Opening()
	at := len(m.Trailer) - argumentsSize
	if err == nil && (at < 0 || o.Total > math.MaxInt/64) {
		err = wirefmt.Errorf("first packet of a direct call: %d bytes, with a trailer of %d", o.Total, len(m.Trailer))
	}
	if err != nil {
		return 0, 0, err
	}
	arguments = binary.BigEndian.Uint64(m.Trailer[at:])
	m.Trailer = m.Trailer[:at]
	return int(o.Total), arguments, nil
}

// argumentsSize is how many bytes the hash of a call's arguments has.
const argumentsSize = 8

// lineage is who waits for a call that its node makes, as far as deadlocks go: the executions that have the one slot
// of a service with state meanwhile, the outermost first. The trailer has it:
//
//	execution (16 bytes) | … | execution (16)
type lineage struct{ serial []rpcpacket.ID }

// lineageIn reads a lineage from a trailer; false if it is none.
func lineageIn(trailer []byte) (l lineage, ok bool) {
	const size = len(rpcpacket.ID{})
	if len(trailer)%size != 0 || len(trailer) > control.MaxSerial*size {
		return l, false
	}
	for ; len(trailer) > 0; trailer = trailer[size:] {
		l.serial = append(l.serial, rpcpacket.ID(trailer))
	}
	return l, true
}

// nobody reports whether the lineage names nobody.
func (l *lineage) nobody() bool { return len(l.serial) == 0 }

// append appends the lineage as a trailer.
func (l *lineage) append(b []byte) []byte {
	for _, id := range l.serial {
		b = append(b, id[:]...)
	}
	return b
}

// waitFor are the executions that wait for the call.
func (l *lineage) waitFor() []control.ExecutionID {
	var all []control.ExecutionID
	for _, id := range l.serial {
		all = append(all, control.ExecutionID(id))
	}
	return all
}

// lineageOf is that of the calls which a branch makes.
func (b *opSequence) lineageOf() (l lineage) {
	if b == nil {
		return l
	}
	l = b.e.lineage
	if b.e.hasSlot() {
		l.serial = append(slices.Clip(l.serial), b.e.call.Call)
	}
	return l
}

// tooDeep refuses a call for which more services with state would wait than a trailer names. A re-run has the same lineage.
func (b *opSequence) tooDeep(op string) error {
	if l := b.lineageOf(); !l.fits() {
		return fault.New(BadRequest, op, "more than %d services with state wait for each other's calls: have fewer of them call one another", control.MaxSerial)
	}
	return nil
}

// fits reports whether a trailer may have the lineage.
func (l *lineage) fits() bool { return len(l.serial) <= control.MaxSerial }

// hasSlot reports whether an execution has the one slot of a service with state.
func (e *execution) hasSlot() bool { return e.export != nil && e.export.config.stateful() }

// Caller is the node whose call a handler serves. The switch vouches for Node: it drops
// what comes from a port with an address that does not live there, so no program can
// speak for another. The rest is what the Gatekeeper knows of that node.
type Caller struct {
	// Node is the caller's address.
	Node netip.Addr
	// Name is what its program calls itself, which proves nothing. Blade is where it runs.
	Name, Blade string
	// Services are those that it exports, in order.
	Services []string
	// Deployment and Program name the app that it belongs to and the program there; ""
	// for a program that somebody has started by hand.
	Deployment, Program string
}

// CallerAddress is the address of the node whose call a handler serves; the zero Addr
// outside of handlers. It costs nothing.
func CallerAddress(ctx context.Context) netip.Addr {
	if b := branchOf(ctx); b != nil && b.e.export != nil {
		return b.e.from.Addr()
	}
	return netip.Addr{}
}

// CallID names the call whose handler has this context, in hexadecimal digits, as `bifrost calls` does; "" outside of handlers. An exactly-once
// call has the same name each time that it runs, so another system can tell a repetition by it. It costs nothing.
func CallID(ctx context.Context) string {
	if b := branchOf(ctx); b != nil && b.e.export != nil {
		return b.e.call.Call.String()
	}
	return ""
}

// CallerOf tells who has made the call that a handler serves. It asks the Gatekeeper, and
// remembers the answer for a second. [NotFound] says that the node is gone, [BadRequest] that
// the context is no handler's. In an exactly-once execution what it tells is journalled.
func CallerOf(ctx context.Context) (Caller, error) {
	a := CallerAddress(ctx)
	if !a.IsValid() {
		return Caller{}, fault.New(BadRequest, "caller", "the context is not that of a handler: pass the one that the handler was given")
	}
	n := branchOf(ctx).e.node
	b, err := Effect(ctx, "rpc.CallerOf", func(ctx context.Context) ([]byte, error) {
		c, err := n.callers.who(ctx, a)
		if err != nil {
			return nil, err
		}
		return json.Marshal(c)
	})
	c := Caller{Node: a}
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	return c, err
}

// callers are the nodes that were asked about of late.
type callers struct {
	pulse *pulse
	asks  func(context.Context, netip.Addr) (control.NodeInfo, error) // asks the Gatekeeper

	mu    sync.Mutex
	known map[netip.Addr]knownCaller
}

type knownCaller struct {
	Caller
	asked time.Duration // in node time
}

const (
	// callerLifetime is for how long the answer about a node is used again: it may export
	// more services.
	callerLifetime = time.Second
	// maxCallers is how many answers are remembered; then all are forgotten.
	maxCallers = 4096
)

// who asks about a node, if that was not done of late.
func (c *callers) who(ctx context.Context, a netip.Addr) (Caller, error) {
	c.mu.Lock()
	k, ok := c.known[a]
	c.mu.Unlock()
	now := c.pulse.now()
	if ok && now-k.asked < callerLifetime {
		return k.Caller, nil
	}
	info, err := c.asks(ctx, a)
	if err == nil && info.Left {
		err = fault.New(NotFound, "who", "there is no node %s any more", a)
	}
	if err != nil {
		return Caller{}, err
	}
	k = knownCaller{asked: now, Caller: Caller{
		Node: a, Name: info.Name, Blade: info.Blade, Services: info.Services, Deployment: info.Deployment, Program: info.Program,
	}}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || len(c.known) >= maxCallers {
		c.known = make(map[netip.Addr]knownCaller)
	}
	c.known[a] = k
	return k.Caller, nil
}

// traceHeaders are those of W3C Trace Context: a call that a handler makes has those
// of the call that it serves, unless the handler sets others.
var traceHeaders = []string{"traceparent", "tracestate"}

// WithHeader returns a context whose calls carry a header: a string beside the
// arguments, for middleware and handlers on the other side, such as a trace context or
// a tenant. It is [thrift.SetHeader] and [thrift.SetWriteHeaderList] in one, and programs
// that use those as with THeader find their headers here as well. Calls with more than
// [MaxHeaders], or [MaxHeaderBytes], fail as [BadRequest].
//
// A handler sees headers by [Header], or [thrift.GetHeader]. Those of an exactly-once call
// are in the callee's ledger with it, so a handler that is run again sees the same. A call that a
// handler makes carries the trace context of the call that it serves (traceparent,
// tracestate), and no other header that it has not set.
func WithHeader(ctx context.Context, key, value string) context.Context {
	list := thrift.GetWriteHeaderList(ctx)
	if !slices.Contains(list, key) {
		ctx = thrift.SetWriteHeaderList(ctx, append(slices.Clone(list), key))
	}
	return thrift.SetHeader(ctx, key, value)
}

// Header is a header of the call that a handler serves, or one that [WithHeader] has set.
func Header(ctx context.Context, key string) (value string, ok bool) {
	return thrift.GetHeader(ctx, key)
}

// SetAnswerHeader sets a header of the answer to the call that a handler serves; the
// last value counts. The caller finds it in its generated client's LastResponseMeta_.
// It fails as [BadRequest] outside of handlers and beyond the limits of [WithHeader].
func SetAnswerHeader(ctx context.Context, key, value string) error {
	const op = "set answer header"
	b := branchOf(ctx)
	if b == nil || b.e.export == nil {
		return fault.New(BadRequest, op, "the context is not that of a handler: pass the one that the handler was given")
	}
	e := b.e
	e.mu.Lock()
	defer e.mu.Unlock()
	headers := slices.DeleteFunc(slices.Clone(e.headers), func(h rpcpacket.KeyValue) bool { return h.Key == key })
	headers = append(headers, rpcpacket.KeyValue{Key: key, Value: value})
	if _, err := rpcpacket.AppendHeaders(nil, headers); err != nil {
		return &Error{Code: BadRequest, Op: op, Err: err}
	}
	e.headers = headers
	return nil
}

// answerHeaders are what SetAnswerHeader has set so far.
func (e *execution) answerHeaders() []rpcpacket.KeyValue {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.headers
}

// callHeaders are the headers that a call with this context carries.
func callHeaders(ctx context.Context) (headers []rpcpacket.KeyValue) {
	list := thrift.GetWriteHeaderList(ctx)
	for _, key := range list {
		if value, ok := thrift.GetHeader(ctx, key); ok {
			headers = append(headers, rpcpacket.KeyValue{Key: key, Value: value})
		}
	}
	if read := thrift.GetReadHeaderList(ctx); len(read) > 0 {
		for _, key := range traceHeaders {
			if value, ok := thrift.GetHeader(ctx, key); ok && !slices.Contains(list, key) {
				headers = append(headers, rpcpacket.KeyValue{Key: key, Value: value})
			}
		}
	}
	return headers
}

// headerMap is what Thrift's functions want.
func headerMap(headers []rpcpacket.KeyValue) thrift.THeaderMap {
	m := make(thrift.THeaderMap, len(headers))
	for _, h := range headers {
		m[h.Key] = h.Value
	}
	return m
}

// putHeaders puts headers in front of the message; there must be none yet.
func (c *codec) putHeaders(headers []rpcpacket.KeyValue) error {
	if len(headers) == 0 {
		return nil
	}
	b, err := rpcpacket.AppendHeaders(nil, headers)
	if err != nil {
		return err
	}
	c.headed = len(b)
	c.buf.out = slices.Insert(c.buf.out, payloadAt, b...)
	return nil
}

// takeHeaders takes the headers off a message's payload, if the packet has them, and
// makes the codec read the Thrift message behind them.
func (c *codec) takeHeaders(m *rpcpacket.Message) (headers []rpcpacket.KeyValue, err error) {
	message := m.Payload
	if m.Flags&rpcpacket.FlagHeaders != 0 {
		if headers, message, err = rpcpacket.TakeHeaders(m.Payload); err != nil {
			return nil, err
		}
	}
	c.read(message)
	c.packet = m
	return headers, nil
}
