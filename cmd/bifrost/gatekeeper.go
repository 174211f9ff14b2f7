package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin"
	"github.com/bifrost-rack/bifrost/gatekeeper/history"
	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/gatekeeper/spans"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/pairing"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4switch/shared/process"
	"github.com/bifrost-rack/bifrost/p4switch/shared/sdnotify"
	"github.com/bifrost-rack/bifrost/p4switch/switchcmd"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newGatekeeperCmd() *cobra.Command {
	var o gatekeeperOptions
	cmd := &cobra.Command{
		Use:   "gatekeeper --switch ADDRESS",
		Short: "Run the Gatekeeper: the control plane of a rack",
		Long: `Run the Gatekeeper of one rack. The Gatekeeper loads the P4 program into a switch that
speaks P4Runtime (bifrost switch, or bmv2's simple_switch_grpc), and registers blades,
nodes and services. The switch holds each packet that needs new rules. The Gatekeeper
writes the rules, and then lets the packet go on.

If several Gatekeepers run, the one with the highest election id is in charge, and the
others end. By default, the Gatekeeper that was started last has the highest id. A
Gatekeeper waits for a switch that is away or restarts, and then repairs its tables.

With --log, the Gatekeeper logs each decision before it tells anybody. When it is
started again with the same directory, it knows the blades, nodes, services, regions
and who has rights to these, and the rack goes on. Without --log, all of them begin anew.

--port binds a port of the switch to a blade. The blade registers at that port only,
with the name and the kind that --port gives. So a program on one blade cannot take the
place of another blade. --open admits every blade at ports that are not bound. One of
the two flags is required.

The Gatekeeper serves an admin API and a page to watch the rack. The commands that
watch or operate a rack, such as bifrost status, use this API. bifrost page opens the
page. Over TCP the API asks for a token. A Unix socket is for the user who started the
Gatekeeper, and for root.`,
		Example: `  # The switch of this machine, and any blade at any of its ports.
  bifrost gatekeeper --open

  # A compute blade at port 1, and memory machine 1 with 64 GiB at port 2.
  bifrost gatekeeper -p 1=c1:compute -p 2=m1:memory:1:68719476736

  # A switch behind a Unix socket, as bifrost rack up starts it.
  bifrost gatekeeper --open --switch unix:/run/bifrost/switch.sock --mtu 9000

  # A switch on another machine, with TLS and a certificate for the Gatekeeper.
  bifrost gatekeeper --open --switch tor1.example:9559 --tls-ca ca.pem --tls-cert cert.pem --tls-key key.pem

  # The admin API for other machines, with TLS, and for this machine.
  bifrost gatekeeper --open --admin-addr :8045,unix:/run/bifrost.sock --admin-tls-cert cert.pem --admin-tls-key key.pem

  # A Gatekeeper that goes on from its log when it is started again.
  bifrost gatekeeper --open --log /var/lib/bifrost/log

  # m1 and m2 each hold a copy of the same memory, so that either may die. m3 is alone.
  bifrost gatekeeper --machine m1+m2 --machine m3

  # Export every call as a span, to Jaeger or another OpenTelemetry collector.
  bifrost gatekeeper --open --otlp-endpoint http://localhost:4318

  # Log every step.
  bifrost gatekeeper --open --log-level debug`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.register(cmd.Flags())
	return cmd
}

// run runs the Gatekeeper until ctx ends.
func (o *gatekeeperOptions) run(ctx context.Context) (err error) {
	process.CollectRarely()
	process.Processors(1)
	log, err := o.logging.Open()
	if err != nil {
		return err
	}
	if o.deviceID == 0 {
		return errors.New("--device-id 0 is reserved by P4Runtime: choose another")
	}
	election, err := parseElection(o.election)
	if err != nil {
		return fmt.Errorf("--election-id %s: %w", o.election, err)
	}
	machines, err := o.memoryMachines()
	if err != nil {
		return err
	}
	conn, err := o.Dial(p4rtclient.DialOptions()...)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is lost by it
	store, err := o.openLog()
	if err != nil {
		return err
	}
	if store != nil {
		defer func() { err = errors.Join(err, store.Close()) }()
	}
	cfg := gatekeeper.Config{
		Conn: conn, DeviceID: o.deviceID, Election: election, DSMPrefix: o.dsmPrefix, MTU: o.mtu, Heartbeat: o.heartbeat, Store: store, Logger: log,
		Ports: o.ports, Open: o.open, ShareExports: o.share, TCP: o.tcp, Rates: o.rates, Machines: machines, PairByNumber: true, FillRate: o.fillRate,
	}
	export, err := exportSpans(ctx, o.otlp, &cfg)
	if err != nil {
		return fmt.Errorf("--otlp-endpoint: %w", err)
	}
	gk, err := gatekeeper.New(cfg)
	if err != nil {
		return err
	}
	past := o.history(log)
	server, listeners, err := o.admin.open(gk, past, log)
	if err != nil {
		return err
	}
	ending, end := context.WithCancel(ctx)
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() { // it ends first, since it asks the Gatekeeper once more
		defer cancel()
		past.Run(ending, gk)
	})
	events := gk.Subscribe(ctx)
	wg.Go(func() { tellReady(events, log) })
	export(ctx, &wg)
	wg.Go(func() { serveAdmin(ctx, server, listeners, log) })
	log.Info("gatekeeper starts", "switch", o.Address, "device", o.deviceID)
	err = gk.Run(ctx)
	end()
	wg.Wait()
	if errors.Is(err, p4rtclient.ErrNotPrimary) {
		return fmt.Errorf("%w: another Gatekeeper is in charge of %s; a higher --election-id takes over", err, o.Address)
	}
	return err
}

