package switchcmd

import (
	"bytes"
	"context"
	"testing"

	"github.com/spf13/cobra"
)

// newRoot has the command as bifrost has it.
func newRoot() *cobra.Command {
	root := &cobra.Command{Use: "bifrost", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(New("bifrost switch", "(a test)"))
	return root
}

// execute runs `bifrost switch` with arguments, and returns what it prints to either output.
func execute(ctx context.Context, args ...string) (string, error) {
	var out bytes.Buffer
	root := newRoot()
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(append([]string{"switch"}, args...))
	err := root.ExecuteContext(ctx)
	return out.String(), err
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
