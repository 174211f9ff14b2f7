package packetdoc

import (
	_ "embed"
	"fmt"
	"strings"
	"text/template"

	"github.com/bifrost-rack/bifrost/host/hostwire"
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
		"constants": constantRows, "value": valueOf, "codes": codeRows, "trailers": trailerRows, "frames": frameRows,
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

// frameBodies say who sends frames of a kind, and what their bodies have.
var frameBodies = map[hostwire.Kind][2]string{
	hostwire.Hello:      {"child", "its services, as JSON"},
	hostwire.Welcome:    {"host", "the node, as JSON"},
	hostwire.Ready:      {"host", "nothing: the rack routes calls to the node"},
	hostwire.Call:       {"host", "flags (1), timeout (4), service (text), id (text), caller (text), headers, Thrift message"},
	hostwire.Cancel:     {"host", "code (1)"},
	hostwire.Answer:     {"child", "Thrift message; nothing for a one-way"},
	hostwire.Fail:       {"child", "code (1), text"},
	hostwire.Broken:     {"child", "text"},
	hostwire.Get:        {"child asks", "key. The result is a byte, 1 if there is such an entry, and its value"},
	hostwire.Set:        {"child asks", "key (text), value"},
	hostwire.Delete:     {"child asks", "key"},
	hostwire.Keys:       {"child asks", "what the keys begin with. The result is keys (texts) in order"},
	hostwire.Now:        {"child asks", "nothing. The result is nanoseconds since 1970 (8)"},
	hostwire.Random:     {"child asks", "number (4). The result is so many bytes"},
	hostwire.Effect:     {"child asks", "key. The result is that of the effect"},
	hostwire.Run:        {"host", "nothing: the child is to run the effect"},
	hostwire.EffectDone: {"child", "code (1), then the effect's result if the code is 0, else text"},
	hostwire.Invoke:     {"child asks", "policy (1), timeout (4), service (text), headers, Thrift message. The result is the Thrift message of the answer; nothing for a one-way"},
	hostwire.Result:     {"host", "code (1), flags (1), then the result if the code is 0, else text"},
	hostwire.Log:        {"child", "level (1): 0 debug, 1 info, 2 warning, 3 error; text"},
}

// frameRow is a line of the table of frames.
type frameRow struct {
	Number             int
	Name, Sender, Body string
}

func frameRows() (rows []frameRow) {
	for k := hostwire.Hello; k.Known(); k++ {
		rows = append(rows, frameRow{int(k), k.String(), frameBodies[k][0], frameBodies[k][1]})
	}
	return rows
}
