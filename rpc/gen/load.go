package gen

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cloudwego/thriftgo/parser"
)

// ReadFunc returns the text of a file; an error that is fs.ErrNotExist makes the
// next directory be tried.
type ReadFunc func(path string) ([]byte, error)

// unit is one IDL file.
type unit struct {
	path     string
	name     string // of the Thrift program: the file's, without extension
	tokens   []token
	ast      *parser.Thrift
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
	if p := unreadable(path, text); p != nil {
		return nil, p
	}
	u := &unit{
		path: path, name: strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)),
		tokens: lex(text), includes: map[string]*unit{},
	}
	var err error
	if u.ast, err = parseText(path, complete(text, u.tokens), text); err != nil {
		return nil, err
	}
	l.units[path] = u
	l.open = append(l.open, path)
	defer func() { l.open = l.open[:len(l.open)-1] }()
	for _, inc := range u.ast.Includes {
		sub, err := l.include(u, inc.Path)
		if err != nil {
			return nil, err
		}
		u.includes[sub.name] = sub
	}
	return u, nil
}

// include returns the file that u names in an include.
func (l *loader) include(u *unit, name string) (*unit, error) {
	line := 0
	for i, t := range u.tokens {
		if t.text == "include" && i+1 < len(u.tokens) && strings.Trim(u.tokens[i+1].text, `"'`) == name {
			line = t.line
		}
	}
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

// parseText runs the parser on a text that complete has made of the original one. It must not bring the program down, whatever it
// is given.
func parseText(path, text, original string) (ast *parser.Thrift, err error) {
	defer func() {
		if v := recover(); v != nil {
			ast, err = nil, &Error{File: path, Msg: fmt.Sprintf("the parser gave up: %v", v)}
		}
	}()
	ast, err = parser.ParseString(path, text)
	if err != nil {
		return nil, syntaxError(path, text, original, err)
	}
	return ast, nil
}

// syntaxError makes an error of the parser's, which tells the line and column where it
// stopped: what stands there, and which bracket it had to close first, if it is another.
func syntaxError(path, text, original string, err error) error {
	msg := strings.Join(strings.Fields(err.Error()), " ")
	e := &Error{File: path, Msg: "no Thrift IDL: " + msg}
	i := strings.Index(msg, "line ")
	var column int
	if i < 0 {
		return e
	}
	if n, _ := fmt.Sscanf(msg[i:], "line %d symbol %d", &e.Line, &column); n < 2 {
		return e
	}
	var open []token
	written := lex(original)
	for _, t := range lex(text) {
		place := t // in the original, which lacks what complete has added
		if len(written) > 0 {
			place = written[0]
			if n, hex := hexadecimal(place.text); place.text == t.text || hex && n == t.text {
				written = written[1:]
			}
		}
		at := t.at - strings.LastIndexByte(text[:t.at], '\n')
		if t.line > e.Line || t.line == e.Line && at >= column {
			column = place.at - strings.LastIndexByte(original[:place.at], '\n')
			e.Line, e.Msg = place.line, fmt.Sprintf("no Thrift IDL: column %d: found %q", column, place.text)
			if want := closes(open); want != "" && strings.Contains(")}]>", t.text) && want != t.text { //nolint:gocritic // the brackets are the set
				e.Msg += fmt.Sprintf(", expected %q for the %q of line %d", want, open[len(open)-1].text, open[len(open)-1].line)
			}
			return e
		}
		switch {
		case strings.Contains("({[<", t.text): //nolint:gocritic // the brackets are the set
			open = append(open, t)
		case closes(open) == t.text && len(open) > 0:
			open = open[:len(open)-1]
		}
	}
	e.Msg = "no Thrift IDL: the file ends too early"
	if want := closes(open); want != "" {
		e.Msg += fmt.Sprintf(", expected %q for the %q of line %d", want, open[len(open)-1].text, open[len(open)-1].line)
	}
	return e
}

// closes is the bracket that closes the last open one, "" if none is open.
func closes(open []token) string {
	if len(open) == 0 {
		return ""
	}
	return map[string]string{"(": ")", "{": "}", "[": "]", "<": ">"}[open[len(open)-1].text]
}
