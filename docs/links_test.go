package docs_test

import (
	"go/ast"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/bifrost-rack/bifrost/"

// code is what Go code declares, so that comments can be held against it.
type code struct {
	dirs    map[string]*scope
	named   map[string][]*scope        // packages of the repository, by their names
	members map[string]map[string]bool // of types of any package: methods and fields
	words   map[string]bool            // of files in other languages, and what any package declares
	imports map[string]bool            // names of packages that some file imports
	files   []source
}

// scope is a package with its tests.
type scope struct {
	declared map[string]bool
	members  map[string]map[string]bool // by type
	tokens   map[string]bool            // identifiers that its code has, and words of its strings
}

type source struct {
	name, dir string
	file      *ast.File
}

func newScope() *scope {
	return &scope{map[string]bool{}, map[string]map[string]bool{}, map[string]bool{}}
}

// embeds stands among a type's members if it may have others than those that are written there.
const embeds = "*"

var identifier = regexp.MustCompile(`[A-Za-z_]\w*`)

// read is the repository's code, once it has been read.
var read *code

// readCode reads the whole repository.
func readCode(t *testing.T) *code {
	if read != nil {
		return read
	}
	c := &code{dirs: map[string]*scope{}, named: map[string][]*scope{}, members: map[string]map[string]bool{}, words: map[string]bool{}, imports: map[string]bool{}}
	for _, name := range tracked(t, "*") {
		if strings.HasSuffix(name, ".md") || strings.HasSuffix(name, ".png") {
			continue
		}
		text, err := os.ReadFile("../" + name)
		must(t, err)
		if !strings.HasSuffix(name, ".go") {
			for _, w := range identifier.FindAllString(string(text), -1) {
				c.words[w] = true
			}
			continue
		}
		f, err := parser.ParseFile(fileSet, name, text, parser.ParseComments|parser.SkipObjectResolution)
		must(t, err)
		dir := path.Dir(name)
		if c.dirs[dir] == nil {
			c.dirs[dir] = newScope()
			c.named[strings.TrimSuffix(f.Name.Name, "_test")] = append(c.named[strings.TrimSuffix(f.Name.Name, "_test")], c.dirs[dir])
		}
		c.dirs[dir].add(f)
		for _, i := range f.Imports {
			c.imports[path.Base(strings.Trim(i.Path.Value, `"`))] = true
		}
		if !generated(string(text)) {
			c.files = append(c.files, source{name, dir, f})
		}
	}
	for _, s := range c.dirs {
		maps.Copy(c.words, s.declared)
		for typ, members := range s.members {
			if c.members[typ] == nil {
				c.members[typ] = map[string]bool{}
			}
			maps.Copy(c.members[typ], members)
			maps.Copy(c.words, members)
		}
	}
	read = c
	return c
}

// add adds what a file declares and uses.
func (s *scope) add(f *ast.File) {
	member := func(typ, name string) {
		if s.members[typ] == nil {
			s.members[typ] = map[string]bool{}
		}
		s.members[typ][name] = true
	}
	fields := func(typ string, list *ast.FieldList) {
		for _, field := range list.List {
			for _, name := range field.Names {
				member(typ, name.Name)
			}
			if len(field.Names) == 0 {
				member(typ, embeds)
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			s.tokens[n.Name] = true
		case *ast.BasicLit:
			for _, w := range identifier.FindAllString(n.Value, -1) {
				s.tokens[w] = true
			}
		case *ast.ValueSpec:
			for _, name := range n.Names {
				s.declared[name.Name] = true
			}
		case *ast.TypeSpec:
			s.declared[n.Name.Name] = true
			switch t := n.Type.(type) {
			case *ast.StructType:
				fields(n.Name.Name, t.Fields)
			case *ast.InterfaceType:
				fields(n.Name.Name, t.Methods)
			default:
				member(n.Name.Name, embeds)
			}
		case *ast.FuncDecl:
			if n.Recv == nil {
				s.declared[n.Name.Name] = true
			} else if typ := identifier.FindString(strings.TrimLeft(typeText(n.Recv.List[0].Type), "*")); typ != "" {
				member(typ, n.Name.Name)
			}
		}
		return true
	})
}

// typeText is a receiver's type, without its parameters.
func typeText(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeText(e.X)
	case *ast.IndexExpr:
		return typeText(e.X)
	case *ast.IndexListExpr:
		return typeText(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// has reports whether a package has a name, or a type of it a member.
func (s *scope) has(typ, name string) bool {
	if typ == "" {
		return s.declared[name]
	}
	return s.members[typ][name] || s.members[typ][embeds]
}

// imported returns the import path of a package as a file names it.
func imported(f *ast.File, name string) (string, bool) {
	for _, i := range f.Imports {
		p := strings.Trim(i.Path.Value, `"`)
		if i.Name != nil && i.Name.Name == name || i.Name == nil && path.Base(p) == name {
			return p, true
		}
	}
	return comment.DefaultLookupPackage(name)
}

var (
	// bracketed is what looks like a link. Words of capitals are parts of a command line.
	bracketed = regexp.MustCompile(`(?:^|[\s(])(\[\*?(?:[a-z]\w*\.)?[A-Z]\w*[a-z]\w*(?:\.\w+)*\])(?:$|[\s.,;:!?)'])`)
	// camel is a word that only a program has: a capital letter stands in its middle.
	camel = regexp.MustCompile(`(?:\b([a-zA-Z]\w*)\.)?\b([A-Za-z][a-z0-9]+[A-Z]\w*|[a-z]+[A-Z]\w+)\b`)
	// qualified is a name of a package, or a member of a type.
	qualified = regexp.MustCompile(`(?:^|[^\w./-])([A-Za-z]\w*)\.([A-Z]\w*[a-z]\w*)\b`)
)

// foreign are names in comments that are declared elsewhere, and words that look like names.
var foreign = map[string]string{
	"EtherType": "a field of Ethernet", "MurmurHash3": "a hash", "OpenAPI": "", "OpenMetrics": "", "OpenTelemetry": "",
	"TestCounter": "a test that an example shows", "PacketStreamResponse": "a message of bmv2", "PacketStreamRequest": "a message of bmv2",
	"W3C": "", "gNMI": "", "rMK": "syntax of test scripts", "pPORT": "syntax of test scripts",
}

// lostLinks returns the links of a comment that lead nowhere, and how many lead somewhere.
func (c *code) lostLinks(s source, g *ast.CommentGroup) (lost []string, found int) {
	here := c.dirs[s.dir]
	p := comment.Parser{
		LookupPackage: func(name string) (string, bool) {
			if len(c.named[name]) == 1 {
				for dir, scope := range c.dirs {
					if scope == c.named[name][0] {
						return module + dir, true
					}
				}
			}
			return imported(s.file, name)
		},
		LookupSym: here.has,
	}
	for _, w := range words(p.Parse(g.Text())) {
		switch w := w.(type) {
		case *comment.DocLink:
			dir, ours := strings.CutPrefix(w.ImportPath, module)
			if w.Name != "" && ours && (c.dirs[dir] == nil || !c.dirs[dir].has(w.Recv, w.Name)) {
				lost = append(lost, "["+strings.Trim(w.ImportPath+"."+w.Recv+"."+w.Name, ".")+"]")
			} else {
				found++
			}
		case comment.Plain:
			for _, m := range bracketed.FindAllStringSubmatch(string(w), -1) {
				lost = append(lost, m[1])
			}
		}
	}
	return lost, found
}

// lostNames returns names in a comment that no code has. Names are not links everywhere; these are found by their form.
func (c *code) lostNames(s source, g *ast.CommentGroup) (lost []string) {
	text, here := proseOf(g), c.dirs[s.dir]
	known := func(w string) bool {
		return here.tokens[w] || c.words[w] || foreign[w] != "" || isForeign(w)
	}
	for _, m := range camel.FindAllStringSubmatch(text, -1) {
		of, w := m[1], m[2]
		if _, std := comment.DefaultLookupPackage(of); of != "" && c.named[of] == nil && (std || c.imports[of]) {
			continue // of somebody else's
		}
		if !known(w) && !known(strings.TrimSuffix(w, "s")) {
			lost = append(lost, w)
		}
	}
	for _, m := range qualified.FindAllStringSubmatch(text, -1) {
		of, name := m[1], m[2]
		if scopes := c.named[of]; scopes != nil && !slices.ContainsFunc(scopes, func(s *scope) bool { return s.declared[name] }) {
			lost = append(lost, of+"."+name)
		}
		if all := c.members[of]; all != nil && token.IsExported(of) && !all[name] && !all[embeds] {
			lost = append(lost, of+"."+name)
		}
	}
	return lost
}

func isForeign(w string) bool { _, is := foreign[w]; return is }

// TestDocLinks: links in comments lead somewhere, and names that comments mention are there. What leads nowhere is shown as
// text in brackets.
func TestDocLinks(t *testing.T) {
	c := readCode(t)
	links := map[string]int{}
	for _, s := range c.files {
		for _, g := range s.file.Comments {
			lost, found := c.lostLinks(s, g)
			links[s.dir] += found
			for _, name := range append(lost, c.lostNames(s, g)...) {
				t.Errorf("%s: %s is nowhere", fileSet.Position(g.Pos()), name)
			}
		}
	}
	for _, name := range public {
		if links[name] < 5 {
			t.Errorf("%s has %d links", name, links[name])
		}
	}
}

// TestDocLinks_Finds: the check finds what it is for.
func TestDocLinks_Finds(t *testing.T) {
	const text = `package p

import "os"

type Box struct{ Lid int }

func (b *Box) Open() {}

func makeBox() {}

// Right: [Box], [Box.Open], [*Box], [os.File].
// makeBox, box.Lid, Box.Lid, os.ErrDeadlineExceeded, OpenAPI, [NAME] and x[Box], all makeBoxs.
//
//	makeCrate in code
var a int

// Wrong: [Crate], [Box.Shut], Box.Shut, makeCrate, p.MakeCrate.
var b int
`
	f, err := parser.ParseFile(fileSet, "p/p.go", text, parser.ParseComments|parser.SkipObjectResolution)
	must(t, err)
	here := newScope()
	here.add(f)
	c := &code{dirs: map[string]*scope{"p": here}, named: map[string][]*scope{"p": {here}}, members: here.members, words: here.declared}
	var got [][]string
	for _, g := range f.Comments {
		lost, _ := c.lostLinks(source{"p/p.go", "p", f}, g)
		got = append(got, append(lost, c.lostNames(source{"p/p.go", "p", f}, g)...))
	}
	want := [][]string{nil, {"[Crate]", "[Box.Shut]", "makeCrate", "MakeCrate", "Box.Shut", "Box.Shut", "p.MakeCrate"}}
	if !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("finds %q, want %q", got, want)
	}
}

// words are the parts of a comment's paragraphs.
func words(d *comment.Doc) (all []comment.Text) {
	for _, b := range d.Content {
		switch b := b.(type) {
		case *comment.Paragraph:
			all = append(all, b.Text...)
		case *comment.List:
			for _, i := range b.Items {
				all = append(all, words(&comment.Doc{Content: i.Content})...)
			}
		}
	}
	return all
}

var (
	heading  = regexp.MustCompile(`^#+ +(.*)`)
	target   = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	unspoken = regexp.MustCompile(`[^\w\- ]`)
)

// anchors are the headings of a page, as links name them.
func anchors(lines []string) map[string]bool {
	of := map[string]bool{}
	for _, l := range lines {
		if m := heading.FindStringSubmatch(l); m != nil {
			of[strings.ReplaceAll(unspoken.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
		}
	}
	return of
}

// TestPageLinks: what a page links to in the repository is there, and so is the heading.
func TestPageLinks(t *testing.T) {
	pages := map[string][]string{} // their lines
	for _, name := range tracked(t, "*.md") {
		text, err := os.ReadFile("../" + name)
		must(t, err)
		fenced := false
		for l := range strings.Lines(string(text)) {
			if strings.HasPrefix(strings.TrimSpace(l), "```") {
				fenced = !fenced
			} else if !fenced {
				pages[name] = append(pages[name], strings.TrimSpace(l))
			}
		}
	}
	for name, lines := range pages {
		for _, l := range lines {
			for _, m := range target.FindAllStringSubmatch(l, -1) {
				to, anchor, _ := strings.Cut(m[1], "#")
				if strings.Contains(to, ":") {
					continue // elsewhere
				}
				if to != "" {
					to = path.Join(path.Dir(name), to)
				} else {
					to = name
				}
				if _, err := os.Stat("../" + to); err != nil {
					t.Errorf("%s links to %s, which is not there", name, m[1])
				} else if anchor != "" && pages[to] != nil && !anchors(pages[to])[anchor] {
					t.Errorf("%s links to %s, and there is no such heading", name, m[1])
				}
			}
		}
	}
}
