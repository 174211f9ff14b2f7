package gatekeeper

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/resolve"
	"github.com/bifrost-rack/bifrost/internal/suggest"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// service is what an IDL declares, and the nodes that export it.
type service struct {
	name    string
	address netip.Addr
	exports []*exported // in the order of their arrival, which is that of their routes
	routes  map[routeKey]*node
}

// catalog is the services that nodes have exported, by address.
type catalog map[netip.Addr]*service

// exported is one node's export of a service.
type exported struct {
	node     *node
	service  *service
	methods  map[rpcpacket.Method]control.Method
	stateful bool
	idl      string // the service's; "" if the node tells none
	resting  bool   // the node says that the service should not be called
	order    uint64 // of its arrival
	away     bool   // the node has failed, and its next incarnation has not exported it yet
	moves    bool   // the node finishes its calls; the next ones are for its next incarnation
}

// serves reports whether the node takes new calls.
func (x *exported) serves() bool { return !x.away && !x.node.empties }

// routeKey is a row of rpc_route within a service.
type routeKey struct {
	method rpcpacket.Method
	spread spread
}

// export registers a service of a node.
func (c *controller) export(p *port, m control.Message) error {
	var e control.Export
	if err := m.Decode(&e); err != nil {
		return err
	}
	n, err := p.nodeAt("export", e.Node, e.Incarnation)
	if err != nil {
		return err
	}
	if e.Withdraw {
		c.empty(n, c.fleet.Wants(n.address)).answer = func() { p.answer(m, control.Exported{}) } // it is about to leave
		return nil
	}
	methods, err := checkMethods(&e)
	if err != nil {
		return err
	}
	if err := n.mayRoute(rackaddr.Service(e.Service), len(methods)); err != nil {
		return err
	}
	if err := c.claim(n, claim{claimService, e.Service}); err != nil {
		return err
	}
	s, err := c.services.entry(n, &e)
	if err != nil {
		return err
	}
	if err := c.mayExport(n, e.Service); err != nil {
		return err
	}
	if e.Stateful {
		if err := c.mayKeep(n, "export"); err != nil {
			return err
		}
	}
	if err := c.mayRead(n, &e); err != nil {
		return err
	}
	c.fleet.Began(n.address)
	x := n.exports[s.address]
	if x == nil {
		c.lastExport++
		x = &exported{node: n, service: s, order: c.lastExport}
		n.exports[s.address] = x
		s.exports = append(s.exports, x)
	}
	x.idl, x.resting = e.IDL, e.NotServing
	x.methods, x.stateful, x.away, x.moves = methods, e.Stateful, false, n.empties && n.moves
	c.keepExport(n, s.address)
	c.act(c.fleet.Exported(c.now))
	c.change(func(err error) {
		if err != nil {
			p.fail(m, fault.New(fault.Internal, "export", "the switch refuses the service's routes: %v", err))
			return
		}
		c.event(Event{Kind: ServiceExported, Blade: n.blade.hello.Blade, Node: n.address, Name: n.name, Service: s.name})
		c.logger.Info("service exported", "service", s.name, "node", n.address, "methods", len(x.methods))
		p.answer(m, control.Exported{Key: c.secret.Service(serviceHash(s.address))})
	}, c.reroute(s)...)
	return nil
}

// mayRoute reports why the methods of a service are too many routes to a node, nil if they are
// not.
func (n *node) mayRoute(service netip.Addr, methods int) error {
	routes := func(n *node) (sum int) {
		for a, x := range n.exports {
			if a != service {
				sum += len(x.methods)
			}
		}
		return sum
	}
	if own := routes(n); own+methods > maxRoutes {
		return fault.New(fault.Overloaded, "export", "node %s exports %d methods already: at most %d", n.address, own, maxRoutes)
	}
	all := methods
	for _, o := range n.blade.nodes {
		all += routes(o)
	}
	if all > maxBladeRoutes {
		return fault.New(fault.Overloaded, "export", "the nodes of blade %s would export %d methods: at most %d", n.blade.hello.Blade, all, maxBladeRoutes)
	}
	return nil
}

