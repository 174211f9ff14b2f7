package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/examples/kv/gen-go/kv"
	"github.com/bifrost-rack/bifrost/examples/kv/store"
	"github.com/bifrost-rack/bifrost/rpc"
)

// command is a client command; do gets its arguments and a client.
type command struct {
	use, short, example string
	args                cobra.PositionalArgs
	do                  func(ctx context.Context, c kv.Store, args []string) (string, error)
}

var commands = []command{
	{"get KEY", "Print a value", "  kv get motto", cobra.ExactArgs(1), get},
	{"version KEY", "Print a value's version", "  kv version motto", cobra.ExactArgs(1), version},
	{"put KEY VALUE", "Set a value; - reads it from standard input", "  kv put motto 'exactly once'\n  kv put readme - <README.md",
		cobra.ExactArgs(2), put},
	{"cas KEY VERSION VALUE", "Set a value if it is of a version; version 0: if there is none", "  kv cas lock 0 mine",
		cobra.ExactArgs(3), compareAndSet},
	{"append KEY VALUE", "Append to a value and print its length; - reads from standard input", "  kv append log 'one line more'",
		cobra.ExactArgs(2), appendTo},
	{"incr KEY [BY]", "Add to a number, 1 if nothing else is said, and print the sum", "  kv incr visits\n  kv incr -- balance -5",
		cobra.RangeArgs(1, 2), increment},
	{"rm KEY", "Remove a key", "  kv rm motto", cobra.ExactArgs(1), remove},
	{"ls", "List all keys", "  kv ls", cobra.NoArgs, list},
}

// newClientCmds are the commands that call the service from this blade.
func newClientCmds() (all []*cobra.Command) {
	for _, c := range commands {
		var timeout time.Duration
		cmd := &cobra.Command{
			Use: c.use, Short: c.short, Example: c.example, Args: c.args,
			RunE: func(cmd *cobra.Command, args []string) error {
				ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
				defer cancel()
				node, err := rpc.Join(ctx, rpc.WithName("kv-client"))
				if err != nil {
					return err
				}
				defer leave(node)
				out, err := c.do(ctx, kv.StoreValues(kv.OpenStore(node, store.Name)), args)
				fmt.Fprint(cmd.OutOrStdout(), out)
				return err
			},
		}
		cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "how long to wait, also for a service that is recovering")
		all = append(all, cmd)
	}
	return all
}

func get(ctx context.Context, c kv.Store, args []string) (string, error) {
	e, err := c.Get(ctx, args[0])
	if err != nil {
		return "", err
	}
	return string(e.Value) + "\n", nil
}

func version(ctx context.Context, c kv.Store, args []string) (string, error) {
	e, err := c.Get(ctx, args[0])
	if err != nil {
		return "", err
	}
	return line(e.Version), nil
}

func put(ctx context.Context, c kv.Store, args []string) (string, error) {
	value, err := argument(args[1])
	if err != nil {
		return "", err
	}
	_, err = c.Put(ctx, args[0], value)
	return "", err
}

func compareAndSet(ctx context.Context, c kv.Store, args []string) (string, error) {
	version, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return "", fmt.Errorf("version %q: want what `kv version` prints", args[1])
	}
	value, err := argument(args[2])
	if err != nil {
		return "", err
	}
	n, err := c.CompareAndSet(ctx, args[0], version, value)
	return line(n), err
}

func appendTo(ctx context.Context, c kv.Store, args []string) (string, error) {
	value, err := argument(args[1])
	if err != nil {
		return "", err
	}
	n, err := c.Append(ctx, args[0], value)
	return line(n), err
}

func increment(ctx context.Context, c kv.Store, args []string) (string, error) {
	by := int64(1)
	if len(args) > 1 {
		var err error
		if by, err = strconv.ParseInt(args[1], 10, 64); err != nil {
			return "", fmt.Errorf("%q is no number", args[1])
		}
	}
	n, err := c.Increment(ctx, args[0], by)
	return line(n), err
}

func remove(ctx context.Context, c kv.Store, args []string) (string, error) {
	return "", c.Remove(ctx, args[0])
}

// list asks for one part of the keys after the other.
func list(ctx context.Context, c kv.Store, _ []string) (out string, err error) {
	for after := ""; ; {
		keys, err := c.Keys(ctx, after)
		if err != nil || len(keys) == 0 {
			return out, err
		}
		for _, key := range keys {
			out += key + "\n"
		}
		after = keys[len(keys)-1]
	}
}

// argument is a value from the command line, or from standard input.
func argument(arg string) ([]byte, error) {
	if arg == "-" {
		return io.ReadAll(os.Stdin)
	}
	return []byte(arg), nil
}

func line(n int64) string { return strconv.FormatInt(n, 10) + "\n" }
