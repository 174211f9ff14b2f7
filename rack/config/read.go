package config

import (
	"fmt"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/yamlfile"
)

// reader reads a rack file.
type reader struct{ *yamlfile.Reader }

// Read parses and validates the rack file at path. All mistakes are reported at
// once, joined, each an *Error with its line.
func Read(path string) (Config, error) {
	b, err := yamlfile.Load(path)
	if err != nil {
		return Config{}, fmt.Errorf("rack file: %w", err)
	}
	return Parse(path, b)
}

// Parse is Read for a file's content; file is its name in errors.
func Parse(file string, b []byte) (Config, error) {
	walk, doc, err := yamlfile.Parse(file, b, yamlfile.Kind{One: "one rack", Needs: "at least one blade", Example: "examples/rack.yaml"})
	if err != nil {
		return Config{}, err
	}
	r := reader{walk}
	c := r.config(doc)
	if r.Err() == nil { // judge the meaning only of what is well-formed
		for _, p := range c.problems() {
			r.FailAt(p)
		}
	}
	if err := r.Err(); err != nil {
		return Config{}, err
	}
	return c, nil
}

func (r reader) config(n *yamlfile.Node) Config {
	c := defaults()
	r.Mapping(n, "", yamlfile.Fields{
		"name":       func(n *yamlfile.Node, path string) { c.Name = r.Text(n, path) },
		"switch":     func(n *yamlfile.Node, path string) { c.Switch = Switch(r.Text(n, path)) },
		"mtu":        func(n *yamlfile.Node, path string) { c.MTU = int(r.Integer(n, path, 31)) },
		"dsm_prefix": func(n *yamlfile.Node, path string) { c.DSMPrefix = uint8(r.Integer(n, path, 8)) },
		"heartbeat":  func(n *yamlfile.Node, path string) { c.Heartbeat = r.Duration(n, path) },
		"tcp":        func(n *yamlfile.Node, path string) { c.TCP = r.Boolean(n, path) },
		"blades": func(n *yamlfile.Node, path string) {
			r.List(n, path, func(n *yamlfile.Node, path string) { c.Blades = append(c.Blades, r.blade(n, path)) })
		},
		"machines": func(n *yamlfile.Node, path string) {
			r.List(n, path, func(n *yamlfile.Node, path string) { c.Machines = append(c.Machines, r.Words(n, path)) })
		},
		"programs": func(n *yamlfile.Node, path string) {
			r.List(n, path, func(n *yamlfile.Node, path string) { c.Programs = append(c.Programs, r.program(n, path)) })
		},
	})
	return c
}

func (r reader) blade(n *yamlfile.Node, path string) Blade {
	var b Blade
	r.Mapping(n, path, yamlfile.Fields{
		"name":     func(n *yamlfile.Node, path string) { b.Name = r.Text(n, path) },
		"kind":     func(n *yamlfile.Node, path string) { b.Kind = r.Text(n, path) },
		"capacity": func(n *yamlfile.Node, path string) { b.Capacity = r.size(n, path) },
		"nodes":    func(n *yamlfile.Node, path string) { b.Nodes = int(r.Integer(n, path, 31)) },
	})
	if !r.Given(path+".capacity") && b.Kind == control.Memory {
		b.Capacity = DefaultCapacity
	}
	if !r.Given(path+".nodes") && b.Kind == control.Compute {
		b.Nodes = DefaultNodes
	}
	return b
}

func (r reader) program(n *yamlfile.Node, path string) Program {
	var p Program
	r.Mapping(n, path, yamlfile.Fields{
		"name":     func(n *yamlfile.Node, path string) { p.Name = r.Text(n, path) },
		"blade":    func(n *yamlfile.Node, path string) { p.Blade = r.Text(n, path) },
		"command":  func(n *yamlfile.Node, path string) { p.Command = r.Words(n, path) },
		"env":      func(n *yamlfile.Node, path string) { p.Env = r.Texts(n, path) },
		"ready":    func(n *yamlfile.Node, path string) { p.Ready = r.Text(n, path) },
		"services": func(n *yamlfile.Node, path string) { p.Services = r.Words(n, path) },
		"stateful": func(n *yamlfile.Node, path string) { p.Stateful = r.Boolean(n, path) },
		"spares":   func(n *yamlfile.Node, path string) { p.Spares = r.Words(n, path) },
	})
	return p
}

// size reads a number of bytes with an optional unit.
func (r reader) size(n *yamlfile.Node, path string) uint64 {
	text := r.Text(n, path)
	v, err := ParseSize(text)
	if err != nil && text != "" {
		r.Fail(n, path, err.Error(), "write e.g. 512MiB or 1GiB")
	}
	return v
}
