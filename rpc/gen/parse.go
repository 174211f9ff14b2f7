package gen

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// parser reads the grammar of Apache's compiler (thrifty.yy), one method for each of its
// rules: what that takes, this takes, with the place of each name. A library would read
// most of it. Those that there are keep no places, and miss constructs.
type parser struct {
	path   string
	tokens []token // what is left; the last is the end
	open   []token // brackets that are not closed yet
}

// maxNesting bounds types and constants within each other.
const maxNesting = 1000

// parse makes a document of IDL text.
func parse(path, text string) (doc *document, err error) {
	tokens, err := lex(path, text)
	if err != nil {
		return nil, err
	}
	p := &parser{path: path, tokens: tokens}
	defer func() {
		if v := recover(); v != nil {
			e, ours := v.(*Error)
			if !ours {
				panic(v)
			}
			doc, err = nil, e
		}
	}()
	doc = &document{}
	for p.header(doc) {
	}
	for p.peek().kind != tokenEnd {
		p.definition(doc)
	}
	return doc, nil
}

func (p *parser) peek() token { return p.tokens[0] }

// next takes a token, and keeps account of the brackets.
func (p *parser) next() token {
	t := p.tokens[0]
	if t.kind == tokenEnd {
		return t
	}
	p.tokens = p.tokens[1:]
	switch t.text {
	case "(", "{", "[", "<":
		if p.open = append(p.open, t); len(p.open) > maxNesting {
			panic(&Error{File: p.path, Line: t.line, Msg: fmt.Sprintf("more than %d brackets within each other", maxNesting)})
		}
	case ")", "}", "]", ">":
		p.open = p.open[:len(p.open)-1]
	}
	return t
}

// is reports whether the next token is a keyword or symbol.
func (p *parser) is(text string) bool { return p.peek().text == text }

// accept takes the next token if it is among texts.
func (p *parser) accept(texts ...string) bool {
	if !slices.Contains(texts, p.peek().text) {
		return false
	}
	p.next()
	return true
}

func (p *parser) expect(text string) {
	if !p.is(text) {
		p.fail(strconv.Quote(text))
	}
	p.next()
}

func (p *parser) take(kind tokenKind, what string) token {
	if p.peek().kind != kind {
		p.fail(what)
	}
	return p.next()
}

func (p *parser) word(what string) token { return p.take(tokenWord, what) }

// name takes the name of what is defined. Thrift's lexer has words with dots, for what other files define.
func (p *parser) name(what string) token {
	if t := p.peek(); t.kind == tokenWord && strings.Contains(t.text, ".") {
		p.fail(what + " without dots")
	}
	return p.word(what)
}

func (p *parser) literal() token { return p.take(tokenLiteral, "a literal in quotes") }

// closers are the brackets that close others.
var closers = map[string]string{"(": ")", "{": "}", "[": "]", "<": ">"}

// fail ends the parse at the next token. A bracket that is still open is what is missing
// if another one is closed, or the file ends.
func (p *parser) fail(want string) {
	t := p.peek()
	e := &Error{File: p.path, Line: t.line, Msg: fmt.Sprintf("no Thrift IDL: column %d: found %q", t.col, t.text)}
	if t.kind == tokenEnd {
		e.Msg = "no Thrift IDL: the file ends too early"
	}
	if n := len(p.open); n > 0 && (t.kind == tokenEnd || strings.Contains(")}]>", t.text)) { //nolint:gocritic // the brackets are the set
		last := p.open[n-1]
		want = fmt.Sprintf("%q for the %q of line %d", closers[last.text], last.text, last.line)
	}
	e.Msg += ", expected " + want
	panic(e)
}

// list reads items up to the closing bracket.
func (p *parser) list(open string, item func()) {
	p.expect(open)
	for !p.is(closers[open]) {
		item()
	}
	p.next()
}

func (p *parser) separator() { p.accept(",", ";") }

// header reads an include or a namespace; false if there is none.
func (p *parser) header(doc *document) bool {
	switch line := p.peek().line; {
	case p.accept("include"):
		doc.Includes = append(doc.Includes, include{p.literal().value(), line})
	case p.accept("cpp_include"):
		p.literal()
	case p.accept("namespace"):
		n := namespace{Language: "*"}
		if !p.accept("*") {
			n.Language = p.word("a language").text
		}
		n.Name = p.word("a name").text
		p.annotations()
		doc.Namespaces = append(doc.Namespaces, n)
	default:
		return false
	}
	return true
}

