package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
	"github.com/bifrost-rack/bifrost/internal/duration"
	"github.com/spf13/cobra"
)

// defaultPolicy is what undoes an operator's word.
const defaultPolicy = "default"

var policies = []string{"recover", "fate-share", "tainted", "none", defaultPolicy}

func newPolicyCmd() *cobra.Command {
	var o clientOptions
	failures := -1
	cmd := o.command(&cobra.Command{
		Use:   "policy [SERVICE[.METHOD] [recover|fate-share|tainted|none|default]] [--max-failures N]",
		Short: "List or set what becomes of calls when nodes fail",
		Long: `List, or set, what becomes of the calls of a method when a node fails:

  recover      exactly once: an execution that the failure cut off is run again
  fate-share   like recover; the other side's unfinished execution is taken back, too
  tainted      like fate-share; unfinished executions that it has called are taken back, too
  none         at most once: a call that the failure cut off fails as unavailable
  default      undo what an operator has set

The policy that an operator sets comes first, then the deployment's, then the caller's,
then the one in the service's IDL. A policy of a service applies to its methods that have
none of their own. With --max-failures an exactly-once call of the method is given up after N
ends of its program: it fails then, and what it did is taken back. The default is 16, and 0 is
never. A policy that is set takes effect within a heartbeat, for calls that are
sent from then on. Calls under way keep the policy that they were sent with. Where SET BY
says service or default, a caller may ask for another policy.`,
		Example: "  bifrost policy\n  bifrost policy Counter.add\n  bifrost policy Counter.add tainted\n  bifrost policy Counter.add --max-failures 100\n  bifrost policy Counter default",
		Args:    cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(func(c *client.Client) error {
				list, err := policy(cmd, c, args, failures)
				if err != nil {
					return err
				}
				if o.json {
					return jsonLines(cmd.OutOrStdout(), list)
				}
				return table(cmd.OutOrStdout(), policyRows(list)...)
			})
		},
	})
	cmd.Flags().IntVar(&failures, "max-failures", failures, "give a call up after `N` ends of its program; 0 is never")
	return cmd
}

// policy sets a policy if there is one, and returns those that are asked about.
func policy(cmd *cobra.Command, c *client.Client, args []string, failures int) ([]api.Policy, error) {
	service, method := "", ""
	if len(args) > 0 {
		service, method, _ = strings.Cut(args[0], ".")
		if service == "" || strings.HasSuffix(args[0], ".") {
			return nil, fmt.Errorf("%s: want SERVICE or SERVICE.METHOD", args[0])
		}
	}
	var want api.SetPolicy
	if cmd.Flags().Changed("max-failures") {
		want.MaxFailures = &failures
		switch {
		case service == "":
			return nil, errors.New("--max-failures: say of which SERVICE or SERVICE.METHOD")
		case len(args) == 2 && args[1] == defaultPolicy:
			return nil, errors.New("default undoes what is set: leave --max-failures out")
		}
	}
	if len(args) == 2 || want.MaxFailures != nil {
		services, err := c.Services(cmd.Context())
		if err == nil {
			err = checkMethod(services, service, method)
		}
		if err != nil {
			return nil, err
		}
		if len(args) == 2 && args[1] != defaultPolicy {
			want.Policy = args[1]
		}
		p, err := c.SetPolicy(cmd.Context(), service, method, want)
		return []api.Policy{p}, err
	}
	all, err := c.Policies(cmd.Context())
	if err != nil || service == "" {
		return all, err
	}
	var some []api.Policy
	for _, p := range all {
		if p.Service == service && (method == "" || p.Method == method) {
			some = append(some, p)
		}
	}
	if len(some) == 0 {
		return nil, fmt.Errorf("%s: nobody exports it, and no policy is set for it", args[0])
	}
	return some, nil
}

func policyRows(list []api.Policy) []string {
	rows := []string{"SERVICE\tMETHOD\tPOLICY\tSET BY\tMAX FAILURES\tSET BY"}
	for _, p := range list {
		most := strconv.Itoa(p.MaxFailures)
		if p.MaxFailures == 0 {
			most = "never"
		}
		rows = append(rows, strings.Join([]string{p.Service, cmp.Or(p.Method, "(others)"), p.Policy, p.Origin, most, p.FailuresOrigin}, "\t"))
	}
	return rows
}

func newMethodsCmd() *cobra.Command {
	var service string
	cmd := show(&clientOptions{}, helpText{"methods", "Show how many calls each method gets, how many fail, and how long they take",
		`Show what has become of the calls of each method since the Gatekeeper began:

  CALLS, OPEN           how many have ended, and are under way
  FAILED                how many have failed, and with which code
  DECLARED              how many ended with an exception that the IDL declares: an answer
  RERUN                 how many were run again
  P50, P95, P99         how long 50, 95 and 99 % of the calls took at most, from sending
                        to answer
  SLOW                  one of the slowest calls, for bifrost trace

Nodes count all calls that they serve, and name some of them: times are those of the named
ones. Program authors find all times with rpc/prom.`,
		"  bifrost methods --service Store\n  bifrost methods --json | jq -r 'select(.p99 > 0.1).slow'     # for bifrost trace"},
		func(ctx context.Context, c *client.Client) ([]api.MethodFigures, error) {
			all, err := c.Methods(ctx)
			return slices.DeleteFunc(all, func(m api.MethodFigures) bool { return service != "" && m.Service != service }), err
		},
		func(ms []api.MethodFigures, _ names) []string {
			rows := []string{"METHOD\tCALLS\tOPEN\tFAILED\tDECLARED\tRERUN\tP50\tP95\tP99\tSLOW"}
			for i := range ms {
				m := &ms[i]
				rows = append(rows, fmt.Sprintf("%s\t%d\t%d\t%s\t%d\t%d\t%s\t%s\t%s\t%s", strings.TrimPrefix(m.Service+"."+m.Method, "."),
					m.Calls, m.Open, failuresText(m.Failed), m.Declared, m.Rerun, took(m.P50), took(m.P95), took(m.P99), cmp.Or(m.Slow, "-")))
			}
			return rows
		})
	cmd.Flags().StringVar(&service, "service", "", "only methods of this `SERVICE`")
	return cmd
}

// failuresText lists codes with how many calls have ended so.
func failuresText(failed map[string]uint64) string {
	var all []string
	for _, code := range slices.Sorted(maps.Keys(failed)) {
		all = append(all, fmt.Sprintf("%d %s", failed[code], code))
	}
	return cmp.Or(strings.Join(all, ", "), "0")
}

// took prints a number of seconds.
func took(seconds float64) string {
	d := duration.Seconds(seconds)
	if d >= time.Second {
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(time.Microsecond).String()
}
