// Package yamlfile reads the YAML files that people write for Bifröst: rack files and
// app files. It is strict. An unknown or repeated key, a value of the wrong kind, an
// alias and a second document are mistakes. A Reader gathers all mistakes of a file, each
// with its line and what to write instead.
//
// The YAML library's own strict decoding does not tell the line of a value once it is
// decoded, so a Reader walks the library's syntax tree.
package yamlfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// MaxFile is the longest file in bytes. 500 blades or a hundred programs take some
// 30 KiB.
const MaxFile = 1 << 20

// maxShown is how many mistakes Err shows at once.
const maxShown = 20

// Error is one mistake in a file, or in a value made in Go.
type Error struct {
	File string // "" for a value made in Go
	Line int    // from 1; 0 if unknown
	Path string // names the value, e.g. "blades[2].name"
	Msg  string
	// Remedy says what to write instead.
	Remedy string
}

// Error implements error.
func (e *Error) Error() string {
	var b strings.Builder
	if e.File != "" {
		fmt.Fprintf(&b, "%s:", e.File)
		if e.Line > 0 {
			fmt.Fprintf(&b, "%d:", e.Line)
		}
		b.WriteByte(' ')
	}
	if e.Path != "" {
		fmt.Fprintf(&b, "%s: ", e.Path)
	}
	fmt.Fprintf(&b, "%s: %s", e.Msg, e.Remedy)
	return b.String()
}

// Load returns the content of the file at path, or its first MaxFile+1 bytes if it is
// longer: Parse refuses those.
func Load(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, MaxFile+1))
}

// Kind is what a file describes, for its errors.
type Kind struct {
	One     string // what one file describes: "one rack"
	Needs   string // the least that a file says: "at least one blade"
	Example string // a file that shows every key: "examples/rack.yaml"
}

// Reader walks one file. It is for one goroutine.
type Reader struct {
	file  string
	lines map[string]int // by path
	found []error
}

// Node is a value of the file.
type Node = yaml.Node

// Fields says how to read each key of a mapping.
type Fields map[string]func(n *Node, path string)

// Parse returns the root of a file's one document and the reader for it. The error is an
// *Error.
func Parse(file string, b []byte, kind Kind) (*Reader, *Node, error) {
	r := &Reader{file: file, lines: map[string]int{}}
	if len(b) > MaxFile {
		return nil, nil, &Error{File: file, Msg: "the file is too long", Remedy: fmt.Sprintf("keep it under %d bytes", MaxFile)}
	}
	var doc, second yaml.Node
	in := yaml.NewDecoder(bytes.NewReader(b))
	err := in.Decode(&doc)
	if errors.Is(err, io.EOF) || err == nil && len(doc.Content) != 1 {
		return nil, nil, &Error{File: file, Msg: "the file is empty", Remedy: "list " + kind.Needs + ", as in " + kind.Example}
	}
	if err == nil {
		if err = in.Decode(&second); errors.Is(err, io.EOF) {
			return r, doc.Content[0], nil
		}
	}
	if err != nil {
		return nil, nil, &Error{File: file, Msg: err.Error(), Remedy: "write YAML as in " + kind.Example}
	}
	return nil, nil, &Error{File: file, Line: second.Line, Msg: "a second document begins", Remedy: "describe " + kind.One + " per file"}
}

// Err joins the mistakes that were found, at most 20 of them; nil if there is none. Each
// is an *Error.
func (r *Reader) Err() error {
	rest := len(r.found) - maxShown
	if rest <= 0 {
		return errors.Join(r.found...)
	}
	more := &Error{File: r.file, Msg: fmt.Sprintf("%d more mistakes", rest), Remedy: "correct those above first"}
	return errors.Join(append(slices.Clone(r.found[:maxShown]), more)...)
}

// Fail notes a mistake at a value.
func (r *Reader) Fail(n *Node, path, msg, remedy string) {
	r.found = append(r.found, &Error{File: r.file, Line: n.Line, Path: path, Msg: msg, Remedy: remedy})
}

// FailAt notes a mistake in what the value at e.Path means. It fills in file and line:
// those of the value, or of the nearest one that holds it.
func (r *Reader) FailAt(e *Error) {
	e.File, e.Line = r.file, r.line(e.Path)
	r.found = append(r.found, e)
}

// Given reports whether the file has a value at path.
func (r *Reader) Given(path string) bool {
	_, given := r.lines[path]
	return given
}

func (r *Reader) line(path string) int {
	for path != "" {
		if line, ok := r.lines[path]; ok {
			return line
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return r.lines[""]
}