// history is the one beside the log; without a log it is in memory.
func (o *gatekeeperOptions) history(log *slog.Logger) *history.History {
	if o.log == "" {
		return history.New("", log)
	}
	return history.New(filepath.Join(o.log, "history"), log)
}

// openLog opens the log, if there is to be one.
func (o *gatekeeperOptions) openLog() (*wal.Log, error) {
	if o.log == "" {
		if o.logSync {
			return nil, errors.New("--log-sync without a log: add --log")
		}
		return nil, nil
	}
	store, err := wal.Open(o.log, wal.Options{Sync: o.logSync})
	if err != nil {
		return nil, fmt.Errorf("--log %s: %w", o.log, err)
	}
	return store, nil
}

// tellReady tells whoever started us when the switch obeys for the first time,
// and then lets events pass until there are no more.
func tellReady(events <-chan gatekeeper.Event, log *slog.Logger) {
	told := false
	for e := range events {
		if e.Kind != gatekeeper.SwitchConnected || told {
			continue
		}
		told = true
		if err := sdnotify.Ready(); err != nil {
			log.Warn("cannot tell that the Gatekeeper is ready", "error", err)
		}
	}
}

// The defaults that the help shows.
const (
	defaultHeartbeat = time.Second
)

// exportSpans has calls exported as OpenTelemetry spans, if somebody wants that; the
// returned function does so until its context ends.
func exportSpans(ctx context.Context, endpoint string, cfg *gatekeeper.Config) (start func(context.Context, *sync.WaitGroup), err error) {
	if !spans.Wanted(endpoint) {
		return func(context.Context, *sync.WaitGroup) {}, nil
	}
	e, err := spans.New(ctx, endpoint, versionString(), cfg.Logger)
	if err != nil {
		return nil, err
	}
	cfg.Over = e.Over
	return func(ctx context.Context, wg *sync.WaitGroup) {
		cfg.Logger.Info("calls are exported as OpenTelemetry spans", "endpoint", endpoint)
		wg.Go(func() {
			if err := e.Run(ctx); err != nil {
				cfg.Logger.Warn("OpenTelemetry spans", "error", err)
			}
		})
	}, nil
}

