package admin

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/trace"
	"github.com/bifrost-rack/bifrost/internal/duration"
)

type graphInput struct {
	By      string     `query:"by" enum:"service,node" default:"service" doc:"What stands at the ends of edges: services, and programs that make calls and serve none; or nodes"`
	Service string     `query:"service" maxLength:"255" doc:"Only edges from or to this service"`
	Node    netip.Addr `query:"node" format:"ipv6" doc:"Only calls that this node makes or serves"`
	Limit   int        `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"How many edges there are at most, the busiest first"`
	Within  float64    `query:"within" minimum:"1" maximum:"86400" default:"300" doc:"Of the calls of the last so many seconds"`
}

// registerGraph serves who calls whom.
func (s *Server) registerGraph(h huma.API) {
	get(h, "/v1/graph", "get-graph", "Work", "Who calls whom, and how often lately, by service or by node; among the calls that are remembered", s.graph)
}

// end is an end of an edge.
type end struct{ name, kind, node string }

func (s *Server) graph(ctx context.Context, in *graphInput) (out api.Graph, err error) {
	now := time.Now()
	out.Since, out.By = now.Add(-duration.Seconds(in.Within)), in.By
	counted, err := s.backend.Edges(ctx, out.Since)
	if err != nil {
		return out, err
	}
	names, err := s.nodeNames(ctx, nil)
	if err != nil {
		return out, err
	}
	byAddress := map[netip.Addr]string{}
	for i := range names.Items {
		byAddress[names.Items[i].Address] = names.Items[i].Blade + "/" + names.Items[i].Name
	}
	edges := map[[2]end]trace.Tally{}
	for e, t := range counted {
		if in.Node.IsValid() && e.Caller != in.Node && e.Callee != in.Node || in.Service != "" && e.From != in.Service && e.To != in.Service {
			continue
		}
		ends := endsOf(in.By, e, byAddress)
		sum := edges[ends]
		sum.Add(t)
		edges[ends] = sum
	}
	order := slices.SortedFunc(maps.Keys(edges), func(a, b [2]end) int {
		return cmp.Or(cmp.Compare(edges[b].Calls, edges[a].Calls), cmp.Compare(a[0].name, b[0].name), cmp.Compare(a[1].name, b[1].name), cmp.Compare(a[0].kind, b[0].kind))
	})
	shown := map[end]bool{}
	out.Edges, out.Vertices = []api.Edge{}, []api.Vertex{}
	for i, ends := range order {
		t := edges[ends]
		if out.Calls += t.Calls; i >= in.Limit {
			out.Folded.Edges++
			out.Folded.Calls += t.Calls
			continue
		}
		for _, v := range ends {
			if !shown[v] {
				shown[v] = true
				out.Vertices = append(out.Vertices, api.Vertex{Name: v.name, Kind: v.kind, Node: v.node})
			}
		}
		out.Edges = append(out.Edges, api.Edge{From: ends[0].name, To: ends[1].name, Calls: t.Calls, Open: t.Open, Declared: t.Declared, Failed: t.Failed, Rerun: t.Rerun})
	}
	return out, nil
}

// endsOf says between what an edge is drawn. Names tell kinds apart: those of programs and nodes have a slash.
func endsOf(by string, e trace.Edge, names map[netip.Addr]string) [2]end {
	node := func(a netip.Addr) end {
		name, known := names[a]
		switch {
		case !a.IsValid():
			return end{name: "nobody/", kind: "node"}
		case !known:
			name = a.String() + "/"
		}
		return end{name: name, kind: "node", node: a.String()}
	}
	if by == "node" {
		return [2]end{node(e.Caller), node(e.Callee)}
	}
	ends := [2]end{{name: e.From, kind: "service"}, {name: e.To, kind: "service"}}
	if e.From == "" {
		ends[0] = end{name: programOfNode(node(e.Caller).name), kind: "program"}
	}
	if e.To == "" {
		ends[1] = end{name: programOfNode(node(e.Callee).name), kind: "program"}
	}
	return ends
}

// programOfNode is the program that a node's name, BLADE/NAME, tells of. Nodes of a deployment are APP/PROGRAM/NUMBER there: one program has many.
func programOfNode(name string) string {
	_, program, _ := strings.Cut(name, "/")
	if i := strings.LastIndexByte(program, '/'); i > 0 && strings.Trim(program[i+1:], "0123456789") == "" {
		program = program[:i]
	}
	return program + "/"
}
