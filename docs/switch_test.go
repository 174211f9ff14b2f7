package docs_test

import (
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
)

// TestSwitchPage does what the page about the switch says: install, load a program,
// write an entry, see packets.
func TestSwitchPage(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program")
	}
	missing := privilege.Missing()
	if root := missing == nil; !newShell(t, root).follow("../p4switch/README.md", root) {
		t.Log("NOT CHECKED from the first sudo on: ", missing)
	}
}
