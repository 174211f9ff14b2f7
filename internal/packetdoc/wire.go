package packetdoc

import (
	_ "embed"
	"fmt"
	"strings"
	"text/template"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

//go:embed wire.md.tmpl
var wireText string

// row is a line of a table.
type row struct {
	Number           int
	Name, Value, Doc string
}

// Wire returns the page for those who write a client in another language.
func Wire() (string, error) {
	t, err := template.New("wire.md").Funcs(template.FuncMap{
		"constants": constantRows, "value": valueOf, "codes": codeRows, "trailers": trailerRows,
	}).Parse(wireText)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = t.Execute(&b, nil)
	return b.String(), err
}

func constantRows() (rows []row) {
	for _, c := range constants() {
		value := fmt.Sprintf("%v", c.value)
		switch c.value.(type) {
		case string:
			value = "`" + value + "`"
		case rpcpacket.Flags:
			value = fmt.Sprintf("%#x", c.value)
		}
		rows = append(rows, row{Name: c.name, Value: value, Doc: c.doc})
	}
	return rows
}

// valueOf is a constant's value in the text.
func valueOf(name string) (string, error) {
	for _, c := range constants() {
		if c.name == name {
			return fmt.Sprintf("%v", c.value), nil
		}
	}
	return "", fmt.Errorf("no constant %s", name)
}

func codeRows() (rows []row) {
	for c := fault.OK; c.Known(); c++ {
		rows = append(rows, row{Number: int(c), Name: c.String()})
	}
	return rows
}

func trailerRows() (rows []row) {
	for t := trailer.Time; t <= trailer.Region; t++ {
		rows = append(rows, row{Number: int(t), Name: t.String()})
	}
	return rows
}
