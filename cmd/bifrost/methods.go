package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
)

func newMethodsCmd() *cobra.Command {
	var service string
	cmd := show(&clientOptions{}, helpText{"methods", "Show how many calls methods get, how many fail, and how long they take",
		`Show what has become of the calls of each method since the Gatekeeper began: how many
have ended, are under way, wait for their callee, have failed and with which code; how
long half, 95 and 99 of 100 took at most, from their sending to their answer; and one of
the slowest, for bifrost trace. Calls that are not held are known from samples, of which
some get lost. (rpc/prom tells of all, from within a program.)`,
		"  bifrost methods --service Store\n  bifrost methods --json | jq -r 'select(.p99 > 0.1).slow'     # for bifrost trace"},
		func(ctx context.Context, c *client.Client) ([]api.MethodFigures, error) {
			all, err := c.Methods(ctx)
			return slices.DeleteFunc(all, func(m api.MethodFigures) bool { return service != "" && m.Service != service }), err
		},
		func(ms []api.MethodFigures, _ names) []string {
			rows := []string{"METHOD\tCALLS\tOPEN\tQUEUED\tFAILED\tRERUN\tP50\tP95\tP99\tSLOW"}
			for i := range ms {
				m := &ms[i]
				rows = append(rows, fmt.Sprintf("%s\t%d\t%d\t%d\t%s\t%d\t%s\t%s\t%s\t%s", strings.TrimPrefix(m.Service+"."+m.Method, "."),
					m.Calls, m.Open, m.Queued, failuresText(m.Failed), m.Rerun, took(m.P50), took(m.P95), took(m.P99), or(m.Slow, "-")))
			}
			return rows
		})
	cmd.Flags().StringVar(&service, "service", "", "only those of this `SERVICE`")
	return cmd
}

// failuresText lists codes with how many calls have ended so.
func failuresText(failed map[string]uint64) string {
	var all []string
	for _, code := range slices.Sorted(maps.Keys(failed)) {
		all = append(all, fmt.Sprintf("%d %s", failed[code], code))
	}
	return or(strings.Join(all, ", "), "0")
}

// took prints a number of seconds.
func took(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	if d >= time.Second {
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(time.Microsecond).String()
}
