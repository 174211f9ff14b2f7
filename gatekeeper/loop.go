package gatekeeper

import (
	"context"
	"fmt"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
)

// feed is what the loop reads while there is a session with the switch.
type feed struct {
	session *p4rtclient.Session
	packets <-chan p4rtclient.PacketIn
	digests <-chan p4rtclient.Digest
}

// loop owns the controller: it hands it one input at a time and carries out what
// the controller wants.
func (g *Gatekeeper) loop(ctx context.Context) {
	defer close(g.stopped)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var logged <-chan struct{}
	if g.outbox != nil {
		logged = g.outbox.wake
	}
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-g.inbox:
			g.begin()
			f()
		case p := <-g.feed.packets:
			g.begin()
			g.ctl.packetIn(uint16(p.Metadata[g.meta.port]), reason(p.Metadata[g.meta.reason]), p.Payload) //nolint:gosec // 16 and 8 bits wide
		case d := <-g.feed.digests:
			g.begin()
			g.ctl.digest(d)
		case <-timer.C:
			g.begin()
			g.ctl.tick()
		case <-logged:
			if !g.logs(g.outbox.confirmed()) {
				return
			}
			continue
		}
		if !g.perform() {
			return
		}
		if !g.ctl.timers {
			continue
		}
		if at, ok := g.ctl.deadline(); ok {
			timer.Reset(time.Until(at))
		} else {
			timer.Stop()
		}
	}
}

// begin readies the controller for an input, which has just arrived.
func (g *Gatekeeper) begin() {
	g.ctl.now = time.Now()
	g.ctl.narrate = g.broker.active.Load() > 0
	g.ctl.pressed = g.outbox != nil && g.outbox.pressed()
}

// perform carries out what the controller wants done. It reports false if the
// Gatekeeper has to stop.
func (g *Gatekeeper) perform() bool {
	g.ctl.keepFleet()
	out := g.ctl.take()
	if len(out.plans) > 0 {
		g.writer.submit(out.plans)
	}
	for _, e := range out.events {
		g.broker.publish(e)
	}
	if g.outbox != nil {
		err := g.outbox.put(&out.batch, out.packets)
		if g.outbox.tail.batch.Len() == 0 {
			g.ctl.submitted()
		}
		return g.logs(err)
	}
	for _, p := range out.packets {
		g.transmit(p)
	}
	return true
}

// logs stops the Gatekeeper if the log has failed.
func (g *Gatekeeper) logs(err error) bool {
	if err == nil {
		return true
	}
	g.failure = fmt.Errorf("gatekeeper: %w", err)
	g.cancel()
	return false
}

// transmit hands a frame to the switch; without one it is lost, like any packet.
func (g *Gatekeeper) transmit(p packetOut) {
	if g.feed.session == nil {
		g.ctl.count.Unsent++
		return
	}
	meta := make([]uint64, g.meta.outFields)
	meta[g.meta.hop] = uint64(p.hop)
	if err := g.feed.session.Send(p4rtclient.PacketOut{Payload: p.frame, Metadata: meta}); err != nil {
		g.ctl.count.Unsent++
	}
}
