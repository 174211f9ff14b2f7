package crash

import (
	"context"
	"fmt"

	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
)

// blades are one for plain clients, one for each service, and a spare.
func (r *Run) blades() []simrack.Blade {
	bs := []simrack.Blade{{Name: "c1", Kind: control.Compute}}
	n := r.p.homes()
	if !r.opt.NoSpare {
		n++
	}
	for i := range n {
		bs = append(bs, simrack.Blade{Name: fmt.Sprint("s", i+1), Kind: control.Compute})
	}
	if r.opt.Setting.Calls > 0 {
		bs = append(bs, simrack.Blade{Name: voiceBlade, Kind: control.Compute})
	}
	for _, m := range memoryBlades {
		bs = append(bs, simrack.Blade{Name: m, Kind: control.Memory, Capacity: 128 << 20})
	}
	return bs
}

// homes is how many blades run services: one for each service, or for each node of a service
// with more than three.
func (p *Program) homes() int {
	n := len(p.Services)
	for _, s := range p.Services {
		if s.Nodes > 3 {
			n = max(n, s.Nodes)
		}
	}
	return n
}

// memoryBlades are the names of the memory blades.
var memoryBlades = []string{"m1", "m2"}

// spec is the deployment. The program of that name, if it is not "", has a node more, or a
// spare if it can have only one node.
func (r *Run) spec(more string) resources.Spec {
	spec := resources.Spec{Name: appName}
	for i := range r.p.Services {
		if !r.byHand(i) && !r.takenBack(i) && !r.p.Services[i].Beside {
			spec.Programs = append(spec.Programs, r.programOf(i, more))
		}
	}
	if r.opt.Setting.Calls > 0 {
		spec.Programs = append(spec.Programs, resources.Program{
			Name: chorusName, Args: []string{chorusName}, Nodes: 1, Blades: r.serving(), Services: []resources.ServiceSpec{{Name: chorusName, Stateful: true}},
		})
	}
	return spec
}

// programOf is a service's program in a deployment: see spec.
func (r *Run) programOf(service int, more string) resources.Program {
	name, s := ServiceName(service), r.p.Services[service]
	program := resources.Program{
		Name: name, Args: []string{name}, Nodes: max(1, s.Nodes), Blades: r.bladesOf(service),
		Services: []resources.ServiceSpec{{Name: name, Stateful: s.Stateful}},
	}
	for next := service + 1; next < len(r.p.Services) && r.p.Services[next].Beside; next++ {
		program.Services = append(program.Services, resources.ServiceSpec{Name: ServiceName(next), Stateful: r.p.Services[next].Stateful})
	}
	switch {
	case name != more:
	case s.Stateful:
		program.Spares++
	default:
		program.Nodes++
	}
	return program
}

// serving are the blades that run programs of deployments.
func (r *Run) serving() (names []string) {
	for _, b := range r.blades() {
		if b.Kind == control.Compute && b.Name != "c1" && b.Name != voiceBlade {
			names = append(names, b.Name)
		}
	}
	return names
}

// bladesOf are the blades that may run a service.
func (r *Run) bladesOf(service int) (names []string) {
	n := r.p.homes()
	for i := range n + 1 {
		if i == n && r.opt.NoSpare {
			break
		}
		if !r.p.Apart || r.p.Services[service].Nodes > 1 || i == service || i == n {
			names = append(names, fmt.Sprint("s", i+1))
		}
	}
	return names
}

// mains is the deployment of the durable mains.
func (r *Run) mains() (spec resources.Spec, some bool) {
	spec.Name = appName + "-mains"
	for i, c := range r.p.Clients {
		if name := r.p.clientName(i); c.Main && !r.opt.Setting.ByHand {
			spec.Programs = append(spec.Programs, resources.Program{Name: name, Args: []string{name}, Nodes: 1, Job: true, Blades: r.serving()})
		}
	}
	return spec, len(spec.Programs) > 0
}

// programs are what the blades can start.
func (r *Run) programs() map[string]simrack.Program {
	ps := map[string]simrack.Program{chorusName: r.chant}
	for i := range r.p.Services {
		ps[ServiceName(i)] = func(ctx context.Context, j join.Joiner, s control.Start) error { return r.serve(ctx, i, j, s) }
	}
	for i, c := range r.p.Clients {
		if c.Main {
			ps[r.p.clientName(i)] = func(ctx context.Context, j join.Joiner, s control.Start) error { return r.durable(ctx, i, j, s) }
		}
	}
	return ps
}
