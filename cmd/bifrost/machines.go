package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
	"github.com/spf13/cobra"
)

func newMachinesCmd() *cobra.Command {
	return show(&clientOptions{}, helpText{"machines", "List the memory machines and their copies",
		`List the memory machines: the blades that serve each, and how many complete copies of its
memory are in service. STATE says why, if there are not two. A machine with two copies
loses nothing when one of its blades dies.`,
		"  bifrost machines\n  bifrost machines --json | jq 'select(.in_service < 2).why'"},
		func(ctx context.Context, c *client.Client) ([]api.Machine, error) { return c.Machines(ctx) },
		func(ms []api.Machine, _ names) []string { return machineRows(ms) })
}

func machineRows(machines []api.Machine) []string {
	rows := []string{"MACHINE\tBLADES\tCOPIES\tUSED\tCAPACITY\tSTATE"}
	for i := range machines {
		m := &machines[i]
		rows = append(rows, fmt.Sprintf("%d\t%s\t%d\t%s\t%s\t%s", m.Machine, strings.Join(m.Blades, " + "), m.InService, bytesText(m.Used), bytesText(m.Capacity), machineText(m)))
	}
	return rows
}

// machineText says in words whether a blade of the machine may die.
func machineText(m *api.Machine) string {
	switch {
	case m.Filling != nil:
		return "filling: " + fillText(m)
	case m.InService == 0:
		return "UNAVAILABLE: " + or(m.Why, "its blades have failed")
	case m.InService == 1:
		return "one copy: " + or(m.Why, "the other blade has failed")
	}
	return "mirrored"
}

// fillText says how far the second copy is filled: m1 + m2: 43 % of 1.2 GiB, 12 s left.
func fillText(m *api.Machine) string {
	f := m.Filling
	text := fmt.Sprintf("%s: %d %% of %s", strings.Join(append(slices.Clone(m.Copies), f.Blade), " + "), percent(f.Done, f.Total), bytesText(f.Total))
	if f.Left > 0 {
		text += fmt.Sprintf(", %.0f s left", math.Ceil(f.Left))
	}
	return text
}

// percent is how much of a total is done, rounded down: 100 means all of it.
func percent(done, total uint64) uint64 {
	if total == 0 {
		return 0
	}
	return uint64(100 * float64(min(done, total)) / float64(total))
}

func newMirrorCmd() *cobra.Command {
	var o clientOptions
	var wait bool
	cmd := o.command(&cobra.Command{
		Use:   "mirror BLADE ONTO",
		Short: "Give the memory of a blade a second copy on another blade",
		Long: `Give the memory machine of BLADE a second copy on the memory blade ONTO, which must not
serve any memory yet. The copy is filled while the rack works. When it is complete, either
blade may die, and nothing is lost. --wait waits until the copy is complete, and shows the
progress. bifrost machines shows the progress, too.`,
		Example: "  bifrost mirror m1 m2 --wait",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(func(c *client.Client) error {
				m, err := c.Mirror(cmd.Context(), args[0], args[1])
				if err == nil && wait {
					if err = o.wait(cmd, c, args[0], mirrored); err == nil {
						m, err = machineOf(cmd.Context(), c, args[0])
					}
				}
				return o.printMachine(cmd.OutOrStdout(), &m, err)
			})
		},
	})
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the copy is complete, and show the progress")
	return cmd
}

func newUnmirrorCmd() *cobra.Command {
	var o clientOptions
	var why string
	cmd := o.command(&cobra.Command{
		Use:   "unmirror BLADE",
		Short: "Take a blade's copy from its memory machine",
		Long: `Take a memory blade's copy from its machine. The machine goes on with the other copy
alone: if the other blade dies, too, the memory is lost. The removed blade is empty then,
and serves nothing until bifrost return or bifrost mirror. To move a copy to a third blade,
unmirror one blade first: bifrost mirror refuses a machine that has two.`,
		Example: "  bifrost unmirror m2 --cause 'new memory'\n  bifrost return m2 --wait",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(func(c *client.Client) error {
				m, err := c.Unmirror(cmd.Context(), args[0], why)
				return o.printMachine(cmd.OutOrStdout(), &m, err)
			})
		},
	})
	cmd.Flags().StringVar(&why, "cause", "", "the reason, for people; it is shown with the machine")
	return cmd
}

// printMachine prints a machine unless something went wrong.
func (o *clientOptions) printMachine(w io.Writer, m *api.Machine, err error) error {
	if err != nil {
		return err
	}
	if o.json {
		return jsonLines(w, []api.Machine{*m})
	}
	_, err = fmt.Fprintf(w, "machine %d (%s): %s\n", m.Machine, strings.Join(m.Blades, " + "), machineText(m))
	return err
}

