package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// export is one service that a node serves.
type export struct {
	node    *Node
	name    string
	address netip.Addr
	hash    uint64
	offer   atomic.Pointer[offer]
	config  exportConfig
	manager *stateManager // of the service's state; nil if it has none
	since   time.Duration // when the service began here
	pool    pool
	ready   bool          // published; guarded by exports.mu
	key     endpoint.Key  // what its executions name their calls with, once told is closed
	told    chan struct{} // closed when the rack has answered the first Export
	resting atomic.Bool   // SetServing has said so
	telling sync.Mutex    // over what the rack is told of the service

	accepting sync.Mutex
}

// offer is what a service can do, as of the last Export.
type offer struct {
	processor thrift.TProcessor
	methods   map[rpcpacket.Method]*served
}

// served is one method of an export.
type served struct {
	name  string
	meter *meter
	time  atomic.Int64 // nanoseconds that a handler runs, smoothed; 0 while unknown
	// changes are the memory machines that the last direct call has changed; nil if none.
	changes atomic.Pointer[[]uint8]
}

// Export serves a service with any processor that the Thrift compiler generates
// (or a [thrift.TMultiplexedProcessor]). It returns when the rack routes calls to
// this node. Handlers run concurrently unless the service has state; the context
// they get carries the caller's deadline and the execution, so they must use it,
// or one derived from it, for calls of their own. Handlers of exactly-once calls may
// be run again after a crash and must then do the same: see [Now], [Random], [Effect] and
// [Go] for what they need of the world. A service is exported until
// the node is closed. To export it again, without options, replaces the processor.
//
// What is registered with a TMultiplexedProcessor later is served from the first call
// on. As with Thrift's own servers, register while no call is served and none comes for
// an unknown method: Thrift's processor has no lock.
//
// An error that a handler returns and its IDL does not declare reaches the caller
// as in plain Thrift, as an application exception, except for an *Error, which
// keeps its code.
//
// A handler that panics, or ends its goroutine (runtime.Goexit), fails its call as [Internal], and so does one whose error, or
// result, panics when it is asked. What an exactly-once call has made of the service's state and of memory is taken back then, and
// its one-ways do not leave; calls and effects that it has made stay. Of a call of policy none only the state is taken back, to what the last
// exactly-once call has left. The node goes on. A panic in a goroutine that a handler has started itself, other than with [Go], ends the
// program. What a handler does to its goroutine (runtime.LockOSThread, pprof labels) it has to undo: others run there.
func (n *Node) Export(ctx context.Context, service string, p thrift.TProcessor, opts ...ExportOption) error {
	op := "export " + service
	if old := n.exports.named(service); old != nil {
		if len(opts) > 0 {
			return fault.New(BadRequest, op, "the service is exported already, and its options cannot change: export it again without options")
		}
		return n.renew(ctx, op, old, p)
	}
	x := &export{
		node: n, name: service, address: rackaddr.Service(service), told: make(chan struct{}),
		config: exportConfig{workers: DefaultWorkers, queue: DefaultQueue},
	}
	x.hash = serviceHash(x.address)
	for _, o := range opts {
		o.applyExport(&x.config)
	}
	if x.config.workers < 1 || x.config.queue < 0 {
		return fault.New(BadRequest, op, "%d workers and a queue of %d: want 1 worker at least, and a queue of 0 at least", x.config.workers, x.config.queue)
	}
	if x.config.stateful() {
		if x.config.state == nil {
			return fault.New(BadRequest, op, "WithState(nil): pass the state that the service keeps")
		}
		x.config.workers, x.manager = 1, newStateManager(x.config.state)
	}
	x.pool = pool{run: x.perform, free: x.config.workers, limit: x.config.queue, most: n.limits.Started}
	offer, methods, err := x.methodList(p)
	if err != nil {
		return &Error{Code: BadRequest, Op: op, Err: err}
	}
	x.offer.Store(offer)
	if err := n.exports.claim(op, x); err != nil {
		return err
	}
	if err := n.publish(ctx, op, x, methods); err != nil {
		n.exports.unclaim(x)
		return err
	}
	return nil
}

