package packetdoc

import (
	_ "embed"
	"strings"
	"text/template"

	"github.com/bifrost-rack/bifrost/p4/rights"
)

//go:embed rights.md.tmpl
var rightsText string

// widths are the widths of fields that the specification of rights in the switch names, in bits.
type widths struct {
	Slot, Generation, Offset, Row, Lent, Children, Incarnation, Counter int
}

// Rights returns the specification of rights in the switch. Its tables and sizes are the model's.
func Rights() (string, error) {
	t, err := template.New("rights.md").Funcs(template.FuncMap{
		"packets": rights.Table, "operations": rights.Operations,
		"size": func() rights.Sizes { return rights.Rack },
		"bits": func() widths {
			return widths{
				Slot:        rights.SlotBits,
				Generation:  rights.GenerationBits,
				Offset:      rights.OffsetBits,
				Row:         rights.RowBits,
				Lent:        rights.LentBits,
				Children:    rights.ChildrenBits,
				Incarnation: rights.IncarnationBits,
				Counter:     rights.CounterBits,
			}
		},
	}).Parse(rightsText)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = t.Execute(&b, nil)
	return b.String(), err
}
