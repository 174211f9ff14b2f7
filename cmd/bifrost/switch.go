package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/bifrost-rack/bifrost/internal/metrics"
	"github.com/bifrost-rack/bifrost/internal/sdnotify"
	"github.com/bifrost-rack/bifrost/p4/softswitch"
	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

func newSwitchCmd() *cobra.Command {
	var o switchOptions
	cmd := &cobra.Command{
		Use:   "switch [flags] [PROGRAM.json]",
		Short: "Run the software switch: any v1model program that p4c compiles, behind P4Runtime",
		Long: `Run a software switch on Linux interfaces. It takes the program from a P4Runtime
controller, or from the command line: the JSON that p4c (p4c-bm2-ss) writes,
with its P4Info. Without P4Info it forwards by the entries that it declares, until
a controller brings the program again with its P4Info.

Flags are those of bmv2's simple_switch_grpc where they mean the same, and target
options may follow "--" as there. Under the name simple_switch_grpc (a symbolic
link) this command is the switch alone, so scripts made for bmv2 run unchanged:
it serves TCP without TLS then, as bmv2 does, at ` + bmv2Address + ` by default.
These flags of bmv2's are taken and ignored, and the log says why:
` + ignoredNames() + `.

Attaching interfaces needs root, or CAP_NET_RAW.`,
		Example: `  # Two interfaces; a controller will bring the program.
  sudo bifrost switch -i 0@veth0 -i 1@veth1 --device-id 1 --cpu-port 510

  # A program from the start, P4Runtime on a Unix socket, every packet captured.
  p4c-bm2-ss --p4runtime-files prog.p4info.txt -o prog.json prog.p4
  sudo bifrost switch -i 1@eth1 -i 2@eth2 --p4info prog.p4info.txt prog.json \
      --grpc-server-addr unix:/run/switch.sock --pcap /tmp

  # P4Runtime for other machines, with TLS and client certificates.
  sudo bifrost switch -i 1@eth1 --grpc-server-addr 0.0.0.0:9559 --grpc-server-ssl \
      --grpc-server-cert cert.pem --grpc-server-key key.pem \
      --grpc-server-cacert ca.pem --grpc-server-with-client-auth

  # Forwarding goes on while the switch is killed and started again, or updated
  # (kill -HUP ends it and leaves everything in place).
  sudo bifrost switch -i 0@veth0 -i 1@veth1 --keep s1

  # What happens to each packet: tables, entries, actions.
  sudo bifrost switch -i 0@veth0 -i 1@veth1 --log-level trace`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			// bmv2 wants its target's options behind "--"; so do scripts made for it.
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				if err := cmd.Flags().Parse(args[dash:]); err != nil {
					return err
				}
				args = append(args[:dash:dash], cmd.Flags().Args()...)
			}
			if o.versions(cmd.Println) {
				return nil
			}
			if err := o.arguments(args); err != nil {
				return err
			}
			return o.run(cmd.Context(), cmd.Flags())
		},
	}
	o.register(cmd.Flags())
	cmd.AddCommand(newSwitchEntryCmd(), newSwitchEntriesCmd())
	return cmd
}

// run runs the switch until ctx ends.
func (o *switchOptions) run(ctx context.Context, flags *pflag.FlagSet) (err error) {
	collectRarely()
	log, err := o.logging.open()
	if err != nil {
		return err
	}
	warnIgnored(flags, log)
	cfg, err := o.config(log)
	if err != nil {
		return err
	}
	sw, err := softswitch.New(cfg)
	if err != nil {
		return err
	}
	leave := false // what is kept to the next switch
	defer func() {
		if !leave {
			err = errors.Join(err, sw.Close())
		}
	}()
	if leave, err = o.pipeline(sw, log); err != nil {
		return err
	}
	if err := sw.AttachInterfaces(o.interfaces); err != nil {
		return err
	}
	for _, i := range o.interfaces {
		log.Info("port attached", "port", i.Port, "interface", i.Name)
	}
	if o.metrics != "" {
		stop, err := metrics.Serve(ctx, o.metrics, switchMetrics{sw})
		if err != nil {
			return err
		}
		defer stop()
	}
	mode, err := o.mode()
	if err != nil {
		return err
	}
	l, err := listen(ctx, o.grpcAddr, mode)
	if err != nil {
		return err
	}
	if !o.private() {
		log.Warn("whoever reaches the P4Runtime address controls the switch", "address", l.Addr().String())
	}
	served := make(chan error, 1)
	go func() { served <- sw.Serve(l) }()
	log.Info("P4Runtime is served", "address", l.Addr().String(), "device", o.deviceID, "tls", cfg.TLS != nil)
	if err := sdnotify.Ready(); err != nil {
		log.Warn("cannot tell that the switch is ready", "error", err)
	}
	hangup := make(chan os.Signal, 1)
	if o.keep != "" {
		signal.Notify(hangup, syscall.SIGHUP)
		defer signal.Stop(hangup)
	}
	select {
	case <-hangup:
		// What is kept outlives a killed process, and so it does this one.
		leave = true
		log.Info("the switch ends; what it keeps is left to the next one", "keep", o.keep)
		return nil
	case <-ctx.Done():
		leave = false
		logCounters(log, sw)
		return nil
	case err := <-served:
		return err
	}
}

