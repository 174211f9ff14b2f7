package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
)

// eventsOptions are the flags of `bifrost events`.
type eventsOptions struct {
	clientOptions
	follow bool
	last   int
	filter client.EventFilter
	node   string
}

func newEventsCmd() *cobra.Command {
	var o eventsOptions
	cmd := o.command(&cobra.Command{
		Use:   "events",
		Short: "Show what happens on the rack",
		Long: `Show what happens on the rack: blades and nodes that come and go, regions, calls that
are held, accesses that are denied, and what operators do. Without --follow, show the
latest events; the Gatekeeper remembers some thousands. With --follow, show each event as
it happens.`,
		Example: `  bifrost events -f
  bifrost events --kind access.denied,call.refused --last 1000
  bifrost events --app shop --kind program.failed
  bifrost events -f --json | jq -r 'select(.blade == "s2").kind'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkKinds(o.filter.Kinds, gatekeeper.EventKinds()); err != nil {
				return err
			}
			return o.run(func(c *client.Client) (err error) {
				if o.filter.Node, err = nodeOf(cmd.Context(), c, "--node", o.node); err != nil {
					return err
				}
				return o.list(cmd, c)
			})
		},
	})
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "show events as they happen, until Ctrl-C")
	cmd.Flags().IntVar(&o.last, "last", 20, "how many of the latest events to show, 4096 at most")
	cmd.Flags().StringVar(&o.filter.Blade, "blade", "", "only events of this `BLADE`")
	cmd.Flags().StringVar(&o.node, "node", "", "only events of this `NODE` (its address, or BLADE/NAME), or with it")
	cmd.Flags().StringVar(&o.filter.Service, "service", "", "only events of this `SERVICE`")
	cmd.Flags().StringVar(&o.filter.App, "app", "", "only events of this `APP` and its programs; also APP/PROGRAM and APP/PROGRAM/NUMBER")
	cmd.Flags().StringSliceVar(&o.filter.Kinds, "kind", nil, "only events of these `KINDS`, such as call.refused,access.denied")
	return cmd
}

func (o *eventsOptions) list(cmd *cobra.Command, c *client.Client) error {
	ctx, w := cmd.Context(), cmd.OutOrStdout()
	n := names{}
	if !o.json {
		var err error
		if n, err = nodeNames(ctx, c); err != nil {
			return err
		}
	}
	if !o.follow {
		events, err := c.Recent(ctx, o.last, o.filter)
		for i := 0; i < len(events) && err == nil; i++ {
			err = o.print(w, &events[i], n)
		}
		return err
	}
	lost := func(err error) { fmt.Fprintln(cmd.ErrOrStderr(), "bifrost: connecting again:", err) }
	err := c.Follow(ctx, client.FollowOptions{Replay: o.last, Filter: o.filter, Lost: lost}, func(m client.Message) error {
		if m.Event != nil {
			n.learn(m.Event)
			return o.print(w, m.Event, n)
		}
		if m.Gap.Missed == 0 {
			fmt.Fprintln(cmd.ErrOrStderr(), "bifrost: the Gatekeeper has restarted")
		} else {
			fmt.Fprintf(cmd.ErrOrStderr(), "bifrost: %d events were missed\n", m.Gap.Missed)
		}
		return nil
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// learn keeps names up to date with what happens.
func (n names) learn(e *api.Event) {
	if e.Kind == "node.joined" {
		n[e.Node] = e.Blade + "/" + e.Name
	}
}

func (o *eventsOptions) print(w io.Writer, e *api.Event, n names) error {
	if o.json {
		return jsonLines(w, []*api.Event{e})
	}
	_, err := fmt.Fprintf(w, "%s  %-17s %s\n", clock(e.Time), e.Kind, oneLine(strings.Join(describe(e, n), "  ")))
	return err
}

// describe says what an event is about.
func describe(e *api.Event, n names) (parts []string) {
	add := func(text string) {
		if text != "" {
			parts = append(parts, text)
		}
	}
	switch {
	case e.Node.IsValid() && e.Peer.IsValid():
		add(n.of(e.Node) + " → " + n.of(e.Peer))
	case e.Node.IsValid() && !strings.HasPrefix(e.Kind, "blade."):
		add(n.of(e.Node))
	case e.Blade != "":
		add(e.Blade)
	}
	if !e.Node.IsValid() {
		add(e.Name) // of a deployment or program; nodes have been named
	}
	add(strings.Trim(e.Service+"."+e.Method, "."))
	add(strings.TrimSpace(e.Op + " " + e.Region))
	add(e.Code)
	add(e.Message)
	return parts
}