// gatekeeperOptions are the flags of `bifrost gatekeeper`.
type gatekeeperOptions struct {
	switchcmd.Client
	deviceID  uint64
	election  string
	dsmPrefix uint8
	mtu       int
	heartbeat time.Duration
	logging   process.LogOptions
	log       string
	logSync   bool
	ports     portFlags
	open      bool
	share     bool
	tcp       []string
	rates     gatekeeper.Rates
	machines  []string
	fillRate  uint64

	otlp  string
	admin adminOptions
}

func (o *gatekeeperOptions) register(f *pflag.FlagSet) {
	o.Register(f, "switch", "the Gatekeeper's")
	f.Uint64Var(&o.deviceID, "device-id", 1, "the switch's P4Runtime device id")
	f.StringVar(&o.election, "election-id", "", "P4Runtime election id, LOW or HIGH:LOW; the highest is in charge (default: the present time)")
	f.Uint8Var(&o.dsmPrefix, "dsm-prefix", rackaddr.DefaultDSMPrefix, "byte 4 of every global pointer, 1 to 255")
	f.IntVar(&o.mtu, "mtu", rackaddr.DefaultMTU, "the rack's largest IPv6 packet in bytes")
	f.DurationVar(&o.heartbeat, "heartbeat", defaultHeartbeat, "how often blades report; a blade that is silent for three of these intervals has failed")
	f.VarP(&o.ports, "port", "p", "bind port PORT of the switch to a blade: no other blade registers there (repeatable)")
	f.BoolVar(&o.open, "open", false, "admit any blade at ports that --port does not bind; without it, blades register at bound ports only")
	f.BoolVar(&o.share, "share-exports", false, "let several programs that are not deployed export the same service; without it, a service belongs to the program that exports it first")
	f.Uint64Var(&o.fillRate, "fill-rate", 64<<20, "how many `BYTES` a second a memory blade sends at most to fill the second copy of its machine")
	f.StringArrayVar(&o.machines, "machine", nil, "`BLADES` of a memory machine: m1+m2 for two blades that each hold a copy, so that either may die, or m3 for one alone. "+
		"Repeat it for each machine (default: m1 with m2, m3 with m4, and so on by the numbers in the names; a blade with a --machine id of its own is alone)")
	f.StringSliceVar(&o.tcp, "tcp", nil, "let TCP pass between these `BLADES`; * stands for all (default: none)")
	o.rates = gatekeeper.DefaultRates
	f.Var(rateFlag{&o.rates}, "rate", "limit for each port of the switch: how many packets of a class it passes to the Gatekeeper in a second, and at once (repeatable)")
	f.StringVar(&o.log, "log", "", "`DIRECTORY` of the log, from which a Gatekeeper goes on when it is started again (default: no log)")
	f.BoolVar(&o.logSync, "log-sync", false, "wait for the disk, so that the log also survives a loss of power")
	o.logging.Register(f, "")
	f.StringVar(&o.otlp, "otlp-endpoint", "", "export every call as an OpenTelemetry span by OTLP over HTTP to this `URL`, such as http://localhost:4318 "+
		"(default: $OTEL_EXPORTER_OTLP_ENDPOINT, or else no export; other OTEL_ variables apply, too)")
	o.admin.register(f)
}

// memoryMachines reads --machine.
func (o *gatekeeperOptions) memoryMachines() (machines [][]string, err error) {
	for _, text := range o.machines {
		blades, err := pairing.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("--machine %s: %w", text, err)
		}
		machines = append(machines, blades)
	}
	if err := pairing.Check(machines); err != nil {
		return nil, fmt.Errorf("--machine: %w", err)
	}
	return machines, nil
}

// parseElection reads LOW or HIGH:LOW; "" is the zero id.
func parseElection(s string) (e control.Election, err error) {
	if s == "" {
		return e, nil
	}
	high, low, both := strings.Cut(s, ":")
	if !both {
		high, low = "0", s
	}
	if e.High, err = strconv.ParseUint(high, 10, 64); err != nil {
		return e, err
	}
	if e.Low, err = strconv.ParseUint(low, 10, 64); err != nil {
		return e, err
	}
	if e == (control.Election{}) {
		return e, errors.New("election id 0 is reserved by P4Runtime")
	}
	return e, nil
}

// portFlags are the values of --port.
type portFlags map[uint16]gatekeeper.Port

