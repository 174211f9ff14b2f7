package gen

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// ReadFunc returns the text of a file; an error that is fs.ErrNotExist makes the
// next directory be tried.
type ReadFunc func(path string) ([]byte, error)

// unit is one IDL file.
type unit struct {
	path     string
	name     string // of the Thrift program: the file's, without extension
	text     string
	doc      *document
	includes map[string]*unit // by the name that the file refers to them with
}

// loader reads a file and what it includes, each once.
type loader struct {
	read  ReadFunc
	dirs  []string
	units map[string]*unit
	open  []string // files that are being read: the chain of includes
}

func (l *loader) load(path string) (*unit, error) {
	text, err := l.read(path)
	if err != nil {
		return nil, fmt.Errorf("read IDL: %w", err)
	}
	return l.parse(path, string(text))
}

func (l *loader) parse(path, text string) (*unit, error) {
	doc, err := parse(path, text)
	if err != nil {
		return nil, err
	}
	u := &unit{
		path: path, name: strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)),
		text: text, doc: doc, includes: map[string]*unit{},
	}
	l.units[path] = u
	l.open = append(l.open, path)
	defer func() { l.open = l.open[:len(l.open)-1] }()
	for _, inc := range u.doc.Includes {
		sub, err := l.include(u, inc)
		if err != nil {
			return nil, err
		}
		u.includes[sub.name] = sub
	}
	return u, nil
}

// include returns the file that u names in an include.
func (l *loader) include(u *unit, inc include) (*unit, error) {
	name, line := inc.Path, inc.Line
	var missing error
	for _, dir := range append([]string{filepath.Dir(u.path)}, l.dirs...) {
		path := filepath.Join(dir, name)
		if filepath.IsAbs(name) {
			path = filepath.Clean(name)
		}
		if i := slices.Index(l.open, path); i >= 0 {
			circle := strings.Join(append(slices.Clone(l.open[i:]), path), " → ")
			return nil, &Error{File: u.path, Line: line, Msg: "circular include: " + circle,
				Remedy: "move what both files need into a third one"}
		}
		if sub := l.units[path]; sub != nil {
			return sub, nil
		}
		text, err := l.read(path)
		if err == nil {
			return l.parse(path, string(text))
		}
		if missing == nil {
			missing = err
		}
	}
	return nil, &Error{File: u.path, Line: line, Msg: fmt.Sprintf("include %q: %v", name, missing),
		Remedy: "give its directory with -I"}
}
