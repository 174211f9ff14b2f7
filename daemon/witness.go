package daemon

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// tellPatience is how long a witness says that a daemon has ended, if nobody answers. By
// then the Gatekeeper is about to notice the daemon's silence.
const tellPatience = time.Second

// TellEnded tells the Gatekeeper that the daemon of a memory blade has ended: b is what that
// was started with, its Boot included. A daemon that is killed cannot say so itself, so
// another process of the blade must, once the daemon's endpoint is closed. TellEnded returns
// nil when the Gatekeeper has heard it, and an error after a second, or with ctx.
func TellEnded(ctx context.Context, b Blade) (err error) {
	if b.Boot == 0 {
		return errors.New("the boot number of the daemon that has ended is missing")
	}
	if err := b.check(); err != nil {
		return err
	}
	if err := b.Stack.AddAddress(b.Address); err != nil { // a daemon that ends in good order has taken it away
		return err
	}
	conn, err := b.Stack.ListenUDP(netip.AddrPortFrom(b.Address, rackaddr.PortControl))
	if err != nil {
		return err
	}
	r := &registrar{blade: b, log: b.Log, conn: conn}
	r.ask = control.NewEndpoint(control.Config{
		PeerConfig: control.PeerConfig{Boot: 1 + rand.Uint64()>>1, Follow: true, MaxDatagram: b.Stack.MTU() - netio.Overhead},
		Send:       r.send, Handle: refuseEnded, Log: b.Log,
	})
	ctx, cancel := context.WithTimeout(ctx, tellPatience)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { r.ask.Run(ctx) })
	wg.Go(func() {
		if err := r.read(); err != nil && !errors.Is(err, net.ErrClosed) {
			b.Log.Warn("the Gatekeeper cannot be heard", "error", err)
		}
	})
	err = r.ask.Ask(ctx, control.KindEnded, control.Ended{Blade: b.Name, Boot: b.Boot}, nil)
	cancel()
	err = errors.Join(err, conn.Close())
	wg.Wait()
	return err
}

// refuseEnded answers what the Gatekeeper asks of a daemon that has ended: it asks again,
// until it has heard of the end.
func refuseEnded(context.Context, control.Message) (any, error) {
	return nil, fault.New(fault.Unavailable, "control", "the daemon has ended")
}
