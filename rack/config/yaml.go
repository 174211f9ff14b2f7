package config

import (
	"fmt"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// reader walks a YAML tree strictly and remembers the line of every value. The
// yaml package's own strict decoding forgets lines after the first pass, and
// custom types switch it off.
type reader struct {
	file  string
	lines map[string]int // by path
	found []*Error
}

// fields says how to read each key of a mapping.
type fields map[string]func(n *yaml.Node, path string)

func (r *reader) fail(n *yaml.Node, path, msg, remedy string) {
	r.found = append(r.found, &Error{File: r.file, Line: n.Line, Path: path, Msg: msg, Remedy: remedy})
}

// line returns the line of path, or of the nearest value that holds it.
func (r *reader) line(path string) int {
	for path != "" {
		if line, ok := r.lines[path]; ok {
			return line
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return r.lines[""]
}

func (r *reader) mapping(n *yaml.Node, path string, fs fields) {
	r.lines[path] = n.Line
	if n.Kind != yaml.MappingNode {
		r.fail(n, path, "it is "+describe(n), "write keys and values: "+known(fs))
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		read, ok := fs[key.Value]
		at := join(path, key.Value)
		first, twice := seen[key.Value]
		seen[key.Value] = key.Line
		switch {
		case key.Kind != yaml.ScalarNode || !ok:
			r.fail(key, path, fmt.Sprintf("unknown key %q", key.Value), "use "+known(fs))
		case twice:
			r.fail(key, at, fmt.Sprintf("it is given twice (first on line %d)", first), "remove one")
		default:
			r.lines[at] = value.Line
			read(value, at)
		}
	}
}

func (r *reader) list(n *yaml.Node, path string, read func(n *yaml.Node, path string)) {
	if n.Kind != yaml.SequenceNode {
		r.fail(n, path, "it is "+describe(n), "write a list")
		return
	}
	for i, item := range n.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		r.lines[at] = item.Line
		read(item, at)
	}
}

// text reads a scalar as it is written, so 0x10 and yes stay what they are.
func (r *reader) text(n *yaml.Node, path string) string {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" || n.Value == "" {
		r.fail(n, path, "it is "+describe(n), "write a value")
		return ""
	}
	return n.Value
}

// texts reads a mapping from any key to a scalar; values may be empty.
func (r *reader) texts(n *yaml.Node, path string) map[string]string {
	if n.Kind != yaml.MappingNode {
		r.fail(n, path, "it is "+describe(n), "write NAME: value pairs")
		return nil
	}
	m := map[string]string{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		_, twice := m[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode || value.Kind != yaml.ScalarNode:
			r.fail(key, path, "a pair is not plain text", "write NAME: value pairs")
		case twice:
			r.fail(key, path, fmt.Sprintf("%q is given twice", key.Value), "remove one")
		default:
			m[key.Value] = value.Value
		}
	}
	return m
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func known(fs fields) string {
	var keys []string
	for key := range fs {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return strings.Join(keys, ", ")
}

// describe says what a node is, for people.
func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.AliasNode:
		return "an alias, which rack files do not use"
	case n.Tag == "!!null" || n.Value == "":
		return "empty"
	}
	return fmt.Sprintf("the text %q", n.Value)
}
