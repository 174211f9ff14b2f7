package resources

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Registry is the state of a rack's resources. It is not safe for concurrent use.
type Registry struct {
	cfg       Config
	rack      Rack
	blades    map[string]*Blade
	nodes     map[netip.Addr]*Node
	apps      map[string]*deployment
	policies  map[policyKey]Word // what the operator set
	explicit  explicit           // what ExplicitPolicies found
	converged time.Time          // when converge last looked at deployments
	version   uint64
	out       []Action
}

// New returns the registry of a rack without blades.
func New(cfg Config, rack Rack) (*Registry, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	return &Registry{
		cfg: cfg, rack: rack, blades: map[string]*Blade{}, nodes: map[netip.Addr]*Node{},
		apps: map[string]*deployment{}, policies: map[policyKey]Word{},
	}, nil
}

// Version grows with every change that State has to preserve; heartbeats cause
// none.
func (r *Registry) Version() uint64 { return r.version }

func (r *Registry) emit(a Action) { r.out = append(r.out, a) }

// flush returns the actions of the operation that ends.
func (r *Registry) flush() []Action {
	out := r.out
	r.out = nil
	if len(out) > 0 {
		r.version++
	}
	return out
}

// Tick tells the time: programs that do not join are given up, and those that paused
// after a failure start again. Deadline is when to call it.
func (r *Registry) Tick(now time.Time) []Action {
	r.eachInstance(func(_ *running, i *Instance) {
		if i.Status == Starting && now.Sub(i.Since) > r.cfg.StartTimeout {
			r.emit(StopNode{Blade: i.Blade, Instance: i.Name})
			r.giveUpStart(i, fmt.Sprintf("it has not joined the rack within %v", r.cfg.StartTimeout), now)
		}
	})
	r.impatient(now)
	r.converge(now)
	return r.flush()
}

// Blades returns all blades, ordered by name.
func (r *Registry) Blades() []Blade {
	var all []Blade
	for _, b := range r.sortedBlades() {
		all = append(all, *b)
	}
	return all
}

// Blade returns one blade by its name.
func (r *Registry) Blade(name string) (Blade, bool) {
	b := r.blades[name]
	if b == nil {
		return Blade{}, false
	}
	return *b, true
}

// Nodes returns the nodes on a blade, or all for "", ordered by address.
func (r *Registry) Nodes(blade string) []Node {
	var all []Node
	for _, n := range r.nodes {
		if blade == "" || n.Blade == blade {
			all = append(all, *n)
		}
	}
	slices.SortFunc(all, func(a, b Node) int { return a.Address.Compare(b.Address) })
	return all
}

func (r *Registry) sortedBlades() []*Blade {
	return slices.SortedFunc(maps.Values(r.blades), func(a, b *Blade) int { return cmp.Compare(a.Name, b.Name) })
}

func (r *Registry) sortedApps() []*deployment {
	return slices.SortedFunc(maps.Values(r.apps), func(a, b *deployment) int { return cmp.Compare(a.Spec.Name, b.Spec.Name) })
}

// eachInstance visits the instances in a fixed order.
func (r *Registry) eachInstance(visit func(*running, *Instance)) {
	for _, a := range r.sortedApps() {
		for _, p := range a.Programs {
			for _, i := range p.Instances {
				visit(p, i)
			}
		}
	}
}

// known returns a blade, or an error that names it.
func (r *Registry) known(op, blade string) (*Blade, error) {
	if b := r.blades[blade]; b != nil {
		return b, nil
	}
	return nil, fault.New(fault.NotFound, op, "no blade is called %q", blade)
}
