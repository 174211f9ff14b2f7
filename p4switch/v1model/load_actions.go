package v1model

import "math/big"

func (l *loader) loadActions() error {
	for i := range l.raw.Actions {
		raw := &l.raw.Actions[i]
		a, err := l.action(raw)
		if err != nil {
			return at(err, "action %q", raw.Name)
		}
		a.Index = i
		if err := add(&l.actions, "action", raw.ID, a); err != nil {
			return err
		}
		l.prog.Actions = append(l.prog.Actions, a)
	}
	return nil
}

func (l *loader) action(raw *rawAction) (*Action, error) {
	a := &Action{Name: raw.Name}
	for _, p := range raw.Params {
		if p.Width < 1 || p.Width > MaxFieldBits {
			return nil, malformed("parameter %q has %d bits", p.Name, p.Width)
		}
		a.Params = append(a.Params, ActionParam(p))
	}
	l.params, l.touched = a.Params, nil
	var err error
	a.Body, err = l.body(raw.Body, true)
	a.Registers = l.touched
	l.params, l.touched = nil, nil
	return a, err
}

func (l *loader) loadDeparser() error {
	if len(l.raw.Deparsers) != 1 {
		return unsupported("%d deparsers", len(l.raw.Deparsers))
	}
	raw := l.raw.Deparsers[0]
	d := &Deparser{Name: raw.Name}
	var err error
	if d.Body, err = l.body(raw.Ops, false); err != nil {
		return at(err, "deparser")
	}
	for _, name := range raw.Order {
		h, err := find(l.headers, "header", name)
		if err != nil {
			return at(err, "deparser")
		}
		d.Order = append(d.Order, h)
	}
	l.prog.Deparser = d
	return nil
}

// actionCall resolves an action by id and its arguments.
func (l *loader) actionCall(id int, data []string) (ActionCall, error) {
	a, err := find(l.actions, "action with the id", id)
	if err != nil {
		return ActionCall{}, err
	}
	if len(data) != len(a.Params) {
		return ActionCall{}, malformed("%d arguments for action %q with %d parameters", len(data), a.Name, len(a.Params))
	}
	c := ActionCall{Action: a}
	for i, s := range data {
		v, err := parseHex(s)
		if err != nil {
			return ActionCall{}, err
		}
		c.Args = append(c.Args, new(big.Int).SetBytes(wrap(v, a.Params[i].Width)))
	}
	return c, nil
}
