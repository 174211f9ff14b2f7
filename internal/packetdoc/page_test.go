package packetdoc

import (
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write the files anew")

// TestFiles fails when a generated file is not what the code says.
func TestFiles(t *testing.T) {
	wire, err := Wire()
	if err != nil {
		t.Fatal(err)
	}
	specification, err := Rights()
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"../../docs/wire.md":                     wire,
		"../../docs/packets.md":                  Page(),
		"../../docs/rights.md":                   specification,
		"../../docs/ledger-records.md":           LedgerPage(),
		"../../clients/python/bifrost/layout.py": Python(),
	} {
		if *update {
			if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s is stale: run `go test ./internal/packetdoc -update`", file)
		}
	}
}
