package resources

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Target is who serves a call, and how.
type Target struct {
	Node     Node
	Service  string
	Method   string
	Stateful bool
	Oneway   bool
	Policy   rpcpacket.Policy
}

// Target returns the node that the switch would route a call to: service and
// method as in the call's header, spread the last byte of its id. A method that
// no node exports is refused: Unavailable if a deployment is to export its
// service, NoSuchMethod otherwise.
func (r *Registry) Target(hash uint64, w rpcpacket.Method, spread uint8) (Target, error) {
	s := r.services[hash]
	if s == nil || s.methods[w] == nil {
		return Target{}, r.noTarget(hash, w)
	}
	m := s.methods[w]
	n := r.nodes[m.spread.Node(spread)]
	return Target{
		Node: n.clone(), Service: s.name, Method: m.name, Stateful: s.stateful, Oneway: m.oneway, Policy: r.Policy(s.name, m.name),
	}, nil
}

func (r *Registry) noTarget(hash uint64, w rpcpacket.Method) error {
	for _, a := range r.sortedApps() {
		for _, p := range a.Programs {
			for _, s := range p.spec.Services {
				if ServiceHash(s.Name) == hash && !a.Removed {
					return fault.New(fault.Unavailable, "call "+s.Name+"."+w.String(), "no node of deployment %s is ready to serve it", a.Spec.Name)
				}
			}
		}
	}
	if s := r.services[hash]; s != nil {
		return fault.New(fault.NoSuchMethod, "call "+s.name+"."+w.String(), "no node exports it")
	}
	return fault.New(fault.NoSuchMethod, "call "+w.String(), "no node exports service %016x", hash)
}

// Service is what nodes export under one name.
type Service struct {
	Name     string          `json:"name"`
	Stateful bool            `json:"stateful"`
	Nodes    []netip.Addr    `json:"nodes"` // ordered
	Methods  []ServiceMethod `json:"methods"`
}

// ServiceMethod is one method of a service.
type ServiceMethod struct {
	Name   string           `json:"name"`
	Wire   rpcpacket.Method `json:"-"`
	Oneway bool             `json:"oneway"`
	Policy string           `json:"policy"`
	// Routes are its entries in the switch.
	Routes []Prefix `json:"routes"`
}

// Services returns all services, ordered by name.
func (r *Registry) Services() []Service {
	var all []Service
	for _, s := range r.services {
		v := Service{Name: s.name, Stateful: s.stateful, Nodes: slices.SortedFunc(maps.Keys(s.nodes()), netip.Addr.Compare)}
		for _, w := range s.sorted() {
			m := s.methods[w]
			v.Methods = append(v.Methods, ServiceMethod{
				Name: m.name, Wire: w, Oneway: m.oneway, Policy: r.Policy(s.name, m.name).String(), Routes: m.spread.Prefixes(),
			})
		}
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b Service) int { return cmp.Compare(a.Name, b.Name) })
	return all
}
