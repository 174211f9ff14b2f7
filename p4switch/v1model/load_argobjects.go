package v1model

import (
	"bytes"
	"encoding/json"
)

func (c *call) fieldList() *FieldList {
	id := c.constant()
	if c.err != nil {
		return nil
	}
	l, err := find(c.lists, "field list", id)
	c.err = err
	return l
}

// named is the name in an argument of the type wanted.
func (c *call) named(want string) string {
	raw := c.raw.Params[c.next]
	c.next++
	if c.err != nil {
		return ""
	}
	var name string
	if raw.Type != want {
		c.fail(malformed("type %q instead of %q", raw.Type, want))
	} else if err := unmarshal(raw.Value, &name); err != nil {
		c.fail(err)
	}
	return name
}

func (c *call) counter() *Counter {
	name := c.named("counter_array")
	if c.err != nil {
		return nil
	}
	x, err := find(c.counters, "counter", name)
	if err == nil && x.Direct {
		err = malformed("count in direct counter %q", name)
	}
	c.err = err
	return x
}

func (c *call) meter() *Meter {
	name := c.named("meter_array")
	if c.err != nil {
		return nil
	}
	x, err := find(c.meters, "meter", name)
	if err == nil && x.Direct {
		err = malformed("execution of direct meter %q", name)
	}
	c.err = err
	return x
}

func (c *call) register() *Register {
	name := c.named("register_array")
	if c.err != nil {
		return nil
	}
	x, err := c.loader.register(name)
	c.err = err
	return x
}

func (c *call) calculation() *Calculation {
	name := c.named("calculation")
	if c.err != nil {
		return nil
	}
	x, err := find(c.calculations, "calculation", name)
	c.err = err
	return x
}

func loadLog(c *call) Stmt {
	s := Log{Format: c.named("string")}
	raw := c.raw.Params[1]
	// Without arguments p4c writes an empty object.
	if c.err != nil || raw.Type != "parameters_vector" || bytes.HasPrefix(raw.Value, []byte("{")) {
		return s
	}
	var args []json.RawMessage
	if c.err = unmarshal(raw.Value, &args); c.err != nil {
		return s
	}
	for i, a := range args {
		e, err := c.operand(a, KindData, 0)
		if err != nil {
			c.err = at(err, "argument %d", i)
			return s
		}
		s.Args = append(s.Args, e)
	}
	return s
}

// register resolves a register and notes that the current action touches it.
func (l *loader) register(name string) (*Register, error) {
	r, err := find(l.registers, "register", name)
	if err != nil {
		return nil, err
	}
	for _, t := range l.touched {
		if t == r {
			return r, nil
		}
	}
	l.touched = append(l.touched, r)
	return r, nil
}
