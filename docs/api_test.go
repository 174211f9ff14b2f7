package docs_test

import (
	"go/ast"
	"go/doc"
	"go/doc/comment"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// public are the packages that applications and their tests import.
var public = []string{"rpc", "dsm", "bifrosttest"}

// TestAPIFitsTwoScreens: `go doc` of what applications import is short enough to be read.
func TestAPIFitsTwoScreens(t *testing.T) {
	const most = 100 // lines
	for _, name := range public {
		out, err := exec.Command("go", "doc", "./"+filepath.Join("..", name)).Output()
		must(t, err)
		if n := strings.Count(string(out), "\n"); n > most || n < 10 {
			t.Errorf("go doc ./%s has %d lines, want at most %d", name, n, most)
		}
	}
}

// TestDocLinks: the links in the public packages' comments lead somewhere, and there are
// some. What leads nowhere is shown as text in brackets.
func TestDocLinks(t *testing.T) {
	bracketed := regexp.MustCompile(`\[\*?[A-Z]\w*(\.\w+)*\]`)
	for _, name := range public {
		files, _ := parsePackage(t, filepath.Join("..", name))
		p, err := doc.NewFromFiles(fileSet, files, "github.com/bifrost-rack/bifrost/"+name)
		must(t, err)
		links := 0
		for where, text := range docComments(p) {
			for _, s := range words(p.Parser().Parse(text)) {
				switch s := s.(type) {
				case *comment.DocLink:
					links++
				case comment.Plain:
					if lost := bracketed.FindString(string(s)); lost != "" {
						t.Errorf("%s.%s: %s leads nowhere", name, where, lost)
					}
				}
			}
		}
		if links < 5 {
			t.Errorf("%s has %d links", name, links)
		}
	}
}

// docComments are a package's documentation, by name.
func docComments(p *doc.Package) map[string]string {
	all := map[string]string{"package": p.Doc}
	values := func(vs []*doc.Value) {
		for _, v := range vs {
			all[strings.Join(v.Names, ",")] = v.Doc
		}
	}
	funcs := func(fs []*doc.Func) {
		for _, f := range fs {
			all[f.Recv+"."+f.Name] = f.Doc
		}
	}
	values(p.Consts)
	values(p.Vars)
	funcs(p.Funcs)
	for _, ty := range p.Types {
		all[ty.Name] = ty.Doc
		values(ty.Consts)
		values(ty.Vars)
		funcs(ty.Funcs)
		funcs(ty.Methods)
	}
	return all
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

// TestAPITakesPublicTypes: no exported function, method or field of the public packages has
// a type that their users cannot name.
func TestAPITakesPublicTypes(t *testing.T) {
	for _, name := range public {
		files, _ := parsePackage(t, filepath.Join("..", name))
		for _, f := range files {
			hidden := map[string]bool{}
			for _, i := range f.Imports {
				path := strings.Trim(i.Path.Value, `"`)
				hidden[path[strings.LastIndex(path, "/")+1:]] = strings.Contains(path, "bifrost/internal/") || strings.Contains(path, name+"/internal/")
			}
			for _, d := range f.Decls {
				for _, typ := range exportedTypes(name, d) {
					ast.Inspect(typ, func(n ast.Node) bool {
						if s, ok := n.(*ast.SelectorExpr); ok {
							if x, ok := s.X.(*ast.Ident); ok && hidden[x.Name] {
								t.Errorf("%s shows %s.%s", name, x.Name, s.Sel.Name)
							}
						}
						return true
					})
				}
			}
		}
	}
}

// exportedTypes are the types that a declaration shows to a package's users: those of an
// exported function, and of the exported fields of an exported struct.
func exportedTypes(pkg string, d ast.Decl) (all []ast.Expr) {
	if f, ok := d.(*ast.FuncDecl); ok {
		if entryPoint(pkg, d) == "" {
			return nil
		}
		return []ast.Expr{f.Type}
	}
	g, ok := d.(*ast.GenDecl)
	if !ok {
		return nil
	}
	for _, s := range g.Specs {
		ty, ok := s.(*ast.TypeSpec)
		if !ok || !ty.Name.IsExported() {
			continue
		}
		if st, ok := ty.Type.(*ast.StructType); ok {
			for _, field := range st.Fields.List {
				if len(field.Names) > 0 && field.Names[0].IsExported() {
					all = append(all, field.Type)
				}
			}
		}
	}
	return all
}
