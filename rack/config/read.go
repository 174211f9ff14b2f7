package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/bifrost-rack/bifrost/internal/control"
)

// MaxFile is the longest rack file in bytes; 500 blades take some 30 KiB.
const MaxFile = 1 << 20

// Read parses and validates the rack file at path. All mistakes are reported at
// once, joined, each an *Error with its line.
func Read(path string) (Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return Config{}, fmt.Errorf("rack file: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return Config{}, fmt.Errorf("rack file: %w", err)
	}
	return Parse(path, b)
}

// Parse is Read for a file's content; file is its name in errors.
func Parse(file string, b []byte) (Config, error) {
	r := &reader{file: file, lines: map[string]int{}}
	if len(b) > MaxFile {
		return Config{}, &Error{File: file, Msg: "the file is too long", Remedy: fmt.Sprintf("keep it under %d bytes", MaxFile)}
	}
	doc, err := r.document(b)
	if err != nil {
		return Config{}, err
	}
	c := r.config(doc)
	if len(r.found) == 0 { // judge the meaning only of what is well-formed
		for _, p := range c.problems() {
			p.File, p.Line = file, r.line(p.Path)
			r.found = append(r.found, p)
		}
	}
	if len(r.found) > 0 {
		return Config{}, r.errors()
	}
	return c, nil
}

// maxShown is how many mistakes are worth reading at once.
const maxShown = 20

// errors joins what was found.
func (r *reader) errors() error {
	rest := len(r.found) - maxShown
	if rest <= 0 {
		return errors.Join(toErrors(r.found)...)
	}
	more := &Error{File: r.file, Msg: fmt.Sprintf("%d more mistakes", rest), Remedy: "correct those above first"}
	return errors.Join(append(toErrors(r.found[:maxShown]), more)...)
}

// document returns the root of the file's one YAML document.
func (r *reader) document(b []byte) (*yaml.Node, error) {
	var doc, second yaml.Node
	in := yaml.NewDecoder(bytes.NewReader(b))
	err := in.Decode(&doc)
	if errors.Is(err, io.EOF) || err == nil && len(doc.Content) != 1 {
		return nil, &Error{File: r.file, Msg: "the file is empty", Remedy: "list at least one blade, as in examples/rack.yaml"}
	}
	if err != nil {
		return nil, &Error{File: r.file, Msg: err.Error(), Remedy: "write YAML as in examples/rack.yaml"}
	}
	switch err := in.Decode(&second); {
	case errors.Is(err, io.EOF):
		return doc.Content[0], nil
	case err != nil:
		return nil, &Error{File: r.file, Msg: err.Error(), Remedy: "write YAML as in examples/rack.yaml"}
	}
	return nil, &Error{File: r.file, Line: second.Line, Msg: "a second document begins", Remedy: "describe one rack per file"}
}

func (r *reader) config(n *yaml.Node) Config {
	c := defaults()
	r.mapping(n, "", fields{
		"name":       func(n *yaml.Node, path string) { c.Name = r.text(n, path) },
		"switch":     func(n *yaml.Node, path string) { c.Switch = Switch(r.text(n, path)) },
		"mtu":        func(n *yaml.Node, path string) { c.MTU = int(r.integer(n, path, 31)) },
		"dsm_prefix": func(n *yaml.Node, path string) { c.DSMPrefix = uint8(r.integer(n, path, 8)) },
		"heartbeat":  func(n *yaml.Node, path string) { c.Heartbeat = r.duration(n, path) },
		"blades": func(n *yaml.Node, path string) {
			r.list(n, path, func(n *yaml.Node, path string) { c.Blades = append(c.Blades, r.blade(n, path)) })
		},
		"programs": func(n *yaml.Node, path string) {
			r.list(n, path, func(n *yaml.Node, path string) { c.Programs = append(c.Programs, r.program(n, path)) })
		},
	})
	return c
}

func (r *reader) blade(n *yaml.Node, path string) Blade {
	var b Blade
	r.mapping(n, path, fields{
		"name":     func(n *yaml.Node, path string) { b.Name = r.text(n, path) },
		"kind":     func(n *yaml.Node, path string) { b.Kind = r.text(n, path) },
		"capacity": func(n *yaml.Node, path string) { b.Capacity = r.size(n, path) },
		"nodes":    func(n *yaml.Node, path string) { b.Nodes = int(r.integer(n, path, 31)) },
	})
	if _, given := r.lines[path+".capacity"]; !given && b.Kind == control.Memory {
		b.Capacity = DefaultCapacity
	}
	if _, given := r.lines[path+".nodes"]; !given && b.Kind == control.Compute {
		b.Nodes = DefaultNodes
	}
	return b
}

func (r *reader) program(n *yaml.Node, path string) Program {
	var p Program
	r.mapping(n, path, fields{
		"name":     func(n *yaml.Node, path string) { p.Name = r.text(n, path) },
		"blade":    func(n *yaml.Node, path string) { p.Blade = r.text(n, path) },
		"command":  func(n *yaml.Node, path string) { p.Command = r.words(n, path) },
		"env":      func(n *yaml.Node, path string) { p.Env = r.texts(n, path) },
		"ready":    func(n *yaml.Node, path string) { p.Ready = r.text(n, path) },
		"services": func(n *yaml.Node, path string) { p.Services = r.words(n, path) },
		"stateful": func(n *yaml.Node, path string) { p.Stateful = r.boolean(n, path) },
		"spares":   func(n *yaml.Node, path string) { p.Spares = r.words(n, path) },
	})
	return p
}

// words reads a list of texts.
func (r *reader) words(n *yaml.Node, path string) (words []string) {
	r.list(n, path, func(n *yaml.Node, path string) { words = append(words, r.text(n, path)) })
	return words
}

func (r *reader) boolean(n *yaml.Node, path string) bool {
	text := r.text(n, path)
	if text != "true" && text != "false" && text != "" {
		r.fail(n, path, fmt.Sprintf("it is the text %q", text), "write true or false")
	}
	return text == "true"
}

func (r *reader) duration(n *yaml.Node, path string) time.Duration {
	text := r.text(n, path)
	d, err := time.ParseDuration(text)
	if err != nil && text != "" {
		r.fail(n, path, fmt.Sprintf("%q is not a time", text), "write e.g. 200ms or 1s")
	}
	return d
}

// integer reads an unsigned number of at most so many bits.
func (r *reader) integer(n *yaml.Node, path string, bits int) uint64 {
	text := r.text(n, path)
	v, err := strconv.ParseUint(text, 0, bits)
	if err != nil && text != "" {
		r.fail(n, path, fmt.Sprintf("%q is not a number in range", text), "write a plain number, e.g. 9000 or 0x10")
	}
	return v
}

// size reads a number of bytes with an optional unit.
func (r *reader) size(n *yaml.Node, path string) uint64 {
	text := r.text(n, path)
	v, err := ParseSize(text)
	if err != nil && text != "" {
		r.fail(n, path, err.Error(), "write e.g. 512MiB or 1GiB")
	}
	return v
}
