package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/duration"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// registrar keeps a blade registered with the Gatekeeper. It calls the duty from
// one goroutine, except for handle.
type registrar struct {
	blade Blade
	duty  duty
	log   *slog.Logger
	conn  netio.Conn
	ask   *control.Endpoint
	now   chan struct{} // a heartbeat is due before its time; has room for one
}

// duty is what a kind of daemon adds to being registered.
type duty interface {
	// hello and heartbeat are what to say.
	hello() control.Hello
	heartbeat() control.Heartbeat
	// welcomed is called for each welcome; an error ends the daemon.
	welcomed(ctx context.Context, w control.Welcome) error
	// updated is called for each reply to a heartbeat while the blade is known.
	updated(sent control.Heartbeat, r control.HeartbeatReply)
	// lost is called when the Gatekeeper does not know the blade any more.
	lost()
	// handle carries out a command; it may be called concurrently.
	handle(ctx context.Context, m control.Message) (any, error)
}

// newRegistrar opens the blade's end of the control conversation.
func newRegistrar(b Blade, d duty) (*registrar, error) {
	conn, err := b.Stack.ListenUDP(netip.AddrPortFrom(b.Address, rackaddr.PortControl))
	if err != nil {
		return nil, err
	}
	r := &registrar{blade: b, duty: d, log: b.Log, conn: conn, now: make(chan struct{}, 1)}
	r.ask = control.NewEndpoint(control.Config{
		PeerConfig: control.PeerConfig{Boot: b.Boot, Follow: true, MaxDatagram: b.Stack.MTU() - netio.Overhead},
		Send:       r.send, Handle: d.handle, Log: b.Log,
	})
	return r, nil
}

var gatekeeper = netip.AddrPortFrom(rackaddr.Gatekeeper, rackaddr.PortControl)

func (r *registrar) send(b []byte) error {
	_, err := r.conn.WriteBatch([]netio.Message{{Buf: b, Remote: gatekeeper}})
	return err
}

// hurry has a heartbeat sent at once. It does not block.
func (r *registrar) hurry() {
	select {
	case r.now <- struct{}{}:
	default:
	}
}

// run keeps the blade registered until ctx ends. It returns why it ended by
// itself, or nil.
func (r *registrar) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { r.ask.Run(ctx) })
	ended := make(chan error, 2)
	wg.Go(func() { ended <- r.read() })
	wg.Go(func() { ended <- r.announce(ctx) })
	err := <-ended
	cancel()
	err = errors.Join(err, r.conn.Close())
	wg.Wait()
	return err
}

// read hands what the Gatekeeper sends to the endpoint.
func (r *registrar) read() error {
	return r.blade.readAll(r.conn, func(m *netio.Message) {
		if m.Remote == gatekeeper {
			r.ask.Deliver(m.Buf)
		}
	})
}

// readAll hands each datagram that comes to an endpoint of the blade to a function, until the endpoint is closed. The datagram is the
// function's until that returns.
func (b *Blade) readAll(conn netio.Conn, each func(m *netio.Message)) error {
	ms := make([]netio.Message, 4)
	bufs := make([][]byte, len(ms))
	for i := range bufs {
		bufs[i] = make([]byte, min(b.Stack.MTU()-netio.Overhead, netio.MaxDatagram))
	}
	for {
		for i := range ms {
			ms[i].Buf = bufs[i]
		}
		n, err := conn.ReadBatch(ms)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		for i := range ms[:n] {
			each(&ms[i])
		}
	}
}

// announce says hello, and heartbeats after it, again whenever the Gatekeeper
// does not know the blade. It returns nil when ctx ends.
func (r *registrar) announce(ctx context.Context) error {
	for {
		w, err := r.sayHello(ctx)
		if err != nil || ctx.Err() != nil {
			return err
		}
		if err := r.duty.welcomed(ctx, w); err != nil {
			return err
		}
		r.log.Info("registered", "blade", r.blade.Name, "address", w.Address)
		if r.blade.Registered != nil {
			r.blade.Registered()
		}
		r.beat(ctx, w)
		if ctx.Err() != nil {
			return nil
		}
		r.log.Warn("the Gatekeeper does not know this blade any more", "blade", r.blade.Name)
		r.duty.lost()
	}
}

// sayHello asks until the blade is welcome. A refusal that only a person can
// resolve is an error; nil with a zero Welcome says that ctx has ended.
func (r *registrar) sayHello(ctx context.Context) (control.Welcome, error) {
	for {
		var w control.Welcome
		err := r.ask.Ask(ctx, control.KindHello, r.duty.hello(), &w)
		switch code := fault.CodeOf(err); {
		case err == nil:
			return w, w.Speaks.Check("hello", "the Gatekeeper", "blade "+r.blade.Name)
		case ctx.Err() != nil:
			return control.Welcome{}, nil
		case code == fault.BadRequest || code == fault.NoSpace:
			return w, err
		}
		r.log.Warn("hello", "err", err)
		select {
		case <-ctx.Done():
			return control.Welcome{}, nil
		case <-time.After(helloPause):
		}
	}
}

// beat sends heartbeats until the Gatekeeper does not know the blade, or ctx ends.
func (r *registrar) beat(ctx context.Context, w control.Welcome) {
	every := duration.Times(int64(w.HeartbeatMS), time.Millisecond)
	if every <= 0 {
		every = defaultHeartbeat
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	replies := make(chan numbered, 1)
	sent, newest := 0, 0
	report := func() {
		sent++
		n, h := sent, r.duty.heartbeat()
		wg.Go(func() { r.heartbeat(ctx, n, h, replies) })
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
			report()
		case <-r.now:
			report()
		case reply := <-replies:
			if reply.n < newest {
				continue // overtaken
			}
			newest = reply.n
			if !reply.Known {
				return
			}
			r.duty.updated(reply.sent, reply.HeartbeatReply)
		}
	}
}

// numbered is the reply to the n-th heartbeat.
type numbered struct {
	n    int
	sent control.Heartbeat
	control.HeartbeatReply
}

func (r *registrar) heartbeat(ctx context.Context, n int, h control.Heartbeat, replies chan<- numbered) {
	asking, cancel := context.WithTimeout(ctx, heartbeatPatience)
	defer cancel()
	reply := numbered{n: n, sent: h}
	if err := r.ask.Ask(asking, control.KindHeartbeat, h, &reply.HeartbeatReply); err != nil {
		r.log.Debug("heartbeat", "err", err)
		return
	}
	select {
	case replies <- reply:
	case <-ctx.Done():
	}
}
