package resources

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Limits of what a node exports.
const (
	MaxServiceName = 255 // bytes
	MaxMethods     = 1024
	// MaxShare is how many nodes can share a service at most: the switch spreads calls by
	// the last byte of their ids.
	MaxShare = 256
)

// service is the methods that nodes export under one name, for their policies: which calls
// go where is the Gatekeeper's to say. It exists as long as one node exports it.
type service struct{ methods map[rpcpacket.Method]*method }

// method is one method and the nodes that serve it. Different nodes of a service
// may export different methods, e.g. while it is being upgraded.
type method struct {
	name   string
	policy string // from the export
	nodes  []netip.Addr
}

// Method is a method of an Export.
type Method struct {
	Name   string `json:"name"`
	Policy string `json:"policy,omitempty"` // as rpcpacket.Policy writes it; "" for none given
}

// Export registers a service that a node serves from now on; a second Export of
// a service replaces the first. It is refused with code Stale if the node is
// gone or going, and with BadRequest if a node of it is on the same blade already.
func (r *Registry) Export(node netip.Addr, incarnation uint32, name string, methods []Method, now time.Time) ([]Action, error) {
	op := "export of " + name
	n := r.nodes[node]
	if n == nil || n.Incarnation != incarnation || n.Ending {
		return nil, fault.New(fault.Stale, op, "node %s, incarnation %d, is not there", node, incarnation)
	}
	wire, err := checkExport(op, name, methods)
	if err != nil {
		return nil, err
	}
	if r.survey(n).rooms[n.Blade].serves(name) {
		return nil, fault.New(fault.BadRequest, op, "blade %s has another node of it", n.Blade)
	}
	if _, i := r.instance(n.Instance); i != nil && i.empties() {
		n.offer(name)
		r.version++
		r.converge(now)
		return r.flush(), nil // it finishes its calls, and gets no others
	}
	s := r.services[name]
	if s == nil {
		s = &service{methods: map[rpcpacket.Method]*method{}}
		r.services[name] = s
	}
	n.offer(name)
	for w, m := range wire {
		s.add(w, m, node)
	}
	for w := range s.methods {
		if _, still := wire[w]; !still {
			s.remove(w, node)
		}
	}
	r.version++
	r.converge(now)
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

// Withdraw takes a service away from a node that exports it.
func (r *Registry) Withdraw(node netip.Addr, service string) {
	if n := r.nodes[node]; n != nil {
		r.unlist(n, service)
		n.Services = slices.DeleteFunc(n.Services, func(s string) bool { return s == service })
		r.version++
	}
}

// withdraw takes a node out of every service.
func (r *Registry) withdraw(n *Node) {
	for _, name := range n.Services {
		r.unlist(n, name)
	}
}

// unlist takes a node out of the methods of a service.
func (r *Registry) unlist(n *Node, service string) {
	s := r.services[service]
	if s == nil {
		return
	}
	for w := range s.methods {
		s.remove(w, n.Address)
	}
	if len(s.methods) == 0 {
		delete(r.services, service)
	}
}

func (s *service) add(w rpcpacket.Method, m Method, node netip.Addr) {
	was := s.methods[w]
	if was == nil {
		was = &method{}
		s.methods[w] = was
	}
	was.name, was.policy = m.Name, m.Policy
	if !slices.Contains(was.nodes, node) {
		was.nodes = append(was.nodes, node)
	}
}

// remove takes a node out of a method, which goes with the last one.
func (s *service) remove(w rpcpacket.Method, node netip.Addr) {
	m := s.methods[w]
	m.nodes = slices.DeleteFunc(m.nodes, func(a netip.Addr) bool { return a == node })
	if len(m.nodes) == 0 {
		delete(s.methods, w)
	}
}

// sorted returns the wire names in order of the full names.
func (s *service) sorted() []rpcpacket.Method {
	return slices.SortedFunc(maps.Keys(s.methods), func(a, b rpcpacket.Method) int {
		return cmp.Compare(s.methods[a].name, s.methods[b].name)
	})
}
