package rights

import "testing"

// TestTables: people can read the tables as the code does: a line without a packet is about the packets of the line before, each
// kind has a last line that always holds, and names are unique.
func TestTables(t *testing.T) {
	names := map[string]bool{}
	for i, r := range table {
		if names[r.name] || r.when == "" || r.then == "" {
			t.Errorf("row %q: its name is there twice, or a text is missing", r.name)
		}
		names[r.name] = true
		if r.packet == "" && r.kinds != table[i-1].kinds {
			t.Errorf("row %q is not about the packets of the row before it, and does not say about which", r.name)
		}
	}
	for k := range kindCount {
		last := table[rowsOf[k][len(rowsOf[k])-1]]
		if !last.holds(&turn{Switch: New(Rack), p: &Packet{}}) {
			t.Errorf("%v: the last row, %q, does not hold always", k, last.name)
		}
	}
	for i, o := range operations {
		if names[o.name] || o.when == "" || o.then == "" || o.op == "" && o.ops != operations[i-1].ops {
			t.Errorf("operation %q: its name is there twice, or a text is missing", o.name)
		}
		names[o.name] = true
	}
	if len(Table()) != len(table) || len(Operations()) != len(operations) {
		t.Error("lines are missing")
	}
}
