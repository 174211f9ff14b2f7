package gatekeeper

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// service is what an IDL declares, and the nodes that export it.
type service struct {
	name    string
	address netip.Addr
	exports []*exported // in the order of their arrival, which is that of their routes
	routes  map[routeKey]*node
}

// exported is one node's export of a service.
type exported struct {
	node     *node
	methods  map[rpc.Method]control.Method
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
	method rpc.Method
	spread spread
}

// export registers a service of a node.
func (c *controller) export(p *port, m control.Message) error {
	var e control.Export
	if err := m.Decode(&e); err != nil {
		return err
	}
	n, err := c.nodeAt(p, "export", e.Node, e.Incarnation)
	if err != nil {
		return err
	}
	if e.Withdraw {
		c.withdrawNode(n, func() { c.answer(p, m, nil) })
		return nil
	}
	methods, err := checkMethods(&e)
	if err != nil {
		return err
	}
	if err := c.claim(n, claim{claimService, e.Service}); err != nil {
		return err
	}
	s, err := c.serviceFor(n, &e)
	if err != nil {
		return err
	}
	if err := c.placeService(n, &e); err != nil {
		return err
	}
	x := n.exports[s.address]
	if x == nil {
		c.lastExport++
		x = &exported{node: n, order: c.lastExport}
		n.exports[s.address] = x
		s.exports = append(s.exports, x)
	}
	x.idl, x.resting = e.IDL, e.NotServing
	x.methods, x.stateful, x.away, x.moves = methods, e.Stateful, false, n.empties && n.moves
	c.keepExport(n, s.address)
	c.change(func(err error) {
		if err != nil {
			c.fail(p, m, fault.New(fault.Internal, "export", "the switch refuses the service's routes: %v", err))
			return
		}
		c.event(Event{Kind: ServiceExported, Blade: n.blade.hello.Blade, Node: n.address, Name: n.name, Service: s.name})
		c.log.Info("service exported", "service", s.name, "node", n.address, "methods", len(x.methods))
		c.answer(p, m, nil)
		if !n.gone {
			c.up(n, s.address)
		}
	}, c.reroute(s)...)
	return nil
}

// checkMethods reads the methods of an export.
func checkMethods(e *control.Export) (map[rpc.Method]control.Method, error) {
	if err := checkName("export", e.Service); err != nil {
		return nil, err
	}
	if len(e.Methods) == 0 || len(e.Methods) > maxMethods {
		return nil, fault.New(fault.BadRequest, "export", "service %s has %d methods: must be 1 to %d", e.Service, len(e.Methods), maxMethods)
	}
	if len(e.IDL) > control.MaxIDL {
		return nil, fault.New(fault.BadRequest, "export", "service %s has an IDL of %d bytes: at most %d", e.Service, len(e.IDL), control.MaxIDL)
	}
	methods := make(map[rpc.Method]control.Method, len(e.Methods))
	for _, m := range e.Methods {
		wire, err := rpc.MethodOf(m.Name)
		if err != nil {
			return nil, &fault.Error{Code: fault.BadRequest, Op: "export " + e.Service, Err: err}
		}
		if old, ok := methods[wire]; ok {
			return nil, fault.New(fault.BadRequest, "export", "service %s: methods %q and %q look alike on the wire", e.Service, old.Name, m.Name)
		}
		methods[wire] = m
	}
	return methods, nil
}

// serviceFor finds the service of an export and checks that the node may join it.
func (c *controller) serviceFor(n *node, e *control.Export) (*service, error) {
	a := rackaddr.Service(e.Service)
	s := c.services[a]
	if s == nil {
		s = &service{name: e.Service, address: a, routes: map[routeKey]*node{}}
		c.services[a] = s
		return s, nil
	}
	if s.name != e.Service {
		return nil, fault.New(fault.BadRequest, "export", "service %s has the same address as %s", e.Service, s.name)
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
func (c *controller) describe(p *port, m control.Message) error {
	var q control.Service
	if err := m.Decode(&q); err != nil {
		return err
	}
	s := c.services[rackaddr.Service(q.Name)]
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
	c.answer(p, m, info)
	return nil
}

// withdraw takes a node's export away.
func (c *controller) withdraw(n *node, address netip.Addr) []phase {
	s := c.services[address]
	s.exports = slices.DeleteFunc(s.exports, func(x *exported) bool { return x.node == n })
	delete(n.exports, address)
	c.drop(log.KindExport, exportID(n.address, address))
	phases := c.reroute(s)
	if len(s.exports) == 0 && len(c.services) > maxServices {
		delete(c.services, address)
	}
	return phases
}

// reroute makes a service's routes what its exports ask for, and returns the
// updates: new and changed rows first, so that no call is without a route while
// the rows that are no longer needed go. The switch gets none for a stateful
// service, so that it holds every call into it: see graph.go.
func (c *controller) reroute(s *service) []phase {
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
		if n.blade.port != nil && !s.stateful() {
			up = append(up, c.base.want(routeEntry(s.address, k.method, k.spread, hopOf(n.blade.port.num)))...)
		}
	}
	for _, k := range sortedRoutes(s.routes) {
		if routes[k] == nil || s.stateful() {
			down = append(down, c.base.unwant(routeEntry(s.address, k.method, k.spread, 0))...)
		}
	}
	s.routes = routes
	return append(split(up), down)
}

// serving lists for each method the nodes that serve it.
func (s *service) serving() map[rpc.Method][]*node {
	out := map[rpc.Method][]*node{}
	for _, x := range s.exports {
		for m := range x.methods {
			if !x.serves() {
				continue
			}
			out[m] = append(out[m], x.node)
		}
	}
	return out
}

// route finds the node that serves a call, as the switch's rpc_route does.
func (s *service) route(method rpc.Method, id rpc.ID) *node {
	last := id[len(id)-1]
	for bits := 8; bits >= 0; bits-- {
		if n := s.routes[routeKey{method, spread{last &^ (0xff >> bits), bits}}]; n != nil {
			return n
		}
	}
	return nil
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
