// Package appfile reads the YAML form of a deployment, as `bifrost deploy` takes it
// (examples/arrays/app.yaml documents every key). What the words mean is for
// resources.Spec.Validate to judge, which Parse calls.
package appfile

import (
	"fmt"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/yamlfile"
)

// Read reads and checks the file at path. Mistakes in the file are told as those of
// Parse.
func Read(path string) (resources.Spec, error) {
	b, err := yamlfile.Load(path)
	if err != nil {
		return resources.Spec{}, err
	}
	return Parse(path, b)
}

// Parse is Read for a file's content; file is its name in errors. It is strict. All
// mistakes of form are reported at once, joined, each a *yamlfile.Error with its line; a
// well-formed file may still break a rule of resources.Spec.Validate.
func Parse(file string, b []byte) (resources.Spec, error) {
	walk, doc, err := yamlfile.Parse(file, b, yamlfile.Kind{One: "one app", Needs: "a name and programs", Example: "examples/arrays/app.yaml"})
	if err != nil {
		return resources.Spec{}, err
	}
	r := reader{walk}
	s := r.spec(doc)
	if err := r.Err(); err != nil {
		return resources.Spec{}, err
	}
	if err := s.Validate(); err != nil {
		return resources.Spec{}, fmt.Errorf("%s: %w", file, err)
	}
	return s, nil
}

// reader reads an app file.
type reader struct{ *yamlfile.Reader }

func (r reader) spec(n *yamlfile.Node) (s resources.Spec) {
	r.Mapping(n, "", yamlfile.Fields{
		"name": func(n *yamlfile.Node, path string) { s.Name = r.Text(n, path) },
		"programs": func(n *yamlfile.Node, path string) {
			r.List(n, path, func(n *yamlfile.Node, path string) { s.Programs = append(s.Programs, r.program(n, path)) })
		},
	})
	return s
}

// program reads one program. One node is the default.
func (r reader) program(n *yamlfile.Node, path string) resources.Program {
	p := resources.Program{Nodes: 1}
	r.Mapping(n, path, yamlfile.Fields{
		"name":         func(n *yamlfile.Node, path string) { p.Name = r.Text(n, path) },
		"command":      func(n *yamlfile.Node, path string) { p.Args = r.Words(n, path) },
		"env":          func(n *yamlfile.Node, path string) { p.Env = r.Texts(n, path) },
		"policy":       func(n *yamlfile.Node, path string) { p.Policy = r.Text(n, path) },
		"max_failures": func(n *yamlfile.Node, path string) { p.MaxFailures = r.failures(n, path) },
		"nodes":        func(n *yamlfile.Node, path string) { p.Nodes = int(r.Integer(n, path, 31)) },
		"spares":       func(n *yamlfile.Node, path string) { p.Spares = int(r.Integer(n, path, 31)) },
		"blades":       func(n *yamlfile.Node, path string) { p.Blades = r.Words(n, path) },
		"liveness":     func(n *yamlfile.Node, path string) { p.Liveness = r.liveness(n, path) },
		"job":          func(n *yamlfile.Node, path string) { p.Job = r.Boolean(n, path) },
		"services": func(n *yamlfile.Node, path string) {
			r.List(n, path, func(n *yamlfile.Node, path string) { p.Services = append(p.Services, r.service(n, path)) })
		},
	})
	return p
}

func (r reader) liveness(n *yamlfile.Node, path string) (l resources.Liveness) {
	r.Mapping(n, path, yamlfile.Fields{
		"answer":   func(n *yamlfile.Node, path string) { l.Answer = r.threshold(n, path) },
		"progress": func(n *yamlfile.Node, path string) { l.Progress = r.threshold(n, path) },
		"ready":    func(n *yamlfile.Node, path string) { l.Ready = r.threshold(n, path) },
	})
	return l
}

// threshold reads a time, or 0s for none.
func (r reader) threshold(n *yamlfile.Node, path string) time.Duration {
	if d := r.Duration(n, path); d > 0 {
		return d
	}
	return -1
}

func (r reader) service(n *yamlfile.Node, path string) (s resources.ServiceSpec) {
	r.Mapping(n, path, yamlfile.Fields{
		"name":     func(n *yamlfile.Node, path string) { s.Name = r.Text(n, path) },
		"stateful": func(n *yamlfile.Node, path string) { s.Stateful = r.Boolean(n, path) },
		"methods": func(n *yamlfile.Node, path string) {
			r.List(n, path, func(n *yamlfile.Node, path string) { s.Methods = append(s.Methods, r.method(n, path)) })
		},
	})
	return s
}

func (r reader) method(n *yamlfile.Node, path string) (m resources.MethodSpec) {
	r.Mapping(n, path, yamlfile.Fields{
		"name":         func(n *yamlfile.Node, path string) { m.Name = r.Text(n, path) },
		"policy":       func(n *yamlfile.Node, path string) { m.Policy = r.Text(n, path) },
		"max_failures": func(n *yamlfile.Node, path string) { m.MaxFailures = r.failures(n, path) },
	})
	return m
}

// failures is after how many failures a call is given up.
func (r reader) failures(n *yamlfile.Node, path string) *int {
	most := int(r.Integer(n, path, 31))
	return &most
}