// renew serves a service with another processor from now on. Methods that the rack knows
// are served by one of the two all the time.
func (n *Node) renew(ctx context.Context, op string, x *export, p thrift.TProcessor) error {
	x.telling.Lock()
	defer x.telling.Unlock()
	now, methods, err := x.methodList(p)
	if err != nil {
		return &Error{Code: BadRequest, Op: op, Err: err}
	}
	before := x.offer.Load()
	both := &offer{processor: now.processor, methods: maps.Clone(before.methods)}
	maps.Copy(both.methods, now.methods)
	x.offer.Store(both)
	if _, err := n.session.Export(ctx, x.exportOf(methods)); err != nil {
		x.offer.Store(before)
		return coded(op, err)
	}
	x.offer.Store(now)
	return nil
}

// learn finds a method that the processor did not have when it was exported, such as one
// that was registered with a TMultiplexedProcessor since; nil if it still does not have it.
// From then on the rack routes the method's calls.
func (x *export) learn(wire rpcpacket.Method) *served {
	for {
		before := x.offer.Load()
		if m := before.methods[wire]; m != nil {
			return m
		}
		now, methods, err := x.methodList(before.processor)
		if err != nil {
			x.node.log.Warn("rpc: methods that were registered later are not served", "service", x.name, "error", err)
			return nil
		}
		m := now.methods[wire]
		if m == nil {
			return nil
		}
		if x.offer.CompareAndSwap(before, now) {
			go x.tellMethods(now, methods)
			return m
		}
	}
}

// tellMethods tells the rack of an offer, unless another one has taken its place.
func (x *export) tellMethods(o *offer, methods []control.Method) {
	x.telling.Lock()
	defer x.telling.Unlock()
	if x.offer.Load() != o {
		return
	}
	if _, err := x.node.session.Export(x.node.life.base, x.exportOf(methods)); err != nil && x.node.life.failure() == nil {
		x.node.log.Warn("rpc: the rack does not know what has changed of a service", "service", x.name, "error", err)
	}
}

// exportOf is what the rack is told.
func (x *export) exportOf(methods []control.Method) control.Export {
	n := x.node
	e := control.Export{
		Node: n.self.Address, Incarnation: n.self.Incarnation, Service: x.name, Methods: methods, Stateful: x.config.stateful(),
		IDL: x.config.idl, NotServing: x.resting.Load(),
	}
	if x.manager != nil {
		e.State = x.manager.form()
	}
	return e
}

// publish makes the node ready for a service's calls and the rack route them.
func (n *Node) publish(ctx context.Context, op string, x *export, methods []control.Method) error {
	if x.manager != nil {
		if err := n.ledger.awaitPlace(ctx, op); err != nil {
			return err
		}
		if err := x.recover(ctx, op, methods); err != nil {
			return err
		}
	}
	x.since = n.pulse.now()
	if x.manager != nil {
		x.resume() // before any call comes
	}
	answer, err := n.session.Export(ctx, x.exportOf(methods))
	if err != nil {
		return coded(op, err)
	}
	x.key = answer.Key
	close(x.told)
	if err := n.exports.publish(x); err != nil {
		return err
	}
	go x.announce()
	if x.manager == nil {
		go x.resume()
	}
	return nil
}

