package packetdoc

import (
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write the page anew")

// TestPage fails when docs/packets.md is not what the code says.
func TestPage(t *testing.T) {
	const file = "../../docs/packets.md"
	if *update {
		if err := os.WriteFile(file, []byte(Page()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != Page() {
		t.Error("docs/packets.md is stale: run `go test ./internal/packetdoc -update`")
	}
}