// machineOf returns the memory machine that a blade is to serve.
func machineOf(ctx context.Context, c *client.Client, blade string) (api.Machine, error) {
	all, err := c.Machines(ctx)
	if err != nil {
		return api.Machine{}, err
	}
	i := slices.IndexFunc(all, func(m api.Machine) bool { return slices.Contains(m.Blades, blade) })
	if i < 0 {
		return api.Machine{}, fmt.Errorf("blade %s serves no memory machine any more", blade)
	}
	return all[i], nil
}

// awaited reports whether what was asked of a blade is done, and if not, how far it is.
type awaited func(ctx context.Context, c *client.Client, blade string) (done bool, progress string, err error)

// mirrored waits until the machine of a blade has two copies.
func mirrored(ctx context.Context, c *client.Client, blade string) (bool, string, error) {
	m, err := machineOf(ctx, c, blade)
	return m.InService > 1 && m.Why == "" && m.Filling == nil, fmt.Sprintf("machine %d: %s", m.Machine, machineText(&m)), err
}

// returned waits until a blade is in service, and holds a copy if it is one of a pair.
func returned(ctx context.Context, c *client.Client, name string) (bool, string, error) {
	b, err := c.Blade(ctx, name)
	switch {
	case err != nil:
		return false, "", err
	case b.Status == "failed":
		return false, name + " has not said hello yet", nil
	case b.Kind == "memory":
		m, err := machineOf(ctx, c, name)
		if err != nil || len(m.Blades) < 2 {
			return true, "", err
		}
		return mirrored(ctx, c, name)
	}
	return true, "", nil
}

// drained waits until a blade is empty: it runs no node and holds no region that nobody
// else has.
func drained(ctx context.Context, c *client.Client, name string) (bool, string, error) {
	b, err := c.Blade(ctx, name)
	switch {
	case err != nil:
		return false, "", err
	case b.Status != "draining":
		return false, "", fmt.Errorf("%s is %s, not draining any more", name, b.Status)
	case b.Kind != "memory":
		return len(b.Nodes) == 0, fmt.Sprintf("%s: %d nodes left", name, len(b.Nodes)), nil
	}
	m, err := machineOf(ctx, c, name)
	if err != nil {
		return false, "", err
	}
	return !slices.Contains(m.Copies, name) || b.Used == 0 && b.Keeps == 0,
		fmt.Sprintf("%s: %s left, and the states or checkpoints of %d nodes", name, bytesText(b.Used), b.Keeps), nil
}

// Waiting: how often is asked, and how often somebody who reads lines is told.
const (
	askInterval  = 200 * time.Millisecond
	tellInterval = 2 * time.Second
)

// wait asks until what was wanted of a blade is done. It shows how far that is on standard
// error: on a terminal in one line, else now and then, and nothing of what is done at once.
func (o *clientOptions) wait(cmd *cobra.Command, c *client.Client, blade string, is awaited) error {
	p := progress{w: cmd.ErrOrStderr(), told: time.Now()}
	if w, ok := p.w.(*printable); ok && w.w == os.Stderr && isTerminal(os.Stderr) {
		p.terminal = os.Stderr
	}
	defer p.end()
	tick := time.NewTicker(askInterval)
	defer tick.Stop()
	for {
		done, text, err := is(cmd.Context(), c, blade)
		if err != nil || done {
			return err
		}
		p.show(text, time.Now())
		select {
		case <-tick.C:
		case <-cmd.Context().Done():
			return fmt.Errorf("%w: the change itself goes on; bifrost machines and bifrost blades show how far it is", cmd.Context().Err())
		}
	}
}

// progress shows how far something is.
type progress struct {
	w        io.Writer
	terminal io.Writer // below w, if that is one: one line that changes
	last     string
	told     time.Time
}

func (p *progress) show(text string, now time.Time) {
	switch {
	case text == p.last:
	case p.terminal != nil:
		fmt.Fprint(p.terminal, "\r")
		fmt.Fprint(p.w, text)
		fmt.Fprint(p.terminal, "\x1b[K")
		p.last = text
	case now.Sub(p.told) >= tellInterval:
		fmt.Fprintln(p.w, text)
		p.last, p.told = text, now
	}
}

// end finishes the line.
func (p *progress) end() {
	if p.terminal != nil && p.last != "" {
		fmt.Fprintln(p.w)
	}
}
