//go:build linux

package ebpf

import (
	"fmt"

	"github.com/bifrost-rack/bifrost/p4/v1model"
)

// pipeline generates a control, which goes on behind it.
func (g *gen) pipeline(p *v1model.Pipeline, what string) {
	end := g.label(what + "_end")
	g.endpipe, g.nodes, g.todo = end, map[v1model.Node]string{}, nil
	g.jump(g.node(p.Start))
	for len(g.todo) > 0 {
		n := g.todo[0]
		g.todo = g.todo[1:]
		g.mark(g.nodes[n])
		g.generate(n)
	}
	g.mark(end)
}

// node is the label of a node, which is generated later; of nil, the end.
func (g *gen) node(n v1model.Node) string {
	if n == nil {
		return g.endpipe
	}
	l := g.nodes[n]
	if l == "" {
		l = g.label("node")
		g.nodes[n] = l
		g.todo = append(g.todo, n)
	}
	return l
}

func (g *gen) generate(n v1model.Node) {
	switch n := n.(type) {
	case *v1model.Table:
		g.table(n)
	case *v1model.Condition:
		g.place = fmt.Sprintf("condition %q", n.Name)
		g.cond(n.Expr, g.node(n.True), g.node(n.False))
	case *v1model.Call:
		g.action(n.Action, args{})
		g.jump(g.node(n.Next))
	}
}