// String implements pflag.Value.
func (p *portFlags) String() string {
	var s []string
	for _, num := range slices.Sorted(maps.Keys(*p)) {
		s = append(s, fmt.Sprintf("%d=%s", num, (*p)[num]))
	}
	return strings.Join(s, ",")
}

// Type implements pflag.Value.
func (*portFlags) Type() string { return "PORT=NAME:KIND[:MACHINE[:CAPACITY]]" }

// Set implements pflag.Value.
func (p *portFlags) Set(s string) error {
	num, blade, ok := strings.Cut(s, "=")
	n, err := strconv.ParseUint(num, 10, 16)
	if !ok || err != nil {
		return fmt.Errorf("%q: write PORT=NAME:KIND, such as 1=c1:compute", s)
	}
	bound, err := gatekeeper.ParsePort(blade)
	if err != nil {
		return err
	}
	if _, twice := (*p)[uint16(n)]; twice {
		return fmt.Errorf("port %d is bound twice", n)
	}
	if *p == nil {
		*p = portFlags{}
	}
	(*p)[uint16(n)] = bound
	return nil
}

// rateFlag is the value of --rate.
type rateFlag struct{ rates *gatekeeper.Rates }

// class returns a class's rate, nil if there is none of that name.
func (r rateFlag) class(name string) *gatekeeper.Rate {
	switch name {
	case "control":
		return &r.rates.Control
	case "no-route":
		return &r.rates.NoRoute
	case "no-home":
		return &r.rates.NoHome
	case "digests":
		return &r.rates.Digests
	}
	return nil
}

// String implements pflag.Value.
func (r rateFlag) String() string {
	if r.rates == nil {
		return ""
	}
	var s []string
	for _, name := range []string{"control", "no-route", "no-home", "digests"} {
		s = append(s, fmt.Sprintf("%s=%d/%d", name, r.class(name).PerSecond, r.class(name).Burst))
	}
	return strings.Join(s, " ")
}

// Type implements pflag.Value.
func (rateFlag) Type() string { return "CLASS=PER_SECOND/BURST" }

// Set implements pflag.Value.
func (r rateFlag) Set(s string) error {
	name, value, _ := strings.Cut(s, "=")
	per, burst, ok := strings.Cut(value, "/")
	class := r.class(name)
	a, err := strconv.ParseInt(per, 10, 64)
	b, err2 := strconv.ParseInt(burst, 10, 64)
	if class == nil || !ok || err != nil || err2 != nil || a < 1 || b < 1 || a > maxRate || b > maxRate {
		return fmt.Errorf("%q: write CLASS=PER_SECOND/BURST, such as no-route=10000/4000; the classes are control, no-route, no-home and digests", s)
	}
	*class = gatekeeper.Rate{PerSecond: a, Burst: b}
	return nil
}

// maxRate is the most that the meters of all switches count.
const maxRate = 1_000_000_000

// defaultAdmin is where the admin API is, for servers and clients.
const defaultAdmin = "127.0.0.1:8045"

// tokenVariable is the environment variable with the admin token.
const tokenVariable = "BIFROST_ADMIN_TOKEN"

// adminOptions are the flags of `bifrost gatekeeper` for its admin API.
type adminOptions struct {
	addresses []string
	tokenFile string
	grants    string
	cert, key string
}

func (o *adminOptions) register(f *pflag.FlagSet) {
	f.StringSliceVar(&o.addresses, "admin-addr", []string{defaultAdmin},
		"serve the admin API and page at `ADDRESS`: HOST:PORT, unix:PATH, or fd:N for a TCP socket that listens already; separate several by commas; none turns the API off")
	f.StringVar(&o.tokenFile, "admin-token-file", "",
		"`FILE` of mode 0600 with the token that requests over TCP need; the Gatekeeper makes a missing file (default: $"+tokenVariable+
			", or else bifrost/admin.token in the user's configuration directory)")
	f.StringVar(&o.grants, "admin-tokens", "",
		"`FILE` with further tokens, each with a name and a role; changes take effect at once (default: admin.tokens beside the file of the admin token; see bifrost token)")
	f.StringVar(&o.cert, "admin-tls-cert", "", "PEM `FILE` with a certificate, with which the admin API speaks TLS; required for addresses beyond loopback")
	f.StringVar(&o.key, "admin-tls-key", "", "PEM `FILE` with the key of --admin-tls-cert")
}

