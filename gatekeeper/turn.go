package gatekeeper

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/p4/p4rt"
)

// turn is what owns the controller, its outbox and the session: whoever has it
// hands the controller one input and carries out what that wants, and waits for
// nothing meanwhile. The goroutine that brings an input takes the turn itself, so
// that nobody has to be woken on a held packet's way.
type turn struct {
	mu      sync.Mutex
	over    bool                // the Gatekeeper has stopped, or must
	session *p4rtclient.Session // nil while the switch is away
	timer   *time.Timer         // ticks; nil before Run
	failure error               // of the log
}

// do has f carried out as an input.
func (g *Gatekeeper) do(ctx context.Context, f func()) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return g.input(f)
}

// input has f carried out as an input, unless the Gatekeeper has stopped.
func (g *Gatekeeper) input(f func()) error {
	g.turn.mu.Lock()
	defer g.turn.mu.Unlock()
	if g.turn.over {
		return ErrStopped
	}
	g.ctl.now = time.Now()
	g.ctl.narrate = g.broker.active.Load() > 0
	if g.ctl.pressure = noPressure; g.outbox != nil {
		g.ctl.pressure = g.outbox.pressure()
	}
	f()
	g.perform()
	g.wind()
	return nil
}

// packetIn takes a packet that the switch has held.
func (g *Gatekeeper) packetIn(p p4rtclient.PacketIn) {
	_ = g.input(func() { // a packet for a Gatekeeper that has stopped is lost
		g.ctl.packetIn(uint16(p.Metadata[g.meta.port]), reason(p.Metadata[g.meta.reason]), p.Payload) //nolint:gosec // 16 and 8 bits wide
	})
}

// digest takes what the switch has told.
func (g *Gatekeeper) digest(d p4rtclient.Digest) {
	_ = g.input(func() { g.ctl.digest(d) })
}

// port takes the status of one of the switch's ports.
func (g *Gatekeeper) port(p p4rt.Port) {
	_ = g.input(func() { g.ctl.portStatus(uint16(p.Number), p.Up) }) //nolint:gosec // 16 bits wide, as in a packet
}

// tick is called by the timer.
func (g *Gatekeeper) tick() { _ = g.input(g.ctl.tick) }

// confirm is called by the log for each batch, in order.
func (g *Gatekeeper) confirm(err error) {
	g.turn.mu.Lock()
	defer g.turn.mu.Unlock()
	if !g.turn.over {
		g.check(g.outbox.confirmed(err))
	}
}

// perform carries out what the controller wants done.
func (g *Gatekeeper) perform() {
	g.change()
	g.ctl.keepFleet()
	out := g.ctl.take()
	for _, e := range out.events {
		g.broker.publish(e)
	}
	if out.probe {
		select {
		case g.probes <- struct{}{}:
		default: // one of a session that is over is left: it does as well
		}
	}
	if g.outbox == nil {
		for _, p := range out.packets {
			g.transmit(p)
		}
		return
	}
	err := g.outbox.put(&out.batch, out.packets)
	if g.outbox.tail.batch.Len() == 0 {
		g.ctl.submitted()
	}
	g.check(err)
}

// change has the switch's tables changed. Where that is told, it is as good as done,
// since packets follow on the same stream: what has waited for it goes on at once.
func (g *Gatekeeper) change() {
	for len(g.ctl.out.plans) > 0 {
		plans := g.ctl.out.plans
		g.ctl.out.plans = nil
		if !g.mayTell(plans) || !g.writer.tell(g.turn.session, plans) {
			g.writer.submit(plans)
			return
		}
		conclude(plans)
	}
}

// mayTell reports whether the switch will certainly do what it is told: access rules,
// for which it has room. Everything else it is asked.
func (g *Gatekeeper) mayTell(plans []*plan) bool {
	return g.turn.session != nil && g.turn.session.MayTell() && g.ctl.access <= g.room &&
		!slices.ContainsFunc(plans, func(p *plan) bool { return p.ordered })
}

// check stops the Gatekeeper if the log has failed.
func (g *Gatekeeper) check(err error) {
	if err == nil {
		return
	}
	g.turn.failure, g.turn.over = fmt.Errorf("gatekeeper: %w", err), true
	g.cancel()
}

// transmit hands a frame to the switch; without one it is lost, like any packet.
func (g *Gatekeeper) transmit(p packetOut) {
	if g.turn.session == nil {
		g.ctl.count.Unsent++
		return
	}
	meta := make([]uint64, g.meta.outFields)
	meta[g.meta.hop] = uint64(p.hop)
	if err := g.turn.session.Send(p4rtclient.PacketOut{Payload: p.frame, Metadata: meta}); err != nil {
		g.ctl.count.Unsent++
	}
}

// wind sets the timer to when the controller has something to do next.
func (g *Gatekeeper) wind() {
	if !g.ctl.timers || g.turn.timer == nil {
		return
	}
	if at, ok := g.ctl.deadline(); ok {
		g.turn.timer.Reset(time.Until(at))
	} else {
		g.turn.timer.Stop()
	}
}

// begin starts the timer.
func (g *Gatekeeper) begin() {
	g.turn.mu.Lock()
	defer g.turn.mu.Unlock()
	g.turn.timer = time.AfterFunc(0, g.tick)
}

// end lets nobody take the turn any more, and returns the log's failure, if any.
func (g *Gatekeeper) end() error {
	g.turn.mu.Lock()
	defer g.turn.mu.Unlock()
	g.turn.over = true
	g.turn.timer.Stop()
	close(g.stopped)
	return g.turn.failure
}
