package switchcmd

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/shared/metrics"
	"github.com/bifrost-rack/bifrost/p4switch/shared/process"
	"github.com/bifrost-rack/bifrost/p4switch/shared/sdnotify"
	"github.com/bifrost-rack/bifrost/p4switch/softswitch"
	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

// New is the command of the switch, with those that speak to one. It is called by a name, as in "bifrost switch", and build is what
// it says of itself.
func New(name, build string) *cobra.Command {
	o := switchOptions{build: build}
	cmd := &cobra.Command{
		Use:   "switch [flags] [PROGRAM.json]",
		Short: "Run the software switch: any v1model program that p4c compiles, behind P4Runtime",
		Long: `Run a software switch on Linux interfaces. A P4Runtime controller brings the program,
or the command line names it: the JSON file that p4c (p4c-bm2-ss) writes, and its
P4Info. Without P4Info the switch forwards by the entries that the program declares,
until a controller brings the program again with its P4Info.

Flags have the names of bmv2's simple_switch_grpc where they mean the same. Target
options may follow "--", as they do there. If bifrost is called by the name
simple_switch_grpc (a symbolic link), it is the switch alone, so that scripts made for
bmv2 run unchanged. It then serves TCP without TLS, as bmv2 does, at ` + bmv2Address + `
by default. The switch accepts these flags of bmv2 and ignores them; the log says why:
` + ignoredNames() + `.

Attaching interfaces needs root, or CAP_NET_RAW.`,
		Example: `  # Two interfaces. A controller will bring the program.
  sudo bifrost switch -i 0@veth0 -i 1@veth1 --device-id 1 --cpu-port 510

  # Start with a program, serve P4Runtime on a Unix socket, capture every packet.
  p4c-bm2-ss --p4runtime-files prog.p4info.txt -o prog.json prog.p4
  sudo bifrost switch -i 1@eth1 -i 2@eth2 --p4info prog.p4info.txt prog.json \
      --grpc-server-addr unix:/run/switch.sock --pcap /tmp

  # Serve P4Runtime to other machines, with TLS and client certificates.
  sudo bifrost switch -i 1@eth1 --grpc-server-addr 0.0.0.0:9559 --grpc-server-ssl \
      --grpc-server-cert cert.pem --grpc-server-key key.pem \
      --grpc-server-cacert ca.pem --grpc-server-with-client-auth

  # Keep forwarding while the switch is killed and started again, or updated
  # (kill -HUP ends the process and leaves everything in place).
  sudo bifrost switch -i 0@veth0 -i 1@veth1 --keep s1

  # Log what happens to each packet: tables, entries, actions.
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
	cmd.AddCommand(newSwitchEntryCmd(), newSwitchEntriesCmd(), newSwitchTraceCmd(), newSwitchPageCmd(), newSwitchTestCmd(), newSwitchGenTestsCmd())
	for _, c := range append(cmd.Commands(), cmd) {
		c.Long, c.Example = strings.ReplaceAll(c.Long, usual, name), strings.ReplaceAll(c.Example, usual, name)
	}
	return cmd
}

// usual is the name that texts have for the command.
const usual = "bifrost switch"

// Named puts the name that the command is called by into what an error says.
func Named(err error, name string) string {
	return strings.ReplaceAll(err.Error(), usual, name)
}

// run runs the switch until ctx ends.
func (o *switchOptions) run(ctx context.Context, flags *pflag.FlagSet) (err error) {
	process.CollectRarely()
	log, err := o.logging.Open()
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
		stop, err := metrics.Serve(ctx, o.metrics, Metrics(sw))
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
		return nil, errors.New("--no-p4 starts without a program: leave out --no-p4 or the program")
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
			"rx_drops", p.RxOversize+p.RxOffload+p.RxShort+p.RxFull+p.Looped, "tx_drops", p.TxFull+p.TxTooLong+p.TxDown+p.TxOffload)
	}
	for _, t := range sw.Tables() {
		log.Info("table", "table", t.Table, "hits", t.Hits, "misses", t.Misses)
	}
}

// switchOptions are the flags of `bifrost switch`.
type switchOptions struct {
	build      string // what the command says of itself
	interfaces interfaceFlags
	deviceID   uint64
	cpuPort    uint16
	program    string
	p4info     string
	noP4       bool
	pcap       string
	datapath   string
	metrics    string
	keep       string
	discard    bool

	grpcAddr             string
	socketMode           string
	insecure             bool
	ssl, clientAuth      bool
	cacert, cert, keyPEM string

	logging              process.LogOptions
	version, jsonVersion bool
}

func (o *switchOptions) register(f *pflag.FlagSet) {
	f.VarP(&o.interfaces, "interface", "i", "attach interface NAME as port PORT (repeatable)")
	f.Uint64Var(&o.deviceID, "device-id", 1, "P4Runtime device id")
	f.Uint16Var(&o.cpuPort, "cpu-port", 0, "port for PacketIn and PacketOut, 1 to 510 (default: no PacketIn or PacketOut)")
	f.StringVar(&o.p4info, "p4info", "", "P4Info of the program on the command line (text; binary if named .bin or .pb)")
	f.BoolVar(&o.noP4, "no-p4", false, "start without a program (the default if none is named)")
	f.StringVar(&o.pcap, "pcap", "", "capture each port's packets in `DIR`/NAME_in.pcap and NAME_out.pcap")
	f.Lookup("pcap").NoOptDefVal = "."
	f.StringVar(&o.datapath, "datapath", "auto", "what moves packets: ebpf (in the kernel), go (portable), or auto (ebpf if it can run the program)")

	f.StringVar(&o.keep, "keep", "", "keep program and entries under `NAME` while no switch runs: the kernel goes on forwarding packets when this process is killed, and the next process with the same NAME takes over")
	f.BoolVar(&o.discard, "discard", false, "remove what a former switch has kept under the NAME of --keep, and begin anew")

	f.StringVar(&o.metrics, "metrics-addr", "", "serve counters of ports and tables, and what the process uses, to Prometheus at `ADDRESS`, path /metrics: HOST:PORT or unix:PATH")

	f.StringVar(&o.grpcAddr, "grpc-server-addr", DefaultAddress, "serve P4Runtime at `ADDRESS`: unix:PATH, or HOST:PORT with TLS and client certificates")
	f.StringVar(&o.socketMode, "grpc-server-mode", "0600", "`MODE` of the Unix socket in octal, which says who may connect: 0600 is this user, 0660 also the group")
	f.BoolVar(&o.insecure, "grpc-server-insecure", false, "serve HOST:PORT without TLS, or without client certificates: whoever reaches the address then controls the switch")
	f.BoolVar(&o.ssl, "grpc-server-ssl", false, "serve P4Runtime with TLS")
	f.StringVar(&o.cert, "grpc-server-cert", "", "PEM `FILE` with the server's certificate")
	f.StringVar(&o.keyPEM, "grpc-server-key", "", "PEM `FILE` with the server's key")
	f.StringVar(&o.cacert, "grpc-server-cacert", "", "PEM `FILE` with the CA that has signed the controllers' certificates")
	f.BoolVar(&o.clientAuth, "grpc-server-with-client-auth", false, "require a certificate from controllers")

	o.logging.Trace = true
	o.logging.Register(f, "L")
	f.Bool("log-console", false, "log to standard error (the default)")
	o.registerBMv2(f)
}

var loaders = map[string]softswitch.Loader{
	"auto": fitting(softswitch.LoadAuto), "ebpf": fitting(softswitch.LoadEBPF), "go": fitting(softswitch.LoadGo),
}

// fitting gives Go's scheduler what suits the executor. In the kernel's, packets
// need no processor of Go's. With the Go executor flooded ports keep one each, and
// what controllers ask for would wait some 10 ms for one at every step: with more
// processors than CPUs the kernel shares these out.
func fitting(load softswitch.Loader) softswitch.Loader {
	return func(deviceConfig []byte, env softswitch.Env) (softswitch.Executor, error) {
		x, err := load(deviceConfig, env)
		_, kernel := x.(interface {
			AttachPort(num datapath.Port, name string, wait bool) error
		})
		switch {
		case err != nil:
		case kernel:
			process.Processors(1)
		default:
			process.Processors(3 * runtime.NumCPU())
		}
		return x, err
	}
}

// config turns the flags into a switch's configuration.
func (o *switchOptions) config(log *slog.Logger) (softswitch.Config, error) {
	cfg := softswitch.Config{
		DeviceID: o.deviceID, CPUPort: datapath.Port(o.cpuPort),
		CaptureDir: o.pcap, Keep: o.keep, Log: log,
	}
	var ok bool
	if cfg.Load, ok = loaders[o.datapath]; !ok {
		return cfg, fmt.Errorf("--datapath %s: choose auto, ebpf or go", o.datapath)
	}
	if o.discard {
		if o.keep == "" {
			return cfg, errors.New("--discard removes what --keep NAME has kept: add --keep NAME")
		}
		if err := softswitch.Discard(o.keep); err != nil {
			return cfg, err
		}
	}
	if o.pcap != "" {
		if st, err := os.Stat(o.pcap); err != nil || !st.IsDir() {
			return cfg, fmt.Errorf("--pcap %s is no directory: create it first", o.pcap)
		}
	}
	var err error
	cfg.TLS, err = o.tls()
	return cfg, err
}

// private tells whether only those who are meant to can reach P4Runtime.
func (o *switchOptions) private() bool {
	return strings.HasPrefix(o.grpcAddr, "unix:") || o.ssl && o.clientAuth
}

// mode is the mode of the Unix socket. A TCP address is refused if whoever reaches it
// would control the switch.
func (o *switchOptions) mode() (os.FileMode, error) {
	if !o.private() && !o.insecure {
		return 0, fmt.Errorf("--grpc-server-addr %s: whoever reaches it would control the switch: use unix:PATH, or add --grpc-server-ssl and --grpc-server-with-client-auth, or accept it with --grpc-server-insecure", o.grpcAddr)
	}
	mode, err := strconv.ParseUint(o.socketMode, 8, 32)
	if err != nil || mode&^0o777 != 0 {
		return 0, fmt.Errorf("--grpc-server-mode %s: write a mode in octal, such as 0600 or 0660", o.socketMode)
	}
	return os.FileMode(mode), nil
}

// tls is the TLS configuration; nil without --grpc-server-ssl.
func (o *switchOptions) tls() (*tls.Config, error) {
	if !o.ssl {
		if o.cert != "" || o.keyPEM != "" || o.cacert != "" || o.clientAuth {
			return nil, errors.New("certificates are given but TLS is off: add --grpc-server-ssl")
		}
		return nil, nil
	}
	if o.cert == "" || o.keyPEM == "" {
		return nil, errors.New("--grpc-server-ssl needs --grpc-server-cert and --grpc-server-key")
	}
	pair, err := tls.LoadX509KeyPair(o.cert, o.keyPEM)
	if err != nil {
		return nil, fmt.Errorf("server certificate: %w", err)
	}
	cfg := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if o.cacert != "" {
		pem, err := os.ReadFile(o.cacert)
		if err != nil {
			return nil, fmt.Errorf("--grpc-server-cacert: %w", err)
		}
		cfg.ClientCAs = x509.NewCertPool()
		if !cfg.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--grpc-server-cacert: %s holds no certificate", o.cacert)
		}
		cfg.ClientAuth = tls.VerifyClientCertIfGiven
	}
	if o.clientAuth {
		if o.cacert == "" {
			return nil, errors.New("--grpc-server-with-client-auth needs --grpc-server-cacert")
		}
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return cfg, nil
}

// interfaceFlags is the value of -i, PORT@NAME.
type interfaceFlags []softswitch.Interface

// String implements pflag.Value.
func (f *interfaceFlags) String() string {
	var s []string
	for _, i := range *f {
		s = append(s, fmt.Sprintf("%d@%s", i.Port, i.Name))
	}
	return strings.Join(s, ",")
}

// Type implements pflag.Value.
func (f *interfaceFlags) Type() string { return "PORT@NAME" }

// Set implements pflag.Value.
func (f *interfaceFlags) Set(s string) error {
	num, name, ok := strings.Cut(s, "@")
	n, err := strconv.ParseUint(num, 10, 9)
	if !ok || err != nil || name == "" || datapath.Port(n) >= softswitch.DropPort {
		return fmt.Errorf("%q is not PORT@NAME with a port from 0 to %d, such as 0@veth0", s, softswitch.DropPort-1)
	}
	for _, i := range *f {
		if i.Port == datapath.Port(n) || i.Name == name {
			return fmt.Errorf("%s: port %d or interface %s is given twice", s, n, name)
		}
	}
	*f = append(*f, softswitch.Interface{Port: datapath.Port(n), Name: name})
	return nil
}

func switchMetric(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName("bifrost_switch", "", name), help, labels, nil)
}

var (
	metricUp       = switchMetric("port_up", "Whether the port's interface is there and up.", "port", "interface")
	metricPackets  = switchMetric("port_packets_total", "Packets that came in or left.", "port", "interface", "direction")
	metricBytes    = switchMetric("port_bytes_total", "Bytes that came in or left.", "port", "interface", "direction")
	metricDropped  = switchMetric("port_dropped_packets_total", "Packets that could not come in or leave.", "port", "interface", "direction", "reason")
	metricVanished = switchMetric("port_vanished_total", "Times that the port's interface was gone.", "port", "interface")
	metricLookups  = switchMetric("table_lookups_total", "Lookups in a table, by whether they found an entry.", "table", "result")
	metricLost     = switchMetric("lost_packets_total", "Packets for ports that are not attached.")
	metricPacketIn = switchMetric("packet_in_dropped_total", "Packets for the controller that did not get to one.", "reason")
	metricDigest   = switchMetric("digests_dropped_total", "Digest samples that nobody had enabled, or without room.")
	metricOut      = switchMetric("packet_outs_total", "Packets from controllers.")
)

// Metrics tells Prometheus of a switch's counters. What it describes does not depend on the switch, which may be nil for that.
func Metrics(sw *softswitch.Switch) prometheus.Collector { return switchMetrics{sw} }

type switchMetrics struct{ sw *softswitch.Switch }

// Describe implements prometheus.Collector.
func (m switchMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		metricUp, metricPackets, metricBytes, metricDropped, metricVanished, metricLookups, metricLost, metricPacketIn, metricDigest, metricOut,
	} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m switchMetrics) Collect(to chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	for _, p := range m.sw.Ports() {
		port := strconv.Itoa(int(p.Port))
		up := 0.0
		if p.Up {
			up = 1
		}
		to <- prometheus.MustNewConstMetric(metricUp, prometheus.GaugeValue, up, port, p.Name)
		count(metricPackets, p.RxPackets, port, p.Name, "in")
		count(metricPackets, p.TxPackets, port, p.Name, "out")
		count(metricBytes, p.RxBytes, port, p.Name, "in")
		count(metricBytes, p.TxBytes, port, p.Name, "out")
		count(metricVanished, p.Vanished, port, p.Name)
		for _, d := range []struct {
			direction, reason string
			n                 uint64
		}{
			{"in", "oversize", p.RxOversize}, {"in", "offload", p.RxOffload}, {"in", "short", p.RxShort}, {"in", "full", p.RxFull}, {"in", "looped", p.Looped},
			{"out", "full", p.TxFull}, {"out", "too_long", p.TxTooLong}, {"out", "down", p.TxDown}, {"out", "offload", p.TxOffload},
		} {
			count(metricDropped, d.n, port, p.Name, d.direction, d.reason)
		}
	}
	for _, t := range m.sw.Tables() {
		count(metricLookups, t.Hits, t.Table, "hit")
		count(metricLookups, t.Misses, t.Table, "miss")
	}
	count(metricLost, m.sw.Lost())
	s := m.sw.Server().Stats()
	count(metricPacketIn, s.PacketInDrops, "no_room")
	count(metricPacketIn, s.PacketInErrors, "no_header")
	count(metricDigest, s.DigestDrops)
	count(metricOut, s.PacketOuts)
}
