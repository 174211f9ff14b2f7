package docs_test

import (
	"go/ast"
	"os/exec"
	"path/filepath"
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