// checkMethods reads the methods of an export.
func checkMethods(e *control.Export) (map[rpcpacket.Method]control.Method, error) {
	if err := checkName("export", e.Service); err != nil {
		return nil, err
	}
	if len(e.Methods) == 0 || len(e.Methods) > maxMethods {
		return nil, fault.New(fault.BadRequest, "export", "service %s has %d methods: must be 1 to %d", e.Service, len(e.Methods), maxMethods)
	}
	if err := e.State.Check("export " + e.Service); err != nil {
		return nil, err
	}
	if len(e.IDL) > control.MaxIDL {
		return nil, fault.New(fault.BadRequest, "export", "service %s has an IDL of %d bytes: at most %d", e.Service, len(e.IDL), control.MaxIDL)
	}
	if i := strings.IndexFunc(e.IDL, controls); i >= 0 || !utf8.ValidString(e.IDL) {
		return nil, fault.New(fault.BadRequest, "export", "service %s has an IDL that is no text: byte %d begins a control character, or it is not UTF-8", e.Service, i)
	}
	methods := make(map[rpcpacket.Method]control.Method, len(e.Methods))
	for _, m := range e.Methods {
		wire, err := rpcpacket.MethodOf(m.Name)
		if err != nil {
			return nil, &fault.Error{Code: fault.BadRequest, Op: "export " + e.Service, Err: err}
		}
		if old, ok := methods[wire]; ok {
			return nil, fault.New(fault.BadRequest, "export", "service %s: methods %q and %q look alike on the wire", e.Service, old.Name, m.Name)
		}
		if err := (resources.Word{Policy: m.Policy, MaxFailures: m.MaxFailures}).Validate(); err != nil {
			return nil, err
		}
		methods[wire] = m
	}
	return methods, nil
}