// pipeline takes over what a former switch has kept, or else commits the program
// named on the command line. One that is named and differs replaces what was kept.
// With took, there is something that must not be lost if the start fails.
func (o *switchOptions) pipeline(sw *softswitch.Switch, log *slog.Logger) (took bool, err error) {
	named, err := o.load()
	if err != nil {
		return o.keep != "", err
	}
	kept, err := sw.Restore()
	if err != nil {
		return true, fmt.Errorf("%w (it still forwards; start the version that kept it, or give up its entries with `bifrost switch --keep %s --discard`)", err, o.keep)
	}
	if kept != nil {
		log.Info("taken over from the switch before", "keep", o.keep)
	}
	if named == nil || kept != nil && bytes.Equal(kept.GetP4DeviceConfig(), named.GetP4DeviceConfig()) && proto.Equal(kept.GetP4Info(), named.GetP4Info()) {
		return kept != nil, nil
	}
	if err := sw.Server().LoadConfig(named); err != nil {
		return kept != nil, fmt.Errorf("%s: %w", o.program, err)
	}
	return kept != nil, nil
}

// load reads the program named on the command line, if any.
func (o *switchOptions) load() (*p4v1.ForwardingPipelineConfig, error) {
	switch {
	case o.program == "" && o.p4info == "":
		return nil, nil //nolint:nilnil // as documented
	case o.program == "":
		return nil, errors.New("--p4info needs a program: name p4c's JSON file as well")
	case o.noP4:
		return nil, errors.New("--no-p4 starts without a program: leave it out, or the program")
	}
	program, err := os.ReadFile(o.program)
	if err != nil {
		return nil, err
	}
	info := &configv1.P4Info{} // nothing for a controller to write
	if o.p4info != "" {
		if info, err = readP4Info(o.p4info); err != nil {
			return nil, err
		}
	}
	return &p4v1.ForwardingPipelineConfig{P4Info: info, P4DeviceConfig: program}, nil
}

// readP4Info reads a P4Info in text format or, by its name, in binary.
func readP4Info(path string) (*configv1.P4Info, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	info := &configv1.P4Info{}
	unmarshal := prototext.Unmarshal
	if strings.HasSuffix(path, ".bin") || strings.HasSuffix(path, ".pb") {
		unmarshal = proto.Unmarshal
	}
	if err := unmarshal(b, info); err != nil {
		return nil, fmt.Errorf("%s is no P4Info: %w", path, err)
	}
	return info, nil
}

// listen opens HOST:PORT or unix:PATH. A socket file that a killed switch has
// left behind is replaced.
func listen(ctx context.Context, addr string, mode os.FileMode) (net.Listener, error) {
	network, address := "tcp", addr
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		network, address = "unix", "/"+strings.TrimLeft(path, "/")
		if !strings.HasPrefix(path, "/") {
			address = path
		}
		if conn, err := net.Dial("unix", address); err == nil {
			_ = conn.Close()
		} else if errors.Is(err, syscall.ECONNREFUSED) {
			_ = os.Remove(address)
		}
	}
	var lc net.ListenConfig
	former := syscall.Umask(int(0o777 &^ mode)) // nobody else connects between bind and a chmod
	l, err := lc.Listen(ctx, network, address)
	syscall.Umask(former)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s is in use, perhaps by another switch: stop that one, or choose another --grpc-server-addr", addr)
	case err != nil:
		return nil, fmt.Errorf("--grpc-server-addr %s (HOST:PORT or unix:PATH): %w", addr, err)
	}
	return l, nil
}

// logCounters reports what each port has carried, and of the tables the lookups.
func logCounters(log *slog.Logger, sw *softswitch.Switch) {
	for _, p := range sw.Ports() {
		log.Info("port", "port", p.Port, "interface", p.Name, "rx", p.RxPackets, "tx", p.TxPackets,
			"rx_drops", p.RxOversize+p.RxOffload+p.RxFull+p.Looped, "tx_drops", p.TxFull+p.TxTooLong+p.TxDown+p.TxOffload)
	}
	for _, t := range sw.Tables() {
		log.Info("table", "table", t.Table, "hits", t.Hits, "misses", t.Misses)
	}
}
