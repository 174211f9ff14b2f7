package docs_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// forStubs are the files of package rpc whose functions only generated code calls.
var forStubs = []string{"ref_stub.go", "ref_wire.go", "ref_form.go"}

// needNoExample are entry points that an Example would not make clearer, with reasons.
var needNoExample = map[string]string{
	"dsm.NewClient":   "a program gets its client from rpc",
	"dsm.Client.With": "what the runtime does for executions", "dsm.Client.Finish": "likewise",
	"dsm.Client.Lend": "what the runtime does when a call passes regions on", "dsm.Client.Returned": "likewise",
	"dsm.Client.HandOver": "likewise", "dsm.Client.Gained": "likewise",
	"dsm.Client.OpenLedger": "what the runtime does for its node", "dsm.Ledger.Append": "likewise", "dsm.Ledger.Base": "likewise",
	"dsm.Ledger.Wait": "likewise", "dsm.Ledger.Settled": "likewise", "dsm.Ledger.Room": "likewise",
	"rpc.WithLimits": "the fields of Limits say what they bound", "dsm.Limits.Check": "what rpc.WithLimits does first",
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
		if all < 8 {
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

// parsePackage reads a package's files and its tests.
func parsePackage(t *testing.T, dir string) (files, tests []*ast.File) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	set := token.NewFileSet()
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || slices.Contains(forStubs, e.Name()) {
			continue
		}
		f, err := parser.ParseFile(set, filepath.Join(dir, e.Name()), nil, parser.ParseComments)
		must(t, err)
		if strings.HasSuffix(e.Name(), "_test.go") {
			tests = append(tests, f)
		} else {
			files = append(files, f)
		}
	}
	return files, tests
}
