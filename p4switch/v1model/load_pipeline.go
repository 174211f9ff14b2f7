package v1model

// graph holds a pipeline's nodes by name while it is loaded.
type graph map[string]Node

// node resolves the name of a next node; null is the end.
func (g graph) node(name *string) (Node, error) {
	if name == nil || *name == "" {
		return nil, nil
	}
	n, ok := g[*name]
	if !ok {
		return nil, malformed("no table, condition or call %q", *name)
	}
	return n, nil
}

func (l *loader) loadPipelines() error {
	for i := range l.raw.Pipelines {
		raw := &l.raw.Pipelines[i]
		p, err := l.pipeline(raw)
		if err != nil {
			return at(err, "pipeline %q", raw.Name)
		}
		switch {
		case raw.Name == "ingress" && l.prog.Ingress == nil:
			l.prog.Ingress = p
		case raw.Name == "egress" && l.prog.Egress == nil:
			l.prog.Egress = p
		default:
			return unsupported("pipeline %q", raw.Name)
		}
	}
	if l.prog.Ingress == nil || l.prog.Egress == nil {
		return unsupported("program without ingress and egress: not v1model")
	}
	return nil
}

func (l *loader) pipeline(raw *rawPipeline) (*Pipeline, error) {
	p := &Pipeline{Name: raw.Name}
	g := graph{}
	for i := range raw.Profiles {
		if err := l.profile(&raw.Profiles[i]); err != nil {
			return nil, at(err, "action profile %q", raw.Profiles[i].Name)
		}
	}
	if err := l.nodes(p, raw, g); err != nil {
		return nil, err
	}
	if err := l.link(p, raw, g); err != nil {
		return nil, err
	}
	var err error
	if p.Start, err = g.node(raw.Init); err != nil {
		return nil, at(err, "start")
	}
	return p, checkAcyclic(p)
}

// nodes makes the pipeline's nodes, not yet linked.
func (l *loader) nodes(p *Pipeline, raw *rawPipeline, g graph) error {
	for i := range raw.Tables {
		t, err := l.table(&raw.Tables[i])
		if err != nil {
			return at(err, "table %q", raw.Tables[i].Name)
		}
		if l.prog.Table(t.Name) != nil {
			return malformed("two tables %q", t.Name)
		}
		t.Index = len(l.prog.Tables)
		l.prog.Tables = append(l.prog.Tables, t)
		p.Tables = append(p.Tables, t)
		g[t.Name] = t
	}
	for i := range raw.Conditions {
		rc := &raw.Conditions[i]
		e, err := l.cond(&rc.Expr)
		if err != nil {
			return at(err, "condition %q", rc.Name)
		}
		c := &Condition{Name: rc.Name, Expr: e, Source: rc.Source.Fragment}
		p.Conditions = append(p.Conditions, c)
		if g[c.Name] != nil {
			return malformed("two nodes %q", c.Name)
		}
		g[c.Name] = c
	}
	for _, rc := range raw.Calls {
		a, err := find(l.actions, "action with the id", rc.Action)
		if err == nil && len(a.Params) > 0 {
			err = malformed("action %q needs arguments", a.Name)
		}
		if err != nil {
			return at(err, "call %q", rc.Name)
		}
		c := &Call{Name: rc.Name, Action: a}
		p.Calls = append(p.Calls, c)
		if g[c.Name] != nil {
			return malformed("two nodes %q", c.Name)
		}
		g[c.Name] = c
	}
	return nil
}

// link resolves where each node leads.
func (l *loader) link(p *Pipeline, raw *rawPipeline, g graph) (err error) {
	for i, t := range p.Tables {
		if err := linkTable(t, &raw.Tables[i], g); err != nil {
			return at(err, "table %q", t.Name)
		}
	}
	for i, c := range p.Conditions {
		if c.True, err = g.node(raw.Conditions[i].True); err == nil {
			c.False, err = g.node(raw.Conditions[i].False)
		}
		if err != nil {
			return at(err, "condition %q", c.Name)
		}
	}
	for i, c := range p.Calls {
		if c.Next, err = g.node(raw.Calls[i].Next); err != nil {
			return at(err, "call %q", c.Name)
		}
	}
	return nil
}

func linkTable(t *Table, raw *rawTable, g graph) (err error) {
	hit, hasHit := raw.Next["__HIT__"]
	miss, hasMiss := raw.Next["__MISS__"]
	if hasHit || hasMiss {
		t.ByHit = true
		if t.Hit, err = g.node(hit); err == nil {
			t.Miss, err = g.node(miss)
		}
		return err
	}
	if t.BaseNext, err = g.node(raw.BaseNext); err != nil {
		return err
	}
	t.Next = make([]Node, len(t.Actions))
	for i, a := range t.Actions {
		if t.Next[i], err = g.node(raw.Next[a.Name]); err != nil {
			return err
		}
	}
	return nil
}

// checkAcyclic makes sure that a packet leaves the pipeline.
func checkAcyclic(p *Pipeline) error {
	const open, done = 1, 2
	seen := map[Node]int{}
	var visit func(n Node) error
	visit = func(n Node) error {
		if n == nil || seen[n] == done {
			return nil
		}
		if seen[n] == open {
			return malformed("node %q leads back to itself", n.NodeName())
		}
		seen[n] = open
		for _, next := range successors(n) {
			if err := visit(next); err != nil {
				return err
			}
		}
		seen[n] = done
		return nil
	}
	return visit(p.Start)
}

func successors(n Node) []Node {
	switch n := n.(type) {
	case *Condition:
		return []Node{n.True, n.False}
	case *Call:
		return []Node{n.Next}
	case *Table:
		return append([]Node{n.Hit, n.Miss, n.BaseNext}, n.Next...)
	}
	return nil
}
