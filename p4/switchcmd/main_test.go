package switchcmd

import (
	"testing"

	"github.com/spf13/cobra"
)

// newRoot has the command as bifrost has it.
func newRoot() *cobra.Command {
	root := &cobra.Command{Use: "bifrost", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(New("bifrost switch", "(a test)"))
	return root
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
