package docs_test

import (
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
)

// TestPages does what the README and the operators' page say, in a checkout.
func TestPages(t *testing.T) {
	if testing.Short() {
		t.Skip("runs racks for half a minute")
	}
	privilege.Need(t)
	for _, page := range []string{"../README.md", "operators.md"} { // in this order: the first builds what the other runs
		s := newShell(t, true)
		if out, err := s.run("cd $BIFROST"); err != nil {
			t.Fatal(out, err)
		}
		s.follow(page, true)
	}
}
