package gen

import (
	"bytes"
	_ "embed" // of the template
	"fmt"
	"go/format"
	"strconv"
	"strings"
	"text/template"

	"github.com/bifrost-rack/bifrost/rpc/stub"
)

//go:embed stubs.go.tmpl
var stubs string

var stubsTemplate = template.Must(template.New("stubs").Funcs(template.FuncMap{
	"generation": func() int { return Generation },
	"literal":    literal,
	"refName":    stub.Method,
	"newOf":      func(name string) string { return prefixed("New", name) },
	"addOf":      func(name string) string { return prefixed("Add", name) },
}).Parse(stubs))

// prefixed puts a word in front of a name that may be qualified.
func prefixed(word, name string) string {
	i := strings.LastIndexByte(name, '.') + 1
	return name[:i] + word + name[i:]
}

// literal is a string in Go, with its lines if that is possible.
func literal(s string) string {
	if strings.ContainsAny(s, "`\r") {
		return strconv.Quote(s)
	}
	return "`" + s + "`"
}

// render makes Go of a view.
func render(v *fileView) ([]byte, error) {
	var b bytes.Buffer
	if err := stubsTemplate.Execute(&b, v); err != nil {
		return nil, fmt.Errorf("render the stubs of %s: %w", v.Source, err)
	}
	out, err := format.Source(b.Bytes())
	if err != nil {
		return nil, fmt.Errorf("the stubs of %s are no Go, which is a bug in bifrost gen: %w", v.Source, err)
	}
	return out, nil
}