// methodList lists a processor's methods in order.
func (x *export) methodList(p thrift.TProcessor) (*offer, []control.Method, error) {
	o := &offer{processor: p, methods: make(map[rpcpacket.Method]*served)}
	var functions map[string]thrift.TProcessorFunction
	if err := guarded("ProcessorMap", func() error { functions = p.ProcessorMap(); return nil }); err != nil {
		return nil, nil, err
	}
	var methods []control.Method
	for _, name := range slices.Sorted(maps.Keys(functions)) {
		wire, err := rpcpacket.MethodOf(name)
		if err != nil {
			return nil, nil, err
		}
		if other := o.methods[wire]; other != nil {
			return nil, nil, fmt.Errorf("methods %s and %s have the same short form %s: rename one of them", other.name, name, wire)
		}
		o.methods[wire] = &served{name: name, meter: x.node.meters.of(x.name, name, true)}
		method := control.Method{Name: name}
		if p, ok := x.config.policies.of(name); ok {
			method.Policy = p.String()
		}
		if n, ok := x.config.failures.of(name); ok {
			method.MaxFailures = &n
		}
		methods = append(methods, method)
	}
	if err := cmp.Or(x.config.policies.only("policy", functions), x.config.failures.only("number of failures", functions)); err != nil {
		return nil, nil, err
	}
	return o, methods, nil
}

// Health is whether a service can be called, with the words of gRPC's health checking.
type Health string

// The states of a service.
const (
	Serving        Health = "SERVING"         // at least one node serves it
	NotServing     Health = "NOT_SERVING"     // all nodes that export it say that it should not be called
	ServiceUnknown Health = "SERVICE_UNKNOWN" // no node exports it
)

// ServiceInfo is what the rack knows of a service.
type ServiceInfo struct {
	Health Health
	// Serving are the nodes that serve it, Resting those that say it should not be called
	// there; together at most 256. Calls are routed to both.
	Serving, Resting []netip.Addr
	// Methods are those that at least one node serves, in order.
	Methods []string
	// IDL is the Thrift definition, "" if no node has told it ([WithIDL]).
	IDL string
}

// Service tells what the rack knows of a service: whether it can be called, where it is,
// and its IDL. It asks the Gatekeeper each time. A service that no node exports is
// [ServiceUnknown], which is no error. A node that fails is known as soon as the Gatekeeper
// has noticed.
func (n *Node) Service(ctx context.Context, name string) (ServiceInfo, error) {
	info, err := n.session.Service(ctx, name)
	if fault.CodeOf(err) == fault.NotFound {
		return ServiceInfo{Health: ServiceUnknown}, nil
	}
	if err != nil {
		return ServiceInfo{}, coded("service "+name, err)
	}
	s := ServiceInfo{Health: NotServing, Methods: info.Methods, IDL: info.IDL}
	for _, at := range info.Nodes {
		if at.NotServing {
			s.Resting = append(s.Resting, at.Node)
			continue
		}
		s.Health = Serving
		s.Serving = append(s.Serving, at.Node)
	}
	if len(info.Nodes) == 0 { // all are away
		s.Health = ServiceUnknown
	}
	return s, nil
}

// Services returns the names of the services that nodes of the rack export, in order: 4,096 at most. It asks the Gatekeeper each time.
func (n *Node) Services(ctx context.Context) ([]string, error) {
	info, err := n.session.Service(ctx, "")
	if err != nil {
		return nil, coded("services", err)
	}
	return info.Names, nil
}

// healthPace is how often a watcher asks.
const healthPace = time.Second

// WatchHealth yields the health of a service, and again each time that it has changed,
// which it notices within a second. It ends with the error of a context that ends, or of
// the node; while the Gatekeeper does not answer it waits.
func (n *Node) WatchHealth(ctx context.Context, name string) iter.Seq2[Health, error] {
	return func(yield func(Health, error) bool) {
		var last Health
		for {
			s, err := n.Service(ctx, name)
			if ended := errors.Join(ctx.Err(), n.life.failure()); ended != nil {
				yield("", coded("watch "+name, ended))
				return
			}
			if err == nil && s.Health != last {
				if last = s.Health; !yield(last, nil) {
					return
				}
			}
			select {
			case <-time.After(healthPace):
			case <-ctx.Done():
			case <-n.life.done:
			}
		}
	}
}

