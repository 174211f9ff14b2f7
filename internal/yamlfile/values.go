package yamlfile

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// Mapping reads a mapping with known keys.
func (r *Reader) Mapping(n *Node, path string, fs Fields) {
	r.lines[path] = n.Line
	if n.Kind != yaml.MappingNode {
		r.Fail(n, path, "it is "+describe(n), "write keys and values: "+known(fs))
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
			r.Fail(key, path, fmt.Sprintf("unknown key %q", key.Value), "use "+known(fs))
		case twice:
			r.Fail(key, at, fmt.Sprintf("it is given twice (first on line %d)", first), "remove one")
		default:
			r.lines[at] = value.Line
			read(value, at)
		}
	}
}

// List reads a list.
func (r *Reader) List(n *Node, path string, read func(n *Node, path string)) {
	if n.Kind != yaml.SequenceNode {
		r.Fail(n, path, "it is "+describe(n), "write a list")
		return
	}
	for i, item := range n.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		r.lines[at] = item.Line
		read(item, at)
	}
}

// Text reads a scalar as it is written, so 0x10 and yes stay what they are. It must not
// be empty.
func (r *Reader) Text(n *Node, path string) string {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" || n.Value == "" {
		r.Fail(n, path, "it is "+describe(n), "write a value")
		return ""
	}
	return n.Value
}

// Words reads a list of texts. One that is written as "" may be empty.
func (r *Reader) Words(n *Node, path string) (words []string) {
	r.List(n, path, func(n *Node, path string) {
		if n.Kind == yaml.ScalarNode && n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0 {
			words = append(words, n.Value)
			return
		}
		words = append(words, r.Text(n, path))
	})
	return words
}

// Texts reads a mapping from any key to a scalar; values may be empty.
func (r *Reader) Texts(n *Node, path string) map[string]string {
	if n.Kind != yaml.MappingNode {
		r.Fail(n, path, "it is "+describe(n), "write NAME: value pairs")
		return nil
	}
	m := map[string]string{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		_, twice := m[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode || value.Kind != yaml.ScalarNode:
			r.Fail(key, path, "a pair is not plain text", "write NAME: value pairs")
		case twice:
			r.Fail(key, path, fmt.Sprintf("%q is given twice", key.Value), "remove one")
		default:
			m[key.Value] = value.Value
		}
	}
	return m
}

// Boolean reads true or false.
func (r *Reader) Boolean(n *Node, path string) bool {
	text := r.Text(n, path)
	if text != "true" && text != "false" && text != "" {
		r.Fail(n, path, fmt.Sprintf("it is the text %q", text), "write true or false")
	}
	return text == "true"
}

// Duration reads a time with its unit.
func (r *Reader) Duration(n *Node, path string) time.Duration {
	text := r.Text(n, path)
	d, err := time.ParseDuration(text)
	if err != nil && text != "" {
		r.Fail(n, path, fmt.Sprintf("%q is not a time", text), "write e.g. 200ms or 1s")
	}
	return d
}

// Integer reads an unsigned number of at most so many bits.
func (r *Reader) Integer(n *Node, path string, bits int) uint64 {
	text := r.Text(n, path)
	v, err := strconv.ParseUint(text, 0, bits)
	if err != nil && text != "" {
		r.Fail(n, path, fmt.Sprintf("%q is not a number in range", text), "write a plain number, e.g. 9000 or 0x10")
	}
	return v
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func known(fs Fields) string {
	var keys []string
	for key := range fs {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return strings.Join(keys, ", ")
}

// describe says what a node is, for people.
func describe(n *Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.AliasNode:
		return "an alias, which these files do not use"
	case n.Tag == "!!null" || n.Value == "":
		return "empty"
	}
	return fmt.Sprintf("the text %q", n.Value)
}
