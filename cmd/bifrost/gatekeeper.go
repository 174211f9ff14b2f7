package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/history"
	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/gatekeeper/spans"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/sdnotify"
)

func newGatekeeperCmd() *cobra.Command {
	var o gatekeeperOptions
	cmd := &cobra.Command{
		Use:   "gatekeeper --switch ADDRESS",
		Short: "Run the Gatekeeper: the control plane of a rack",
		Long: `Run the Gatekeeper of one rack. It loads the P4 program into a switch that speaks
P4Runtime (bifrost switch, bmv2's simple_switch_grpc), registers blades, nodes
and services, and turns every packet that the switch holds into rules before it
lets it go on.

If several Gatekeepers run, the one with the highest election id is in charge;
by default that is the one that was started last, and the others end. A switch
that is away, or restarts, is waited for; its tables are then made what they
should be.

With --log, what the Gatekeeper decides is logged before anybody is told. Started
again with the same directory it knows the blades, nodes, services, regions and
calls, and the rack goes on; without, all of them begin anew.

A blade registers at the port of the switch that --port binds to it, as what it is
bound to be, and nowhere else. So the program of one blade cannot take the place of
another. --open admits every blade at ports that are not bound.

It serves an admin API with a page to watch the rack; bifrost status and its
friends are clients of it, and bifrost page opens the page. Over TCP the API asks
for a token; a Unix socket is for the user who started the Gatekeeper.`,
		Example: `  # The switch of this machine, and any blade at any of its ports.
  bifrost gatekeeper --open

  # A compute blade at port 1, and memory machine 1 with 64 GiB at port 2.
  bifrost gatekeeper -p 1=c1:compute -p 2=m1:memory:1:68719476736

  # A switch behind a Unix socket, as bifrost rack up starts it.
  bifrost gatekeeper --open --switch unix:/run/bifrost/switch.sock --mtu 9000

  # A switch elsewhere, with TLS and a certificate for us.
  bifrost gatekeeper --open --switch tor1.example:9559 --tls-ca ca.pem --tls-cert cert.pem --tls-key key.pem

  # The admin API for others, with TLS, and for this machine.
  bifrost gatekeeper --open --admin-addr :8045,unix:/run/bifrost.sock --admin-tls-cert cert.pem --admin-tls-key key.pem

  # A Gatekeeper that goes on where it was when it is started again.
  bifrost gatekeeper --open --log /var/lib/bifrost/log

  # m1 and m2 hold a copy each of the same memory: either may die. m3 is alone.
  bifrost gatekeeper --machine m1+m2 --machine m3

  # Every call as a span, for Jaeger or another collector of OpenTelemetry.
  bifrost gatekeeper --open --otlp-endpoint http://localhost:4318

  # Every step in the messages.
  bifrost gatekeeper --open --log-level debug`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.register(cmd.Flags())
	return cmd
}

// run runs the Gatekeeper until ctx ends.
func (o *gatekeeperOptions) run(ctx context.Context) (err error) {
	collectRarely()
	processors(1)
	log, err := o.logging.open()
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
	credentials, err := o.credentials()
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient(target(o.address), append(p4rtclient.DialOptions(), grpc.WithTransportCredentials(credentials))...)
	if err != nil {
		return fmt.Errorf("--switch %s (HOST:PORT or unix:PATH): %w", o.address, err)
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
		Ports: o.ports, Open: o.open, ShareExports: o.share, TCP: o.tcp, Rates: o.rates, Machines: machines, PairByNumber: true, FillRate: o.fillRate, Ledgers: gatekeeper.LedgerMode(o.ledgers),
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
	log.Info("gatekeeper starts", "switch", o.address, "device", o.deviceID)
	err = gk.Run(ctx)
	end()
	wg.Wait()
	if errors.Is(err, p4rtclient.ErrNotPrimary) {
		return fmt.Errorf("%w: another Gatekeeper is in charge of %s; a higher --election-id takes over", err, o.address)
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
	defaultSwitch    = "unix:/run/bifrost-switch.sock"
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