// open listens at all addresses and makes the server; nil if it is turned off.
// Whoever gets listeners must hand them to Run.
func (o *adminOptions) open(gk admin.Backend, past *history.History, log *slog.Logger) (*admin.Server, []admin.Listener, error) {
	if len(o.addresses) == 1 && o.addresses[0] == "none" {
		return nil, nil, nil
	}
	cfg, err := o.tls()
	if err != nil {
		return nil, nil, err
	}
	token, err := o.token(log)
	if err != nil {
		return nil, nil, err
	}
	grants, err := o.tokens(token, log)
	if err != nil {
		return nil, nil, err
	}
	s, err := admin.New(admin.Config{Backend: gk, History: past, Grants: grants, Version: versionString(), Log: log})
	if err != nil {
		return nil, nil, err
	}
	var all []admin.Listener
	for _, address := range o.addresses {
		l, err := admin.Listen(address, cfg)
		if err != nil {
			for _, open := range all {
				err = errors.Join(err, open.Close())
			}
			if errors.Is(err, syscall.EADDRINUSE) {
				err = fmt.Errorf("%w: another Gatekeeper may run there; choose another address, or none", err)
			}
			return nil, nil, fmt.Errorf("--admin-addr: %w", err)
		}
		all = append(all, l)
	}
	return s, all, nil
}

// tls is nil without a certificate.
func (o *adminOptions) tls() (*tls.Config, error) {
	if (o.cert == "") != (o.key == "") {
		return nil, errors.New("--admin-tls-cert and --admin-tls-key go together")
	}
	if o.cert == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(o.cert, o.key)
	if err != nil {
		return nil, fmt.Errorf("--admin-tls-cert, --admin-tls-key: %w", err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}, nil
}

// token is the one given; for addresses that need one, it is made up otherwise.
func (o *adminOptions) token(log *slog.Logger) (string, error) {
	if o.tokenFile != "" {
		return admin.ReadOrMakeToken(o.tokenFile)
	}
	if token := os.Getenv(tokenVariable); token != "" {
		return token, nil
	}
	needed := false
	for _, address := range o.addresses {
		needed = needed || !strings.HasPrefix(address, "unix:")
	}
	if !needed {
		return "", nil
	}
	path, err := admin.DefaultTokenFile()
	if err != nil {
		return "", err
	}
	token, err := admin.ReadOrMakeToken(path)
	log.Info("admin token", "file", path)
	return token, err
}

// tokens is what requests over TCP may carry: the admin token, and those of the file;
// nil if there is neither, as for Unix sockets alone.
func (o *adminOptions) tokens(token string, log *slog.Logger) (admin.Grants, error) {
	path := o.grants
	switch {
	case path != "":
	case token == "":
		return nil, nil
	case o.tokenFile != "":
		path = filepath.Join(filepath.Dir(o.tokenFile), "admin.tokens")
	default:
		var err error
		if path, err = admin.DefaultGrantsFile(); err != nil {
			return admin.OneToken(token), nil //nolint:nilerr // without a home there is no such file
		}
	}
	if token != "" {
		if err := admin.CheckToken(token); err != nil {
			return nil, err
		}
	}
	if _, err := admin.ReadGrants(path); err != nil {
		return nil, err
	}
	return &admin.GrantsFile{Path: path, Admin: token, Log: log}, nil
}

// serveAdmin serves the API until ctx ends. The rack does not depend on it, so a
// failure is logged and no more.
func serveAdmin(ctx context.Context, s *admin.Server, listeners []admin.Listener, log *slog.Logger) {
	if s == nil {
		return
	}
	if err := s.Run(ctx, listeners...); err != nil {
		log.Error("the admin API has ended", "error", err)
	}
}
