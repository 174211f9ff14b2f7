package switchcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/softswitch"
	"github.com/bifrost-rack/bifrost/p4switch/trace"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// switchTraceOptions are the flags of `bifrost switch trace`.
type switchTraceOptions struct {
	Client
	json         bool
	sample, rate uint32
	count        int
	period       time.Duration
}

func newSwitchTraceCmd() *cobra.Command {
	var o switchTraceOptions
	cmd := &cobra.Command{
		Use:   "trace [FILTER...]",
		Short: "Show what becomes of packets in a running switch: parser states, tables, entries, actions, registers, drops",
		Long: `Show what becomes of packets in a running switch, in the kernel or in Go: the parser states and tables
that a packet meets, with its keys, the entry that is hit and the action, what it does to registers,
and how it ends. Ctrl-C ends it.

A packet is shown if it is all that the filters say when the parser has ended:
  FIELD=VALUE  FIELD=VALUE/LENGTH  FIELD=VALUE&MASK  FIELD=LOW..HIGH  HEADER (which must be valid)
"port" is the port that the packet came by. The last parts of a name are enough. Values are numbers
(10, 0xa, 0b1010), IPv4, IPv6 and MAC addresses.

Without a trace the switch does nothing for it. Under load packets are left out of the trace, and
counted; the switch drops none because of it. There is one trace at a time.`,
		Example: `  bifrost switch trace
  bifrost switch trace port=1 ipv4.dstAddr=10.0.2.0/24 --count 10
  bifrost switch trace tcp.dstPort=80..443 --sample 1000 --json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	o.Register(f, "grpc-addr", "a controller's")
	f.BoolVar(&o.json, "json", false, "print each packet as a line of JSON")
	f.Uint32Var(&o.sample, "sample", 1, "show one of `N` packets that the filters let through")
	f.Uint32Var(&o.rate, "rate", trace.DefaultRate, "show at most `N` packets a second")
	f.IntVar(&o.count, "count", 0, "end behind `N` packets (default: never)")
	f.DurationVar(&o.period, "for", 0, "end after so long, from when the switch traces (default: never)")
	return cmd
}

// errEnough ends a trace that has shown what was asked for.
var errEnough = errors.New("enough")

func (o *switchTraceOptions) run(ctx context.Context, filter []string, out, notes io.Writer) error {
	if o.rate == 0 || o.rate > trace.MaxRate {
		return fmt.Errorf("--rate %d: choose 1 to %d packets a second", o.rate, trace.MaxRate)
	}
	conn, err := o.Dial()
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // only read from
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	shown := 0
	began := func() {
		fmt.Fprintln(notes, "the switch traces; Ctrl-C ends it")
		if o.period > 0 {
			time.AfterFunc(o.period, cancel) // from now on, not while the connection is made
		}
	}
	counts, err := softswitch.WatchTraces(ctx, conn, trace.Spec{Filter: filter, Sample: o.sample, Rate: o.rate}, began, func(p *trace.Packet) error {
		if err := o.print(out, p); err != nil {
			return err
		}
		if shown++; shown == o.count {
			return errEnough
		}
		return nil
	})
	switch s, _ := status.FromError(err); {
	case err == nil, errors.Is(err, errEnough):
	case s.Code() == codes.Unavailable && shown == 0 && counts == (trace.Counts{}):
		return fmt.Errorf("no switch answers at %s: %s (see --grpc-addr)", o.Address, s.Message())
	case s.Code() == codes.Unimplemented && counts == (trace.Counts{}):
		return fmt.Errorf("the switch at %s cannot trace: %s", o.Address, s.Message())
	default:
		return errors.New(s.Message())
	}
	fmt.Fprintf(notes, "%d packets shown; %d matched, %d left out by --rate, %d lost since nobody read them in time\n", shown, counts.Matched, counts.Skipped, counts.Lost)
	return nil
}

func (o *switchTraceOptions) print(w io.Writer, p *trace.Packet) error {
	if !o.json {
		_, err := io.WriteString(w, p.String())
		return err
	}
	return json.NewEncoder(w).Encode(p)
}
