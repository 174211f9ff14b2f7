package unixjoin

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestDoc: the package's documentation names each operation of the protocol, and no other.
func TestDoc(t *testing.T) {
	files := token.NewFileSet()
	constants, err := parser.ParseFile(files, "lines.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	ast.Inspect(constants, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(v.Names[0].Name, "op") {
			for _, value := range v.Values {
				if l, ok := value.(*ast.BasicLit); ok {
					op, _ := strconv.Unquote(l.Value)
					want = append(want, op)
				}
			}
		}
		return true
	})
	text, err := parser.ParseFile(files, "doc.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	doc := text.Doc.Text()
	var told []string
	for _, m := range regexp.MustCompile(`"op":"(\w+)"`).FindAllStringSubmatch(doc, -1) {
		told = append(told, m[1])
	}
	_, others, ok := strings.Cut(doc, "The other operations are")
	if others, _, _ = strings.Cut(others, "."); !ok || len(want) < 10 {
		t.Fatalf("operations %q, documented:\n%s", want, doc)
	}
	for _, m := range regexp.MustCompile(`"(\w+)"`).FindAllStringSubmatch(others, -1) {
		told = append(told, m[1])
	}
	if strings.Contains(doc, `A "crash" says`) {
		told = append(told, "crash")
	}
	slices.Sort(want)
	slices.Sort(told)
	if told = slices.Compact(told); !slices.Equal(told, want) {
		t.Errorf("documented are %q, there are %q", told, want)
	}
}