func (p *parser) definition(doc *document) {
	switch t := p.peek(); t.text {
	case "const":
		p.next()
		p.fieldType()
		name := p.name("a name")
		doc.Consts = append(doc.Consts, named{name.text, name.line})
		p.expect("=")
		p.constant()
		p.separator()
	case "typedef":
		p.next()
		d := &typedef{Type: p.fieldType()}
		name := p.name("a name")
		d.Alias, d.Line, d.Annotations = name.text, name.line, p.annotations()
		p.separator()
		doc.Typedefs = append(doc.Typedefs, d)
	case "enum":
		p.next()
		name := p.name("a name")
		e := &enum{named: named{name.text, name.line}}
		p.list("{", func() { e.Values = append(e.Values, p.enumValue(e.Values)) })
		p.annotations()
		doc.Enums = append(doc.Enums, e)
	case "struct", "union", "exception":
		p.next()
		name := p.name("a name")
		p.accept("xsd_all")
		d := &structLike{Category: t.text, Name: name.text, Doc: t.doc, Line: name.line, Fields: p.fields("{")}
		d.Annotations = p.annotations()
		doc.Structs = append(doc.Structs, d)
	case "service":
		p.next()
		doc.Services = append(doc.Services, p.service())
	default:
		p.fail("a definition")
	}
}

// enumValue reads a value. One without a number has that which follows the value before it.
func (p *parser) enumValue(before []EnumValue) (v EnumValue) {
	v.Name = p.name("a name").text
	if n := len(before); n > 0 {
		v.Number = before[n-1].Number + 1
	}
	if p.accept("=") {
		v.Number = int32(p.whole())
	}
	p.annotations()
	p.separator()
	return v
}

// whole reads a whole number.
func (p *parser) whole() int64 {
	t := p.peek()
	if !wholeForm.MatchString(t.text) {
		p.fail("a whole number")
	}
	p.next()
	digits, base := t.text, 10 // a leading zero means nothing
	if sign, hex, ok := strings.Cut(t.text, "0x"); ok {
		digits, base = sign+hex, 16
	}
	n, err := strconv.ParseInt(digits, base, 64)
	if err != nil {
		panic(&Error{File: p.path, Line: t.line, Msg: fmt.Sprintf("no Thrift IDL: column %d: %s is too large", t.col, t.text)})
	}
	return n
}

func (p *parser) constant() {
	switch t := p.peek(); {
	case t.text == "[":
		p.list("[", func() {
			p.constant()
			p.separator()
		})
	case t.text == "{":
		p.list("{", func() {
			p.constant()
			p.expect(":")
			p.constant()
			p.separator()
		})
	case wholeForm.MatchString(t.text):
		p.whole()
	case t.kind == tokenSymbol || t.kind == tokenEnd:
		p.fail("a value")
	default:
		p.next()
	}
}

func (p *parser) service() *service {
	name := p.name("a name")
	s := &service{Name: name.text, Line: name.line}
	if p.accept("extends") {
		s.Extends = p.word("a service").text
	}
	p.list("{", func() { s.Functions = append(s.Functions, p.function()) })
	s.Annotations = p.annotations()
	return s
}

func (p *parser) function() *function {
	f := &function{Doc: p.peek().doc}
	f.Oneway = p.accept("oneway", "async")
	if !p.accept("void") {
		f.Type = p.fieldType()
	}
	name := p.name("a method's name")
	f.Name, f.Line, f.Arguments = name.text, name.line, p.fields("(")
	if p.accept("throws") {
		f.Throws = p.fields("(")
	}
	f.Annotations = p.annotations()
	p.separator()
	return f
}

// fields reads a list of fields. Those without a positive number get negative ones.
func (p *parser) fields(open string) (list []*field) {
	missing := int32(0)
	p.list(open, func() {
		f := &field{}
		if p.peek().kind == tokenNumber {
			f.ID = int32(p.whole())
			p.expect(":")
		}
		if f.ID <= 0 {
			missing--
			f.ID = missing
		}
		if p.is("required") || p.is("optional") {
			f.Requirement = p.next().text
		}
		f.Type = p.fieldType()
		p.accept("&")
		name := p.name("a name")
		f.Name, f.Line = name.text, name.line
		if p.accept("=") {
			f.HasDefault = true
			p.constant()
		}
		p.accept("xsd_optional")
		p.accept("xsd_nillable")
		if p.accept("xsd_attrs") {
			p.fields("{")
		}
		f.Annotations = p.annotations()
		p.separator()
		list = append(list, f)
	})
	return list
}

func (p *parser) fieldType() *idlType {
	t := &idlType{Name: p.word("a type").text}
	switch t.Name {
	case "map", "set", "list":
		p.cppType()
		p.expect("<")
		if t.Name == "map" {
			t.Key = p.fieldType()
			p.expect(",")
		}
		t.Value = p.fieldType()
		p.expect(">")
		p.cppType()
	}
	t.Annotations = p.annotations()
	return t
}

func (p *parser) cppType() {
	if p.accept("cpp_type") {
		p.literal()
	}
}

func (p *parser) annotations() (list annotations) {
	if !p.is("(") {
		return nil
	}
	p.list("(", func() {
		a := annotation{p.word("an annotation").text, bare}
		if p.accept("=") {
			a.Value = p.literal().value()
		}
		p.separator()
		list = append(list, a)
	})
	return list
}
