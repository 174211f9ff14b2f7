package docs_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// needNoExample are entry points that an Example would not make clearer, with reasons.
var needNoExample = map[string]string{
	"rpc.WithLimits": "the fields of Limits say what they bound",
}

// TestEveryEntryPointHasAnExample: whatever a program may call of rpc and dsm is shown
// in a runnable Example of its package.
func TestEveryEntryPointHasAnExample(t *testing.T) {
	for _, name := range []string{"rpc", "dsm"} {
		files, examples := parsePackage(t, filepath.Join("..", name))
		shown := map[string]bool{}
		for _, e := range doc.Examples(examples...) {
			if e.Output == "" && !e.EmptyOutput {
				continue // compiled, but not run
			}
			ast.Inspect(e.Code, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok {
					shown[s.Sel.Name] = true
				}
				return true
			})
			for _, part := range strings.Split(e.Name, "_") {
				shown[part] = true
			}
		}
		all := 0
		for _, f := range files {
			for _, d := range f.Decls {
				entry := entryPoint(name, d)
				if entry == "" {
					continue
				}
				all++
				if short := entry[strings.LastIndex(entry, ".")+1:]; !shown[short] && needNoExample[entry] == "" {
					t.Errorf("%s is shown in no Example", entry)
				}
			}
		}
		if all < 6 {
			t.Errorf("%s: %d entry points found", name, all)
		}
	}
}

// entryPoint is the name of a function or method that programs can call, or "".
func entryPoint(pkg string, d ast.Decl) string {
	f, ok := d.(*ast.FuncDecl)
	if !ok || !f.Name.IsExported() {
		return ""
	}
	if f.Recv == nil {
		return pkg + "." + f.Name.Name
	}
	t := f.Recv.List[0].Type
	if p, ok := t.(*ast.StarExpr); ok {
		t = p.X
	}
	if i, ok := t.(*ast.IndexExpr); ok {
		t = i.X
	}
	if id, ok := t.(*ast.Ident); ok && id.IsExported() {
		return pkg + "." + id.Name + "." + f.Name.Name
	}
	return ""
}

// fileSet has the positions of what parsePackage has read.
var fileSet = token.NewFileSet()

// parsePackage reads a package's files and its tests.
func parsePackage(t *testing.T, dir string) (files, tests []*ast.File) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") {
			continue
		}
		f, err := parser.ParseFile(fileSet, filepath.Join(dir, e.Name()), nil, parser.ParseComments)
		must(t, err)
		if strings.HasSuffix(e.Name(), "_test.go") {
			tests = append(tests, f)
		} else {
			files = append(files, f)
		}
	}
	return files, tests
}
