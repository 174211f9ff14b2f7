package gatekeeper

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/p4"
)

// ErrStopped is returned by methods that need a running Gatekeeper.
var ErrStopped = errors.New("the Gatekeeper is not running")

// Gatekeeper controls one rack. Its methods may be called concurrently.
type Gatekeeper struct {
	cfg    Config
	client *p4rtclient.Client
	meta   metadata
	room   int // for access rules, on the switch
	turn   turn
	ctl    *controller // of who has the turn
	outbox *outbox     // as well; nil without a log
	writer *writer
	broker broker
	probes chan struct{} // the controller wants the switch to answer

	stopped chan struct{} // closed when Run ends
	once    sync.Once
	cancel  context.CancelFunc // ends Run
}

// metadata tells where the fields of the program's packet headers stand.
type metadata struct {
	port, reason   int // packet_in
	hop, outFields int // packet_out
}

// program is Bifröst's P4 program, parsed once.
var program = sync.OnceValues(func() (*p4rtclient.Program, error) { return p4rtclient.ParseProgram(p4.Info, p4.JSON) })

// New makes a Gatekeeper; Run makes it work. With a log it knows what is on it.
func New(cfg Config) (*Gatekeeper, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	ctl := newController(cfg)
	if cfg.Store != nil {
		if err := ctl.restore(cfg.Store); err != nil {
			return nil, fmt.Errorf("gatekeeper: begin with the log: %w", err)
		}
		if err := ctl.logFirst(cfg.Store); err != nil {
			return nil, fmt.Errorf("gatekeeper: begin with the log: %w", err)
		}
		cfg = ctl.cfg
	}
	program, err := program()
	if err != nil {
		return nil, err
	}
	client, err := p4rtclient.New(p4rtclient.Config{
		Conn: cfg.Conn, Program: program, DeviceID: cfg.DeviceID, Log: cfg.Log,
		Election: p4rtclient.Election{High: cfg.Election.High, Low: cfg.Election.Low},
	})
	if err != nil {
		return nil, err
	}
	g := &Gatekeeper{
		cfg: cfg, client: client, room: program.TableSize(accessTable), ctl: ctl, writer: newWriter(), probes: make(chan struct{}, 1), cancel: func() {}, stopped: make(chan struct{}),
	}
	if cfg.Store != nil {
		g.outbox = newOutbox(cfg.Store, cfg.Limits.Held, g.transmit, g.confirm)
	}
	g.meta.port, err = program.PacketInField("ingress_port")
	if err == nil {
		g.meta.reason, err = program.PacketInField("reason")
	}
	if err == nil {
		g.meta.hop, err = program.PacketOutField("hop")
	}
	g.meta.outFields = program.PacketOutFields()
	return g, err
}

// Run works until ctx ends, and then returns nil. It returns an error if another
// Gatekeeper is in charge of the switch (p4rtclient.ErrNotPrimary), or if the
// switch cannot run the P4 program, or if the log fails (log.ErrFailed): what is
// not logged must not happen. It must be called once.
func (g *Gatekeeper) Run(ctx context.Context) error {
	again := true
	g.once.Do(func() { again = false })
	if again {
		return errors.New("gatekeeper: Run was called before")
	}
	ctx, cancel := context.WithCancel(ctx)
	g.cancel = cancel
	defer cancel()
	g.begin()
	err := g.client.Keep(ctx, g.serve)
	if ctx.Err() != nil {
		err = nil
	}
	if failure := g.end(); failure != nil {
		return failure
	}
	return err
}

// Subscribe returns a channel of events from now on; it is closed when ctx ends.
// A subscriber that falls behind loses events, which their sequence numbers tell.
func (g *Gatekeeper) Subscribe(ctx context.Context) <-chan Event { return g.broker.subscribe(ctx) }

// Snapshot copies the state. It fails with ErrStopped if the Gatekeeper does not
// run (any more).
func (g *Gatekeeper) Snapshot(ctx context.Context) (s Snapshot, err error) {
	err = g.do(ctx, func() { s = g.ctl.snapshot() })
	return s, err
}
