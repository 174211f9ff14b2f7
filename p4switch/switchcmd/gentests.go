package switchcmd

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/bifrost-rack/bifrost/p4switch/pathtests"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/spf13/cobra"
)

// genOptions are the flags of `bifrost switch gen-tests`.
type genOptions struct {
	out, datapath    string
	seed             uint64
	packets, entries int
}

// mostTried bounds the packets and entries of a search.
const mostTried = 10_000_000

func newSwitchGenTestsCmd() *cobra.Command {
	var o genOptions
	cmd := &cobra.Command{
		Use:   "gen-tests PROGRAM.json",
		Short: "Make a test script of a compiled program: a packet for each way through it that a search finds",
		Long: `Make a test script (STF) of a compiled program: entries, and a packet for each way through the
program that a search finds, with what comes out in Go. Then run it, in Go and, as root, in the kernel.
A way is the parser's states, the conditions' outcomes, what tables find, copies, drops. The search
derives entries and packets from the program; it is no proof that there are no other ways.
Ways whose outcome depends on the clock or on random numbers are left out.`,
		Example: "  bifrost switch gen-tests router.json\n  bifrost switch test router.stf   # after a change of the program",
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.run(args[0], cmd.OutOrStdout()) },
	}
	f := cmd.Flags()
	f.StringVarP(&o.out, "output", "o", "", "the script's `FILE` (default: PROGRAM.stf)")
	f.StringVar(&o.datapath, "datapath", "auto", "what the script is run against: go, ebpf, or auto (go, and ebpf too where it can)")
	f.Uint64Var(&o.seed, "seed", 1, "seed of entries and packets; the same seed makes the same script")
	f.IntVar(&o.packets, "packets", 20_000, "how many packets to try")
	f.IntVar(&o.entries, "entries", 60, "how many entries to give the tables")
	return cmd
}

func (o *genOptions) run(program string, w io.Writer) error {
	if o.packets < 1 || o.packets > mostTried || o.entries < 0 || o.entries > mostTried {
		return fmt.Errorf("--packets %d, --entries %d: choose at most %d, and a packet at least", o.packets, o.entries, mostTried)
	}
	b, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	prog, err := v1model.Load(b)
	if err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	r, err := pathtests.Generate(prog, pathtests.Options{Seed: o.seed, Packets: o.packets, Entries: o.entries})
	if err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	out := o.out
	if out == "" {
		out = strings.TrimSuffix(program, ".json") + ".stf"
	}
	if err := os.WriteFile(out, r.Script, 0o644); err != nil { //nolint:gosec // for everybody to read
		return err
	}
	fmt.Fprintf(w, "%s: %d ways of %d packets tried; %d more depend on the clock or on random numbers\n", out, r.Ways, o.packets, r.Open)
	return (&scriptOptions{program: program, datapath: o.datapath}).run([]string{out}, w)
}
