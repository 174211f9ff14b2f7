package interp

import (
	"fmt"
	"math/big"

	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/v1model"
)

// SetDefault implements datapath.Datapath.
func (x *Executor) SetDefault(name string, a *datapath.Action) error {
	t, err := x.table(name)
	if err != nil {
		return err
	}
	var do *bound
	switch d := t.def.Default; {
	case a != nil:
		if do, err = x.bind(t.def, *a); err != nil {
			return fmt.Errorf("table %q: %w", name, err)
		}
	case d != nil:
		do = x.c.actions[d.Action.Index].bind(d.Args)
	}
	constant := t.def.ConstEntry || t.def.ConstAction && do != nil && do.def.Name != t.def.Default.Action.Name
	if constant && a != nil {
		return fmt.Errorf("table %q: %w: its default action is constant", name, datapath.ErrUnsupported)
	}
	x.lock.lock()
	defer x.lock.unlock()
	t.miss.do, t.miss.next = do, t.base
	if do != nil {
		t.miss.next = t.nextOf(do.def)
	}
	return nil
}

// bind makes an action of a table from its name and parameters.
func (x *Executor) bind(t *v1model.Table, a datapath.Action) (*bound, error) {
	i, ok := t.Action(a.Name)
	if !ok {
		return nil, fmt.Errorf("action %q: %w", a.Name, datapath.ErrNotFound)
	}
	return x.bindAction(x.c.actions[t.Actions[i].Index], a)
}

// bindAny makes an action that any of the tables has.
func (x *Executor) bindAny(ts []*v1model.Table, a datapath.Action) (*bound, error) {
	for _, t := range ts {
		if _, ok := t.Action(a.Name); ok {
			return x.bind(t, a)
		}
	}
	return nil, fmt.Errorf("action %q: %w", a.Name, datapath.ErrNotFound)
}

func (x *Executor) bindAction(act *action, a datapath.Action) (*bound, error) {
	ps := act.def.Params
	if len(a.Params) != len(ps) {
		return nil, fmt.Errorf("action %q: %d parameters instead of %d", a.Name, len(a.Params), len(ps))
	}
	args := make([]*big.Int, len(ps))
	for i, p := range ps {
		f := fieldMatch{width: p.Width}
		if _, err := f.words(a.Params[i]); err != nil {
			return nil, fmt.Errorf("action %q: parameter %q: %w", a.Name, p.Name, err)
		}
		args[i] = new(big.Int).SetBytes(a.Params[i])
	}
	return act.bind(args), nil
}

func (x *Executor) table(name string) (*table, error) {
	def := x.c.prog.Table(name)
	if def == nil || len(def.Key) == 0 && def.ConstEntry {
		return nil, fmt.Errorf("table %q: %w", name, datapath.ErrNotFound)
	}
	return x.tables[def.Index], nil
}
