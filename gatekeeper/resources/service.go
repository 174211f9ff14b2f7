package resources

import (
	"cmp"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Limits of what a node exports.
const (
	MaxServiceName = 255 // bytes
	MaxMethods     = 1024
)

// service is what nodes export under one name. It exists as long as one does.
type service struct {
	name     string
	stateful bool
	methods  map[rpcpacket.Method]*method
}

// method is one method and the nodes that serve it. Different nodes of a service
// may export different methods, e.g. while it is being upgraded.
type method struct {
	name   string
	oneway bool
	policy string // from the export
	nodes  []netip.Addr
	spread Spread
}

// Method is a method of an Export.
type Method struct {
	Name   string `json:"name"`
	Oneway bool   `json:"oneway,omitempty"`
	Policy string `json:"policy,omitempty"` // as rpcpacket.Policy writes it; "" for none given
}

// ServiceHash is a service's name as call headers carry it: the low half of its
// address.
func ServiceHash(name string) uint64 {
	a := rackaddr.Service(name).As16()
	return binary.BigEndian.Uint64(a[8:])
}

// Export registers a service that a node serves from now on; a second Export of
// a service replaces the first. It is refused with code Stale if the node is
// gone or going, and with BadRequest if the service cannot be had so: a node of
// it is on the same blade already, or it is stateful and another node has it.
func (r *Registry) Export(node netip.Addr, incarnation uint32, name string, stateful bool, methods []Method, now time.Time) ([]Action, error) {
	op := "export of " + name
	n := r.nodes[node]
	if n == nil || n.Incarnation != incarnation || n.Ending {
		return nil, fault.New(fault.Stale, op, "node %s, incarnation %d, is not there", node, incarnation)
	}
	wire, err := checkExport(op, name, methods)
	if err != nil {
		return nil, err
	}
	if err := r.checkService(op, n, name, stateful); err != nil {
		return nil, err
	}
	if _, i := r.instance(n.Instance); i != nil && i.empties() {
		n.offer(name)
		r.version++
		r.settle(now)
		return r.flush(), nil // it finishes its calls, and gets no others
	}
	hash := ServiceHash(name)
	s := r.services[hash]
	if s == nil {
		s = &service{name: name, methods: map[rpcpacket.Method]*method{}}
		r.services[hash] = s
	}
	s.stateful = stateful
	n.offer(name)
	for w, m := range wire {
		s.add(w, m, node)
	}
	for _, w := range s.sorted() {
		if _, still := wire[w]; !still {
			s.methods[w].remove(node)
		}
		r.route(s, w)
	}
	r.version++
	r.settle(now)
	return r.flush(), nil
}

// offer notes that a node has a service.
func (n *Node) offer(service string) {
	if i, found := slices.BinarySearch(n.Services, service); !found {
		n.Services = slices.Insert(n.Services, i, service)
	}
}

// checkExport returns the methods by their wire form.
func checkExport(op, name string, methods []Method) (map[rpcpacket.Method]Method, error) {
	if name == "" || len(name) > MaxServiceName || len(methods) == 0 || len(methods) > MaxMethods {
		return nil, fault.New(fault.BadRequest, op, "a name of %d bytes, %d methods", len(name), len(methods))
	}
	wire := map[rpcpacket.Method]Method{}
	for _, m := range methods {
		w, err := rpcpacket.MethodOf(m.Name)
		if err != nil {
			return nil, fault.New(fault.BadRequest, op, "%v", err)
		}
		if other, twice := wire[w]; twice {
			return nil, fault.New(fault.BadRequest, op, "methods %s and %s are the same to the switch", other.Name, m.Name)
		}
		if _, _, err := ParsePolicy(m.Policy); err != nil {
			return nil, err
		}
		wire[w] = m
	}
	return wire, nil
}

// checkService refuses what the placement rules forbid.
func (r *Registry) checkService(op string, n *Node, name string, stateful bool) error {
	if r.survey(n).rooms[n.Blade].serves(name) {
		return fault.New(fault.BadRequest, op, "blade %s has another node of it", n.Blade)
	}
	s := r.services[ServiceHash(name)]
	if s == nil {
		return nil
	}
	others := s.nodes()
	delete(others, n.Address)
	switch {
	case s.name != name:
		return fault.New(fault.BadRequest, op, "its hash is that of service %s", s.name)
	case len(others) > 0 && (stateful || s.stateful):
		return fault.New(fault.BadRequest, op, "it is stateful, and another node has it")
	case len(others) >= MaxShare:
		return fault.New(fault.Overloaded, op, "%d nodes share it already", len(others))
	}
	return nil
}

// Withdraw takes a service away from a node that exports it.
func (r *Registry) Withdraw(node netip.Addr, service string) []Action {
	if n := r.nodes[node]; n != nil {
		r.unroute(n, service)
		n.Services = slices.DeleteFunc(n.Services, func(s string) bool { return s == service })
		r.version++
	}
	return r.flush()
}

// withdraw takes a node out of every route.
func (r *Registry) withdraw(n *Node) {
	for _, name := range n.Services {
		r.unroute(n, name)
	}
}

// unroute takes a node out of the routes of a service.
func (r *Registry) unroute(n *Node, service string) {
	s := r.services[ServiceHash(service)]
	if s == nil {
		return
	}
	for _, w := range s.sorted() {
		s.methods[w].remove(n.Address)
		r.route(s, w)
	}
	if len(s.methods) == 0 {
		delete(r.services, ServiceHash(service))
	}
}

// route shares a method among its nodes anew, and forgets one without any.
func (r *Registry) route(s *service, w rpcpacket.Method) {
	m := s.methods[w]
	next := m.spread.Share(m.nodes)
	if c := m.spread.changeTo(&next); !c.IsZero() {
		r.emit(SetRoutes{Service: s.name, Method: w, Change: c})
	}
	m.spread = next
	if len(m.nodes) == 0 {
		delete(s.methods, w)
	}
}

func (s *service) add(w rpcpacket.Method, m Method, node netip.Addr) {
	was := s.methods[w]
	if was == nil {
		was = &method{}
		s.methods[w] = was
	}
	was.name, was.oneway, was.policy = m.Name, m.Oneway, m.Policy
	if !slices.Contains(was.nodes, node) {
		was.nodes = append(was.nodes, node)
	}
}

func (m *method) remove(node netip.Addr) {
	m.nodes = slices.DeleteFunc(m.nodes, func(a netip.Addr) bool { return a == node })
}

// sorted returns the wire names in order of the full names.
func (s *service) sorted() []rpcpacket.Method {
	return slices.SortedFunc(maps.Keys(s.methods), func(a, b rpcpacket.Method) int {
		return cmp.Compare(s.methods[a].name, s.methods[b].name)
	})
}

// nodes is the set of nodes that serve any method.
func (s *service) nodes() map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for _, m := range s.methods {
		for _, n := range m.nodes {
			all[n] = true
		}
	}
	return all
}
