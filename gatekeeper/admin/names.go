package admin

import (
	"context"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
)

// maxNames bounds the nodes whose names are kept when they have left; those stay that have joined last.
const maxNames = 8192

// joined are the names of nodes, by address, as they were when they joined last. It belongs to a hub, whose lock guards it.
type joined struct {
	names map[netip.Addr]api.NodeName
	order []netip.Addr // of their first joining
}

// learn takes the name of a node that joins. A former one does not take the place of one that is known.
func (j *joined) learn(e *gatekeeper.Event, former bool) {
	if e.Kind != gatekeeper.NodeJoined || !e.Node.IsValid() {
		return
	}
	if j.names == nil {
		j.names = map[netip.Addr]api.NodeName{}
	}
	_, known := j.names[e.Node]
	switch {
	case known && former:
		return
	case !known && former:
		j.order = slices.Insert(j.order, 0, e.Node)
	case !known:
		j.order = append(j.order, e.Node)
	}
	j.names[e.Node] = api.NodeName{Address: e.Node, Blade: e.Blade, Name: e.Name}
	if len(j.order) > maxNames {
		delete(j.names, j.order[0])
		j.order = j.order[1:]
	}
}

// nodeNames lists the nodes that are there, and those that have left and whose names are kept.
func (s *Server) nodeNames(ctx context.Context, _ *none) (out api.List[api.NodeName], err error) {
	o, err := s.backend.Overview(ctx)
	if err != nil {
		return out, err
	}
	here := map[netip.Addr]bool{}
	for i := range o.Nodes {
		n := &o.Nodes[i]
		here[n.Address] = true
		out.Items = append(out.Items, api.NodeName{Address: n.Address, Blade: n.Blade, Name: n.Name})
	}
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	for _, a := range s.hub.order {
		if n := s.hub.names[a]; !here[a] {
			n.Left = true
			out.Items = append(out.Items, n)
		}
	}
	out.Items = list(out.Items)
	return out, nil
}

// EventFilter selects events by parameters of a request; the zero value selects all.
type EventFilter struct {
	Kinds   []string   `query:"kind" maxItems:"32" doc:"Only events of these kinds, separated by commas; all if none is named"`
	Blade   string     `query:"blade" maxLength:"255" doc:"Only events of this blade"`
	Node    netip.Addr `query:"node" format:"ipv6" doc:"Only events of this node, or with it"`
	Service string     `query:"service" maxLength:"255" doc:"Only events of this service"`
	App     string     `query:"app" maxLength:"255" doc:"Only events of this deployment, its programs and their nodes: APP, APP/PROGRAM or APP/PROGRAM/NUMBER"`
}

// takes reports whether an event is one of them.
func (f *EventFilter) takes(e *gatekeeper.Event) bool {
	return (len(f.Kinds) == 0 || slices.Contains(f.Kinds, string(e.Kind))) &&
		(f.Blade == "" || e.Blade == f.Blade) &&
		(!f.Node.IsValid() || e.Node == f.Node || e.Peer == f.Node) &&
		(f.Service == "" || e.Service == f.Service) &&
		(f.App == "" || below(e.Name, f.App))
}

// below reports whether a name is that of an app, a program or an instance, or of a part of it.
func below(name, of string) bool {
	return name == of || len(name) > len(of) && name[:len(of)] == of && name[len(of)] == '/'
}
