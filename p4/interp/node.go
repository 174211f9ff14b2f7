package interp

import "github.com/bifrost-rack/bifrost/p4/v1model"

// node is a step of a pipeline; it returns the next one, nil at the end.
type node struct{ run func(*state) *node }

// graph turns the model's nodes into nodes to run, once each.
type graph struct {
	*compiler
	nodes  map[v1model.Node]*node
	tables map[*v1model.Table]*table
}

// node is the node for n. Those that n leads to are linked, if not yet run.
func (g *graph) node(n v1model.Node) *node {
	if n == nil {
		return nil
	}
	if made, ok := g.nodes[n]; ok {
		return made
	}
	made := &node{}
	g.nodes[n] = made
	switch n := n.(type) {
	case *v1model.Condition:
		made.run = g.condition(n)
	case *v1model.Call:
		made.run = g.call(g.actions[n.Action.Index].bind(nil), g.node(n.Next))
	case *v1model.Table:
		made.run = g.table(n)
	}
	return made
}

func (g *graph) condition(n *v1model.Condition) func(*state) *node {
	cond, yes, no := g.cond(n.Expr), g.node(n.True), g.node(n.False)
	name := n.Name
	if n.Source != "" {
		name = n.Source
	}
	return func(s *state) *node {
		holds := cond(s)
		if s.tr != nil {
			s.tr.condition(name, holds)
		}
		if holds {
			return yes
		}
		return no
	}
}

func (g *graph) call(b *bound, next *node) func(*state) *node {
	name := b.def.Name
	return func(s *state) *node {
		if s.tr != nil {
			s.tr.call(name)
		}
		b.run(s)
		return next
	}
}

// run runs a pipeline from its first node.
func (n *node) runAll(s *state) {
	s.exit = false
	for n != nil && !s.exit {
		n = n.run(s)
	}
}