// controls reports whether a character of a text is one that controls terminals.
func controls(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\r' && r != '\t' }

// hasMethod reports whether a service is there, and has a method.
func (k catalog) hasMethod(service, method string) bool {
	s := k[rackaddr.Service(service)]
	wire, err := rpcpacket.MethodOf(method)
	return s != nil && err == nil && s.has(wire)
}

// entry finds the service of an export and checks that the node may join it.
func (k catalog) entry(n *node, e *control.Export) (*service, error) {
	a := rackaddr.Service(e.Service)
	s := k[a]
	if s == nil {
		s = &service{name: e.Service, address: a, routes: map[routeKey]*node{}}
		k[a] = s
		return s, nil
	}
	if s.name != e.Service {
		return nil, fault.New(fault.BadRequest, "export", "service %s would have the same address as %s: rename one of them", e.Service, s.name)
	}
	if len(s.exports) >= resources.MaxShare && n.exports[a] == nil {
		return nil, fault.New(fault.Overloaded, "export", "%d nodes share service %s already", len(s.exports), e.Service)
	}
	for _, x := range s.exports {
		switch {
		case x.node == n || x.node.address == n.address:
		case x.stateful || e.Stateful:
			return nil, fault.New(fault.BadRequest, "export", "service %s is stateful and runs on node %s: it cannot have two", e.Service, x.node.address)
		case x.node.blade == n.blade && !x.away:
			return nil, fault.New(fault.BadRequest, "export", "blade %q runs service %s on node %s already", n.blade.hello.Blade, e.Service, x.node.address)
		}
	}
	return s, nil
}

// idl is the service's IDL, as the first node says that tells one.
func (s *service) idl() string {
	for _, x := range s.exports {
		if x.idl != "" {
			return x.idl
		}
	}
	return ""
}

// describe tells what is known of a service.
func (k catalog) describe(p *port, m control.Message) error {
	var q control.Service
	if err := m.Decode(&q); err != nil {
		return err
	}
	if q.Name == "" {
		p.answer(m, control.ServiceInfo{Names: k.names()})
		return nil
	}
	s := k[rackaddr.Service(q.Name)]
	if s == nil || s.name != q.Name || len(s.exports) == 0 {
		return fault.New(fault.NotFound, "service", "nobody exports a service %q", q.Name)
	}
	info := control.ServiceInfo{IDL: s.idl()}
	for _, x := range s.exports {
		if x.serves() && len(info.Nodes) < control.MaxServices {
			info.Nodes = append(info.Nodes, control.ServiceNode{Node: x.node.address, NotServing: x.resting})
		}
		for _, m := range x.methods {
			info.Methods = append(info.Methods, m.Name)
		}
	}
	slices.Sort(info.Methods)
	info.Methods = slices.Compact(info.Methods)
	p.answer(m, info)
	return nil
}

// names are the services that nodes export, in order.
func (k catalog) names() []string {
	var names []string
	for _, s := range k {
		if len(s.exports) > 0 {
			names = append(names, s.name)
		}
	}
	slices.Sort(names)
	return names[:min(len(names), control.MaxServiceNames)]
}

// withdraw takes a node's export away.
func (c *controller) withdraw(n *node, address netip.Addr) []phase {
	s := c.services[address]
	s.exports = slices.DeleteFunc(s.exports, func(x *exported) bool { return x.node == n })
	delete(n.exports, address)
	c.drop(wal.KindExport, exportID(n.address, address))
	phases := c.reroute(s)
	if len(s.exports) == 0 && len(c.services) > maxServices {
		delete(c.services, address)
	}
	return phases
}

// reroute makes a service's routes what its exports ask for, and returns the
// updates: new and changed rows first, so that no request is without a route while
// the rows that are no longer needed go. By them callers find the nodes (package resolve).
func (t tables) reroute(s *service) []phase {
	routes := map[routeKey]*node{}
	for method, nodes := range s.serving() {
		for i, prefixes := range spreads(len(nodes)) {
			for _, sp := range prefixes {
				routes[routeKey{method, sp}] = nodes[i]
			}
		}
	}
	var up, down phase
	for _, k := range sortedRoutes(routes) {
		n := routes[k]
		if n.blade.port != nil {
			up = append(up, t.want(routeEntry(s.address, k.method, k.spread, hopOf(n.blade.port.num)))...)
		}
	}
	for _, k := range sortedRoutes(s.routes) {
		if routes[k] == nil {
			down = append(down, t.unwant(routeEntry(s.address, k.method, k.spread, 0))...)
		}
	}
	s.routes = routes
	return append(split(up), down)
}

// serving lists for each method the nodes that serve it.
func (s *service) serving() map[rpcpacket.Method][]*node {
	out := map[rpcpacket.Method][]*node{}
	for _, x := range s.exports {
		for m := range x.methods {
			if x.serves() && !x.node.lost {
				out[m] = append(out[m], x.node)
			}
		}
	}
	return out
}

// spreads splits the values 0 to 255 evenly among n nodes, and each share into
// prefixes. Of more than 256 nodes the last ones get none.
func spreads(n int) [][]spread {
	n = min(n, 256)
	out := make([][]spread, n)
	for i := range n {
		from, to := 256*i/n, 256*(i+1)/n
		for from < to {
			size, bits := 1, 8
			for from&(2*size-1) == 0 && from+2*size <= to {
				size, bits = 2*size, bits-1
			}
			out[i] = append(out[i], spread{uint8(from), bits}) //nolint:gosec // below 256
			from += size
		}
	}
	return out
}

func sortedRoutes(m map[routeKey]*node) []routeKey {
	return slices.SortedFunc(maps.Keys(m), func(a, b routeKey) int {
		if d := slices.Compare(a.method[:], b.method[:]); d != 0 {
			return d
		}
		if d := int(a.spread.value) - int(b.spread.value); d != 0 {
			return d
		}
		return a.spread.bits - b.spread.bits
	})
}

func sortedServices(m map[netip.Addr]*exported) []netip.Addr {
	return slices.SortedFunc(maps.Keys(m), netip.Addr.Compare)
}

// Who runs where is decided by the resources.Registry. The controller tells it
// what happens to blades and nodes, and carries out what it wants done. What the
// switch has to know is the controller's own: ports, addresses, machine ids, routes.
//
//	hello, heartbeat, join, export, leave, failed ──▶ Registry ──▶ act: start and stop programs,
//	deploy, undeploy, drain, fail, return, tick ────▶            end nodes, fail blades, tell people

// fleetConfig is how the registry works here.
func fleetConfig() resources.Config {
	cfg := resources.DefaultConfig()
	cfg.Policy, cfg.MaxFailures = rpcpacket.PolicyRecover, rpcpacket.DefaultFailures // rpc.DefaultPolicy
	return cfg
}

// newRegistry returns the registry of a rack without blades.
func newRegistry(rack resources.Rack) *resources.Registry {
	r, err := resources.New(fleetConfig(), rack)
	if err != nil {
		panic(err) // constants
	}
	return r
}

// registerBlade registers a blade that says hello, whose daemon may have restarted.
func (c *controller) registerBlade(h *control.Hello, restarted bool) error {
	capacity := h.Capacity
	if h.Kind == control.Compute && capacity == 0 {
		capacity = maxNodes // it does not say
	}
	actions, err := c.fleet.Hello(resources.Hello{Blade: h.Blade, Kind: resources.Kind(h.Kind), Capacity: capacity, Restarted: restarted}, c.now)
	c.act(actions)
	return err
}

// registered makes sure that the registry knows a blade and its nodes: those that a
// log has brought back have not said hello or joined here.
func (c *controller) registered(b *blade) {
	if b.port == nil || c.fleet.Knows(b.hello.Blade) {
		return
	}
	if err := c.registerBlade(&b.hello, false); err != nil {
		c.logger.Error("a blade cannot be used", "blade", b.hello.Blade, "error", err)
		return
	}
	for _, n := range b.sortedNodes() {
		c.adopt(n)
	}
}

func (c *controller) adopt(n *node) {
	known := resources.Node{Address: n.address, Incarnation: n.incarnation, Name: n.name, Blade: n.blade.hello.Blade}
	if err := c.fleet.Adopt(known, c.now); err != nil {
		c.logger.Error("a node cannot be taken over", "node", n.address, "error", err)
	}
}

// registerNode registers a node that joins, and refuses one for which its blade has no room.
// It gets the next number, unless it goes on as a node that has ended: the former one, or an instance's. Incarnations are
// numbered through the rack: of two users of an address, or of a call slot, the later one has the higher number. The actions
// are for when it is a node.
func (c *controller) registerNode(b *blade, j *control.Join, former *node) (resources.Node, []resources.Action, error) {
	c.registered(b)
	name := j.Instance
	if name == "" { // names with a slash are for programs that were deployed
		name = strings.ReplaceAll(j.Name, "/", "_")
	}
	if c.lastIncarnation == rpcpacket.MaxIncarnation {
		return resources.Node{}, nil, fault.New(fault.Overloaded, "join", "the rack has had %d incarnations of nodes, its maximum: begin a new rack", c.lastIncarnation)
	}
	next := resources.Node{Address: rackaddr.Node(c.lastNode + 1), Incarnation: c.lastIncarnation + 1}
	if former != nil {
		next.Address = former.address
	}
	return c.fleet.Join(b.hello.Blade, name, next, c.now)
}

// mayExport has the registry decide whether a node may export a service.
func (c *controller) mayExport(n *node, service string) error {
	c.registered(n.blade)
	if !c.fleet.HasNode(n.address) {
		c.adopt(n)
	}
	return c.fleet.MayExport(n.address, n.incarnation, service)
}

// reported takes what a blade's heartbeat says about its use and its programs.
func (c *controller) reported(b *blade, h *control.Heartbeat) {
	c.registered(b)
	if b.memory() {
		c.act(c.fleet.Used(h.Blade, h.Used+uint64(c.keptAt(b)))) //nolint:gosec // not negative
		return
	}
	c.act(c.fleet.Programs(h.Blade, h.Programs, c.now))
}

// displaced says that a node is about to go.
func (c *controller) displaced(n *node, why string) {
	c.act(c.fleet.Leave(n.address, n.incarnation, !n.orderly, why, c.now))
}

// act carries out what the registry wants done.
func (c *controller) act(actions []resources.Action) {
	for _, a := range actions {
		switch a := a.(type) {
		case resources.BladeDown:
			switch b := c.blades[a.Blade.Name]; {
			case b == nil || !b.alive():
			case b.two():
				c.pull(b)
			default:
				c.takeOut(b, a.Blade.Cause, false)
			}
		case resources.EndNode:
			if n := c.nodes[a.Node.Address]; n != nil && n.incarnation == a.Node.Incarnation {
				c.removeNodes(a.Node.Cause, n)
			}
		case resources.StartNode:
			c.startProgram(a)
		case resources.EmptyNode:
			if n := c.nodes[a.Node.Address]; n != nil && n.incarnation == a.Node.Incarnation {
				c.empty(n, a.Moves).wanted = true
			}
		case resources.StopNode:
			c.stopProgram(a)
		case resources.GiveUp:
			if n := c.fallen[a.Node]; n != nil {
				c.unwanted(n, "it is not wanted any more")
			}
		case resources.Short:
			c.short(a)
		case resources.ProgramFailed:
			c.event(Event{Kind: ProgramFailed, Blade: a.Blade, Name: a.Instance, Message: a.Cause})
			c.logger.Warn("program has failed", "program", a.Instance, "blade", a.Blade, "failures", a.Failures, "cause", a.Cause)
		case resources.RolledOut:
			c.event(Event{Kind: AppRolledOut, Name: a.App})
			c.logger.Info("deployment rolled out", "app", a.App, "revision", a.Revision)
		case resources.RolledBack:
			c.event(Event{Kind: AppRolledBack, Name: a.App, Message: a.Cause})
			c.logger.Warn("deployment rolled back", "app", a.App, "revision", a.Revision, "as", a.Former, "cause", a.Cause)
		case resources.Drained:
			c.event(Event{Kind: BladeDrained, Blade: a.Blade})
			c.logger.Info("blade drained", "blade", a.Blade)
		}
	}
	c.timers = true // the registry's deadline may have changed without any
}

// startProgram makes a blade's daemon run a program.
func (c *controller) startProgram(a resources.StartNode) {
	failed := func(err error) {
		c.act(c.fleet.StartFailed(a.Instance, a.Blade, err.Error(), c.now))
	}
	b := c.blades[a.Blade]
	if b == nil || !b.alive() {
		failed(fault.New(fault.Unavailable, "start "+a.Instance, "blade %s is gone", a.Blade))
		return
	}
	start := control.Start{
		Name: a.Instance, Args: a.Args, Env: a.Env, Binary: a.Binary, Address: a.Address, After: a.After, Services: a.Services,
		AnswerMS: a.Liveness.Answer.Milliseconds(), ProgressMS: a.Liveness.Progress.Milliseconds(), ReadyMS: a.Liveness.Ready.Milliseconds(),
		Heir: a.Heir,
	}
	err := b.port.ask(c.now, control.KindStart, start, func(m control.Message) {
		if m.Status != fault.OK {
			failed(fault.Remote(m.Status, "start "+a.Instance, "%s", m.Body))
			return
		}
		c.fleet.Started(a.Instance, a.Blade)
		c.event(Event{Kind: ProgramStarted, Blade: a.Blade, Name: a.Instance})
		c.logger.Info("program started", "program", a.Instance, "blade", a.Blade)
	})
	if err != nil {
		failed(err)
	}
}

// stopProgram makes a blade's daemon end a program. One that is not to run any
// more has no place, whatever becomes of this: it cannot join again.
func (c *controller) stopProgram(a resources.StopNode) {
	b := c.blades[a.Blade]
	if b == nil || !b.alive() {
		return // its nodes have ended with it
	}
	c.command(b, control.KindStop, control.Stop{Name: a.Instance, GraceMS: int(a.Grace.Milliseconds())}, nil)
}

// short tells people that a deployment lacks blades, or no longer does.
func (c *controller) short(a resources.Short) {
	e := Event{Kind: AppShort, Name: a.App + "/" + a.Program, Message: "no blade is missing any more"}
	if a.Nodes+a.Spares > 0 {
		e.Message = missing(a.Nodes, a.Spares)
	}
	c.event(e)
	c.logger.Info("deployment", "program", e.Name, "state", e.Message)
}

// What operators and deployments say of methods goes before what callers ask for.
// The daemons learn its version with all that they are told of the rack, and ask for
// the rest when that changes; so a runtime goes by it within a heartbeat.

// SetPolicy sets the policy of a method, or with method "" of all methods of a service
// for which nothing else is set, and after how many failures a call is given up. It holds for calls that are sent from when
// their nodes know, within a heartbeat. What the word says nothing of stays as it
// is; the zero word undoes all. Nobody needs to export the method yet, but a node exports the service, or a deployment declares
// it; else the error is fault.NotFound. What is set outlives the Gatekeeper.
func (g *Gatekeeper) SetPolicy(ctx context.Context, service, method string, w resources.Word) error {
	return g.operate(ctx, Event{Kind: PolicySet, Service: service, Method: method, Message: w.Text()}, func(c *controller) ([]resources.Action, error) {
		names := c.fleet.Services()
		for _, s := range c.services {
			names = append(names, s.name)
		}
		if w != (resources.Word{}) && !slices.Contains(names, service) {
			slices.Sort(names)
			return nil, fault.New(fault.NotFound, "set policy", "no node exports a service %s, and no deployment declares one: deploy it first%s",
				service, suggest.Text(service, slices.Compact(names)))
		}
		return nil, c.fleet.SetPolicy(service, method, w)
	})
}

// Policies returns the policy of every method that somebody exports, or about which
// an operator or a deployment has said something, by service and method; entries
// without a method are for all others of a service.
func (g *Gatekeeper) Policies(ctx context.Context) (all []resources.MethodPolicy, err error) {
	err = g.do(ctx, func() { all = g.ctl.fleet.AllPolicies(g.ctl.services.policies()) })
	return all, err
}

// Policy is that of one method, or with method "" of all others of a service.
func (g *Gatekeeper) Policy(ctx context.Context, service, method string) (p resources.MethodPolicy, err error) {
	err = g.do(ctx, func() {
		said := resources.ExportedPolicy{Service: service, Method: method}
		for _, m := range g.ctl.services.policies() {
			if m.Service == service && m.Method == rpcpacket.PlainMethod(method) {
				said = m
			}
		}
		p = g.ctl.fleet.PolicyOf(said)
	})
	return p, err
}

// policies lists what nodes say of the methods that they export, each method once: its form
// by reference is the same method. Of several nodes of a service the one counts that came last.
func (k catalog) policies() (all []resources.ExportedPolicy) {
	for _, s := range k {
		said := map[string]resources.Word{}
		for _, x := range s.exports {
			for _, m := range x.methods {
				plain := rpcpacket.PlainMethod(m.Name)
				if _, known := said[plain]; plain == m.Name {
					said[plain] = resources.Word{Policy: m.Policy, MaxFailures: m.MaxFailures}
				} else if !known {
					said[plain] = resources.Word{}
				}
			}
		}
		for method, w := range said {
			all = append(all, resources.ExportedPolicy{Service: s.name, Method: method, Word: w})
		}
	}
	return all
}

// explicitPolicies are those that a daemon is told.
func explicitPolicies(fleet *resources.Registry) control.PolicyList {
	explicit, version := fleet.ExplicitPolicies()
	list := make([]control.MethodPolicy, 0, len(explicit))
	for i := range explicit {
		p := &explicit[i]
		w := p.Said()
		list = append(list, control.MethodPolicy{Service: p.Service, Method: p.Method, Policy: w.Policy, MaxFailures: w.MaxFailures})
	}
	return control.PolicyList{Version: version, Policies: list}
}

// heldNoRoute answers whoever asks for the nodes that take calls of a method (package resolve) when the switch has no route to one.
func (c *controller) heldNoRoute(h *held) {
	m, err := rpcpacket.Parse(h.payload)
	var q control.Serving
	if err == nil {
		q, err = resolve.Parse(h.dst, &m)
	}
	if err != nil {
		c.malformedCall(h, &m.Header, err)
		return
	}
	list := c.services[h.dst].list(&q, m.Method, c.returns, c.now)
	b, err := resolve.Reply(&m.Header, resolve.Answer{List: &list})
	if err != nil {
		c.logger.Error("a question for servers has no answer", "service", q.Service, "method", q.Method, "error", err)
		return
	}
	c.send(0, frame.UDP6{Src: netip.AddrPortFrom(rackaddr.Gatekeeper, rackaddr.PortRPC), Dst: netip.AddrPortFrom(h.src, h.srcPort), Payload: b}.Append(nil))
}

// list lists the nodes that serve a method and, unless its calls run at most once, have a ledger. If there are none, it lists
// those that are to come back: calls to them wait there. A call that runs at most once waits only if they move. A node that is
// leaving for good is in no list. Of a method that no node has exported it lists the nodes of the service: a program may have
// registered the method meanwhile, else it refuses the call.
func (s *service) list(q *control.Serving, method rpcpacket.Method, returns func(*exported) bool, now time.Time) (list control.ServingList) {
	if s == nil || s.name != q.Service || len(s.exports) == 0 {
		list.Why = "no node exports the service: deploy it (bifrost deploy), or check its name"
		return list
	}
	known := s.has(method)
	var awaited []*exported
	list.Why = "its nodes are being stopped, or have left: start a program that exports it, or deploy it"
	for _, x := range s.exports {
		if _, has := x.methods[method]; known && !has {
			continue
		}
		switch {
		case x.node.lost:
			list.Why = "the state of the service is lost: " + x.node.anew()
		case !x.serves() && !returns(x): // it is leaving for good
		case x.node.ledger == nil && !q.AtMostOnce:
			list.Why = control.NoLedger
		case !x.serves() && q.AtMostOnce && !x.moves:
			list.Why = "its node has failed, and is not back yet"
		case !x.serves():
			awaited = append(awaited, x)
		case len(list.Nodes) < resolve.MostNodes:
			list.Nodes, list.Incarnations = append(list.Nodes, x.node.address), append(list.Incarnations, x.node.incarnation)
			x.node.named = now
			if q.AtMostOnce {
				x.node.bound = now
			}
		}
	}
	if list.Awaited = len(list.Nodes) == 0 && len(awaited) > 0; list.Awaited {
		for _, x := range awaited[:min(len(awaited), resolve.MostNodes)] {
			list.Nodes, list.Incarnations = append(list.Nodes, x.node.address), append(list.Incarnations, x.node.incarnation)
		}
	}
	if len(list.Nodes) > 0 {
		list.Why = ""
	}
	return list
}