// SetServing says whether a service that the node exports should be called: those who ask
// for its health are told so. Calls go on to be routed to it. It returns when the rack
// knows.
func (n *Node) SetServing(ctx context.Context, service string, serving bool) error {
	op := "set serving " + service
	x := n.exports.named(service)
	if x == nil {
		return fault.New(BadRequest, op, "the node does not export this service")
	}
	x.telling.Lock()
	defer x.telling.Unlock()
	before := x.resting.Swap(!serving)
	_, methods, err := x.methodList(x.offer.Load().processor)
	if err == nil {
		_, err = n.session.Export(ctx, x.exportOf(methods))
	}
	if err != nil {
		x.resting.Store(before)
		return coded(op, err)
	}
	return nil
}

// A direct call that its callee does not get is sent again later and later, up to once a
// second. A node that has restarted may have crashed again by then. So it announces itself to
// its callers:
//
//	caller ── CALL, lost ──▶ (crashed)
//	caller ◀─ ACK, unbegun ─ callee: its service takes direct calls again
//	caller ── CALL ────────▶
//
// Its callers are those whose calls its ledger keeps. If the ACK is lost, or a caller is not
// among them, the call comes within endpoint.MaxTimeout.

// announce tells the callers that the service takes direct calls.
func (x *export) announce() {
	if n := x.node; n.takes(x.hash) == x {
		n.announce()
	}
}

// announce tells those that have called earlier incarnations that the node is there.
func (n *Node) announce() {
	n.ledger.mu.Lock()
	callers := n.ledger.table.Callers()
	n.ledger.mu.Unlock()
	m := rpcpacket.Message{Header: rpcpacket.Header{
		Type: rpcpacket.Ack, Flags: rpcpacket.FlagUnbegun.WithPolicy(PolicyRecover), CallerIncarnation: n.self.Incarnation,
	}}
	b := m.Append(nil)
	var out []netio.Message
	for _, caller := range slices.SortedFunc(maps.Keys(callers), compareNodes) {
		out = append(out, netio.Message{Buf: b, Remote: netip.AddrPortFrom(netip.AddrFrom16(caller), rackaddr.PortDirect)})
	}
	if len(out) > 0 {
		_, _ = n.ports.direct.WriteBatch(out) // a failure is a loss
	}
}

// heard takes an ACK from a node that has restarted.
func (n *Node) heard(from netip.Addr, m *rpcpacket.Message) {
	switch {
	case m.Call.IsZero():
		n.out.restarted(from)
	case m.Flags&rpcpacket.FlagDone != 0:
		n.spared(from, m)
	default:
		n.askedBack(from, m)
	}
}

// exports are the services that a node serves, or is about to, by name.
type exports struct {
	life *lifetime
	mu   sync.Mutex
	all  map[string]*export
}

// claim keeps a service's name for one export of the node.
func (s *exports) claim(op string, x *export) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.life.failure(); err != nil {
		return err
	}
	if s.all[x.name] != nil {
		return fault.New(BadRequest, op, "the service is exported already")
	}
	s.all[x.name] = x
	return nil
}

// unclaim gives the name back after an export that has failed.
func (s *exports) unclaim(x *export) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, x.name)
}

// publish has a service take calls, which the rack routes to the node now.
func (s *exports) publish(x *export) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.life.isOver(); err != nil { // meanwhile
		return err
	}
	x.ready = true
	return nil
}

// named is the service of this name that the rack routes to the node, nil if there is none.
func (s *exports) named(service string) *export {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.all[service]; x != nil && x.ready && s.life.failure() == nil {
		return x
	}
	return nil
}

// of is the service with a hash that the rack routes to the node, nil if there is none.
func (s *exports) of(hash uint64) *export {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.all {
		if x.hash == hash && x.ready {
			return x
		}
	}
	return nil
}

// list lists them all, also those that are not ready yet.
func (s *exports) list() []*export {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.all))
}
