package resources

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// stateFormat is the version of what Save writes.
const stateFormat = 1

// state is what outlives the Gatekeeper.
type state struct {
	Format      int           `json:"format"`
	Blades      []*Blade      `json:"blades"`
	Nodes       []*Node       `json:"nodes"`
	Policies    []savedPolicy `json:"policies"`
	Deployments []*deployment `json:"deployments"`
}

type savedPolicy struct {
	Service string `json:"service"`
	Method  string `json:"method"`
	Word
}

// Save returns the whole state in a form that Load reads. It needs to be written
// only when Version has changed.
func (r *Registry) Save() ([]byte, error) {
	s := state{Format: stateFormat, Blades: r.sortedBlades(), Deployments: r.sortedApps()}
	for _, n := range r.nodes {
		s.Nodes = append(s.Nodes, n)
	}
	slices.SortFunc(s.Nodes, func(a, b *Node) int { return a.Address.Compare(b.Address) })
	for k, p := range r.policies {
		s.Policies = append(s.Policies, savedPolicy{k.service, k.method, p})
	}
	slices.SortFunc(s.Policies, func(a, b savedPolicy) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Method, b.Method))
	})
	return json.Marshal(s)
}

// Load returns the registry that Save wrote, as of now. It refuses what another version wrote and what contradicts
// itself. Resume tells what was under way.
func Load(cfg Config, rack Rack, data []byte, now time.Time) (*Registry, error) {
	r, err := New(cfg, rack)
	if err != nil {
		return nil, err
	}
	var s state
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("resources: saved state: %w", err)
	}
	if s.Format != stateFormat {
		return nil, fmt.Errorf("resources: saved state has format %d, this program reads %d", s.Format, stateFormat)
	}
	for _, load := range []func(*state, time.Time) error{r.loadBlades, r.loadNodes, r.loadDeployments} {
		if err := load(&s, now); err != nil {
			return nil, fmt.Errorf("resources: saved state: %w", err)
		}
	}
	for _, n := range r.nodes {
		if _, i := r.instance(n.Instance); n.Instance != "" && (i == nil || i.Node != n.Address) {
			return nil, fmt.Errorf("resources: saved state: node %s runs instance %q, which does not know it", n.Address, n.Instance)
		}
	}
	for _, p := range s.Policies {
		if err := r.SetPolicy(p.Service, p.Method, p.Word); err != nil {
			return nil, fmt.Errorf("resources: saved state: %w", err)
		}
	}
	return r, nil
}

func (r *Registry) loadBlades(s *state, _ time.Time) error {
	for _, b := range s.Blades {
		if b == nil || r.blades[b.Name] != nil {
			return fmt.Errorf("blade %v twice", b)
		}
		r.blades[b.Name] = b
	}
	return nil
}

func (r *Registry) loadNodes(s *state, _ time.Time) error {
	for _, n := range s.Nodes {
		switch {
		case n == nil || r.nodes[n.Address] != nil:
			return fmt.Errorf("node %v twice", n)
		case r.blades[n.Blade] == nil:
			return fmt.Errorf("node %s is on blade %q, which is not there", n.Address, n.Blade)
		}
		r.nodes[n.Address] = n
	}
	return nil
}

func (r *Registry) loadDeployments(s *state, now time.Time) error {
	for _, a := range s.Deployments {
		if a == nil || r.apps[a.Spec.Name] != nil {
			return fmt.Errorf("deployment %v twice", a)
		}
		if err := a.Spec.Validate(); err != nil {
			return err
		}
		if len(a.Programs) != len(a.Spec.Programs) {
			return fmt.Errorf("deployment %s has %d programs, specified are %d", a.Spec.Name, len(a.Programs), len(a.Spec.Programs))
		}
		for k := range a.Former {
			if err := a.Former[k].Spec.Validate(); err != nil {
				return err
			}
		}
		r.apps[a.Spec.Name] = a
		for k, p := range a.Programs {
			if p == nil {
				return fmt.Errorf("deployment %s: no program %d", a.Spec.Name, k)
			}
			p.app, p.spec = a, &a.Spec.Programs[k]
			if err := r.loadProgram(p, now); err != nil {
				return fmt.Errorf("deployment %s: %w", a.Spec.Name, err)
			}
		}
	}
	return nil
}

func (r *Registry) loadProgram(p *running, now time.Time) error {
	last := 0
	for _, i := range p.Instances {
		if i == nil || i.Number <= last || i.Number > p.LastNumber || i.Name != p.name(i.Number) {
			return fmt.Errorf("program %s: instance %v out of order", p.spec.Name, i)
		}
		last = i.Number
		n := r.nodes[i.Node]
		switch {
		case !slices.Contains([]InstanceStatus{Waiting, Starting, Running, Ending, Finished}, i.Status):
			return fmt.Errorf("instance %s is %q", i.Name, i.Status)
		case (i.Status == Running || i.Status == Ending) != (n != nil && n.Instance == i.Name && n.Blade == i.Blade):
			return fmt.Errorf("instance %s is %s as node %v", i.Name, i.Status, n)
		case i.Status == Starting && r.blades[i.Blade] == nil, i.Next != "" && r.blades[i.Next] == nil:
			return fmt.Errorf("instance %s is on blade %q, next %q: not there", i.Name, i.Blade, i.Next)
		}
		if i.Status == Starting {
			i.Since = now
		}
	}
	for _, name := range p.Spares {
		if r.blades[name] == nil {
			return fmt.Errorf("a spare on blade %q, which is not there", name)
		}
	}
	return nil
}

// Resume returns the actions that may not have been carried out before a
// restart: starts without a join, stops and ends without an answer.
func (r *Registry) Resume(now time.Time) []Action {
	r.eachInstance(func(p *running, i *Instance) {
		switch {
		case i.Status == Starting:
			r.emit(p.startNode(i))
		case i.Status == Running && i.Stopped:
			r.emit(StopNode{Blade: i.Blade, Instance: i.Name, Grace: r.cfg.StopGrace})
		case i.Status == Running && i.empties():
			r.emptyNode(i)
		}
	})
	for _, n := range r.Nodes("") {
		if n.Ending {
			r.emit(EndNode{n})
		}
	}
	r.converge(now)
	return r.flush()
}

// Plain reports whether the registry holds nothing but blades and nodes as they
// have announced themselves: no deployment, and nothing that an operator decided.
func (r *Registry) Plain() bool {
	for _, b := range r.blades {
		if b.Mark != "" {
			return false
		}
	}
	return len(r.apps) == 0 && len(r.policies) == 0
}
