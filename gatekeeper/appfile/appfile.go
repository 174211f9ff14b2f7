// Package appfile reads the YAML form of a deployment, as `bifrost deploy` takes it
// (examples/arrays/app.yaml documents every key). It is strict: an unknown or
// repeated key, a wrong type and a second document are mistakes, each told with its
// line. What the words mean is for resources.Spec.Validate to judge, which Parse
// calls.
package appfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
)

// MaxFile is the longest file in bytes; a hundred programs take some 30 KiB.
const MaxFile = 1 << 20

// file is the YAML form.
type file struct {
	Name     string    `yaml:"name"`
	Programs []program `yaml:"programs"`
}

type program struct {
	Name     string            `yaml:"name"`
	Command  []string          `yaml:"command"`
	Env      map[string]string `yaml:"env"`
	Services []service         `yaml:"services"`
	Policy   string            `yaml:"policy"`
	Nodes    *int              `yaml:"nodes"`
	Spares   int               `yaml:"spares"`
	Blades   []string          `yaml:"blades"`
	Job      bool              `yaml:"job"`
}

type service struct {
	Name     string   `yaml:"name"`
	Stateful bool     `yaml:"stateful"`
	Methods  []method `yaml:"methods"`
}

type method struct {
	Name   string `yaml:"name"`
	Policy string `yaml:"policy"`
}

// Error is what is wrong with a file: one mistake or several.
type Error struct {
	File     string
	Mistakes []string
}

// Error implements error.
func (e *Error) Error() string { return e.File + ": " + strings.Join(e.Mistakes, "\n"+e.File+": ") }

// Read reads and checks the file at path.
func Read(path string) (resources.Spec, error) {
	f, err := os.Open(path)
	if err != nil {
		return resources.Spec{}, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return resources.Spec{}, err
	}
	return Parse(path, b)
}

// Parse is Read for a file's content; name is its name in errors, which are of type
// *Error.
func Parse(name string, b []byte) (resources.Spec, error) {
	if len(b) > MaxFile {
		return resources.Spec{}, &Error{name, []string{fmt.Sprintf("the file is longer than %d bytes", MaxFile)}}
	}
	var f file
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&f); err != nil {
		return resources.Spec{}, &Error{name, mistakes(err)}
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return resources.Spec{}, &Error{name, []string{"a second document begins: describe one app per file"}}
	}
	s := f.spec()
	if err := s.Validate(); err != nil {
		return resources.Spec{}, &Error{name, []string{err.Error()}}
	}
	return s, nil
}

// The words of the yaml package for what is strictly wrong.
var (
	unknownKey  = regexp.MustCompile(`^line (\d+): field (.*) not found in type \S+$`)
	repeatedKey = regexp.MustCompile(`^line (\d+): (?:mapping key|field) "?([^"]*)"? already (?:defined at line (\d+)|set in type \S+)$`)
	wrongType   = regexp.MustCompile("(?s)^line (\\d+): cannot unmarshal !!\\S+ (?:`(.*)` )?into (\\S+)$")
)

// mistakes tells in our words what the yaml package has found.
func mistakes(err error) (all []string) {
	if errors.Is(err, io.EOF) {
		return []string{"the file is empty: see examples/arrays/app.yaml"}
	}
	var several *yaml.TypeError
	if !errors.As(err, &several) {
		return []string{strings.TrimPrefix(err.Error(), "yaml: ")}
	}
	for _, m := range several.Errors {
		all = append(all, inOurWords(m))
	}
	return all
}

func inOurWords(m string) string {
	if p := unknownKey.FindStringSubmatch(m); p != nil {
		return fmt.Sprintf("unknown key %q at line %s", p[2], p[1])
	}
	if p := repeatedKey.FindStringSubmatch(m); p != nil {
		return fmt.Sprintf("key %q is repeated at line %s", p[2], p[1])
	}
	if p := wrongType.FindStringSubmatch(m); p != nil {
		return fmt.Sprintf("%q at line %s is not %s", p[2], p[1], kindOf(p[3]))
	}
	return m
}

// kindOf says what a Go type wants, for people.
func kindOf(goType string) string {
	switch {
	case strings.HasPrefix(goType, "[]"):
		return "a list"
	case goType == "int":
		return "a whole number"
	case goType == "bool":
		return "true or false"
	case goType == "string":
		return "a text"
	}
	return "a mapping of keys and values"
}

// spec is the specification that the file means. One node is the default.
func (f *file) spec() resources.Spec {
	s := resources.Spec{Name: f.Name}
	for i := range f.Programs {
		p := &f.Programs[i]
		out := resources.Program{
			Name: p.Name, Args: p.Command, Env: p.Env, Policy: p.Policy, Nodes: 1, Spares: p.Spares, Blades: p.Blades, Job: p.Job,
		}
		if p.Nodes != nil {
			out.Nodes = *p.Nodes
		}
		for _, v := range p.Services {
			service := resources.ServiceSpec{Name: v.Name, Stateful: v.Stateful}
			for _, m := range v.Methods {
				service.Methods = append(service.Methods, resources.MethodSpec(m))
			}
			out.Services = append(out.Services, service)
		}
		s.Programs = append(s.Programs, out)
	}
	return s
}
